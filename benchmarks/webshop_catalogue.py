"""Measure WebShop's catalogue at scale: build, open, memory per additional process, and query time.

    python benchmarks/webshop_catalogue.py --work DIR --products 20000 --products 100000 --products 1180000
    python benchmarks/webshop_catalogue.py --data CATALOGUE

Without `--data`, synthetic raw files of each size are written to the working folder and built there (1.18 million
products take 4 GB of raw files and 3 GB of catalogue; files of an earlier run are reused). Build and queries are
measured in CPU seconds of one core and wall time. Queries are compared with a lower bound: the sum over every posting
of every query term. The memory of an additional process is its private memory (smaps) while another process has the
same catalogue open and has answered the same queries.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from record import add_keep, store
from rich.console import Console
from rich.table import Table

from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.generation import synthetic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_envs.webshop.search.index import Index

KINDS = ("words of titles", "words of instructions", "whole instructions")


def queries(catalogue: Catalogue, count: int, seed: int) -> dict[str, list[str]]:
    """Return seeded queries: 2 to 6 adjacent words of titles and of instructions, and complete instructions."""
    chosen = random.Random(seed)
    instructions = [human.instruction for human in catalogue.human_instructions()]

    def some(text: str) -> str:
        words, length = text.lower().split(), chosen.randint(2, 6)
        first = chosen.randrange(max(1, len(words) - length + 1))
        return " ".join(words[first : first + length])

    titles = [catalogue.product(chosen.randrange(len(catalogue))).title for _ in range(count)]
    whole = [chosen.choice(instructions) for _ in range(count)]
    return dict(zip(KINDS, ([some(t) for t in titles], [some(t) for t in whole], whole), strict=True))


def exhaustive(index: Index, query: str, size: int) -> tuple[list[int], NDArray[np.float32]]:
    """Measure the lower bound: reading every posting of every term."""
    totals = np.zeros(size)
    for postings in index.lists(query):
        totals[postings.documents] += postings.table[postings.codes]
    scores = totals.astype(np.float32)
    found = np.flatnonzero(scores)
    order = found[np.lexsort((found, -scores[found]))][:50]
    return order.tolist(), scores[order]


def milliseconds(times: list[float]) -> dict[str, float]:
    """Return p50, p95 and maximum."""
    return {"p50": np.percentile(times, 50) * 1e3, "p95": np.percentile(times, 95) * 1e3, "max": max(times) * 1e3}


def measure(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Measure opening and queries in a new process."""
    begun = time.perf_counter()
    catalogue = Catalogue.open(folder)
    opened = time.perf_counter() - begun
    asked = queries(catalogue, count, seed)
    figures: dict[str, Any] = {"products": len(catalogue), "open_s": opened, "query_ms": {}, "floor_ms": {}}
    for kind, texts in asked.items():
        times, floor = [], []
        for text in texts:
            begun = time.process_time()
            catalogue.index.search(text)
            times.append(time.process_time() - begun)
        for text in texts[: count // 10]:
            found, scores = catalogue.index.search(text)
            begun = time.process_time()
            expected, exact = exhaustive(catalogue.index, text, len(catalogue))
            floor.append(time.process_time() - begun)
            if found.tolist() != expected or scores.tolist() != exact.tolist():
                sys.exit(f"the ranking of {text!r} is not that of all postings")
        figures["query_ms"][kind], figures["floor_ms"][kind] = milliseconds(times), milliseconds(floor)
    return figures


def used(folder: Path, count: int, seed: int) -> Catalogue:
    """Open a catalogue and read queries and products."""
    catalogue = Catalogue.open(folder)
    for texts in queries(catalogue, count, seed).values():
        for text in texts:
            for product in catalogue.search(text)[:10]:
                catalogue.product(product)
    return catalogue


def own_memory() -> float:
    """Return the private memory of this process in MB (Linux)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def make(raw: Path, folder: Path) -> dict[str, float]:
    """Build a catalogue in a new process."""
    shutil.rmtree(folder, ignore_errors=True)
    begun, wall = time.process_time(), time.perf_counter()
    build(*(raw / name for name in synthetic.FILES), folder, nouns="stand-in")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_s": time.process_time() - begun, "wall_s": time.perf_counter() - wall, "peak_mb": peak}


def child(task: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
    """Run a task of this script in a new process."""
    command = [sys.executable, __file__, "--child", task, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def further_process(folder: Path, count: int, seed: int) -> dict[str, float]:
    """Return the private memory of a second process after the first did the same work."""
    command = [sys.executable, __file__, "--child", "hold", str(folder), str(count), str(seed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout
        first.stdout.readline()
        second = child("use", folder, count, seed)
        first.communicate("\n")
    return {"private_mb": second, "imports_mb": child("imports")}


def run_child(task: str, arguments: list[str]) -> None:
    """Run a task in a child process of this script."""
    if task == "imports":
        print(json.dumps(own_memory()))
        return
    folder = Path(arguments[0])
    if task == "make":
        print(json.dumps(make(folder, Path(arguments[1]))))
        return
    count, seed = map(int, arguments[1:])
    if task == "measure":
        print(json.dumps(measure(folder, count, seed)))
        return
    catalogue = used(folder, count, seed)
    print(json.dumps(own_memory()), flush=True)
    if task == "hold":
        sys.stdin.readline()
    del catalogue


def figures_of(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Return all figures of one catalogue."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {**child("measure", folder, count, seed), **further_process(folder, count, seed), "size_mb": size / 1e6}


def report(figures: list[dict[str, Any]]) -> None:
    """Print the table."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title="WebShop's catalogue: CPU time, one core")
    titles = ["products", "build s", "peak MB", "size MB", "open ms", "private MB"]
    for title in (*titles, *(f"{kind}: p50 / p95 ms" for kind in KINDS), "floor p95 ms"):
        table.add_column(title, justify="right")
    for row in figures:
        built = row.get("build", {})
        floor = max(row["floor_ms"][kind]["p95"] for kind in KINDS)
        table.add_row(
            f"{row['products']:,}",
            f"{built['cpu_s']:.1f}" if built else "-",
            f"{built['peak_mb']:,.0f}" if built else "-",
            f"{row['size_mb']:,.0f}",
            f"{row['open_s'] * 1e3:.1f}",
            f"{row['private_mb']:.0f} (imports {row['imports_mb']:.0f})",
            *(f"{row['query_ms'][kind]['p50']:.1f} / {row['query_ms'][kind]['p95']:.1f}" for kind in KINDS),
            f"{floor:.1f}",
        )
    console.print(table)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", action="append", type=int, help="number of products; may be repeated")
    parser.add_argument("--data", action="append", type=Path, default=[], help="an existing catalogue")
    parser.add_argument("--work", type=Path, help="folder for raw files and catalogues, kept for the next run")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    add_keep(parser)
    given = parser.parse_args()
    if given.child:
        run_child(given.child[0], given.child[1:])
        return
    figures = [figures_of(folder, given.queries, given.seed) for folder in given.data]
    with tempfile.TemporaryDirectory() as passing:
        work = given.work or Path(passing)
        for products in given.products or ([] if given.data else [1_000, 20_000]):
            raw, folder = work / f"raw-{products}", work / f"catalogue-{products}"
            if not raw.exists():
                synthetic.write_synthetic(raw, products, given.seed)
            built = child("make", raw, folder)
            figures.append({**figures_of(folder, given.queries, given.seed), "build": built})
    report(figures)
    print(store("webshop_catalogue", {"catalogues": figures}, keep=given.keep))


if __name__ == "__main__":
    main()
