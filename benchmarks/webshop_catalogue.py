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

import multiprocessing
import random
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from record import in_new_process, make_parser, memory_mb, print_table, seconds, store

from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.generation import synthetic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_envs.webshop.search.index import Index

KINDS = ("words of titles", "words of instructions", "whole instructions")
SEED = 1
OPEN: list[Catalogue] = []
"""The catalogues that a process keeps open."""


def queries(catalogue: Catalogue, count: int) -> dict[str, list[str]]:
    """Return seeded queries: 2 to 6 adjacent words of titles and of instructions, and complete instructions."""
    chosen = random.Random(SEED)
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


def measure(folder: Path, count: int) -> dict[str, Any]:
    """Measure opening and queries in a new process."""
    begun = time.perf_counter()
    catalogue = Catalogue.open(folder)
    opened = time.perf_counter() - begun
    figures: dict[str, Any] = {"products": len(catalogue), "open_s": opened, "query_ms": {}, "floor_ms": {}}
    for kind, texts in queries(catalogue, count).items():
        times = [seconds(lambda text=text: catalogue.index.search(text)) for text in texts]
        floor = []
        for text in texts[: count // 10]:
            found, scores = catalogue.index.search(text)
            begun = time.process_time()
            expected, exact = exhaustive(catalogue.index, text, len(catalogue))
            floor.append(time.process_time() - begun)
            if found.tolist() != expected or scores.tolist() != exact.tolist():
                raise SystemExit(f"the ranking of {text!r} is not that of all postings")
        figures["query_ms"][kind], figures["floor_ms"][kind] = milliseconds(times), milliseconds(floor)
    return figures


def use(folder: Path, count: int) -> float:
    """Open a catalogue, read queries and products, keep it open, and return the private memory of this process."""
    catalogue = Catalogue.open(folder)
    for texts in queries(catalogue, count).values():
        for text in texts:
            for product in catalogue.search(text)[:10]:
                catalogue.product(product)
    OPEN.append(catalogue)
    return memory_mb("Private")


def make(raw: Path, folder: Path) -> dict[str, float]:
    """Build a catalogue in a new process."""
    shutil.rmtree(folder, ignore_errors=True)
    begun, wall = time.process_time(), time.perf_counter()
    build(*(raw / name for name in synthetic.FILES), folder, nouns="stand-in")
    taken = {"cpu_s": time.process_time() - begun, "wall_s": time.perf_counter() - wall}
    return taken | {"peak_mb": memory_mb("VmHWM")}


def figures_of(folder: Path, count: int) -> dict[str, Any]:
    """Return all figures of one catalogue."""
    figures = in_new_process(measure, folder, count)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as first:
        first.submit(use, folder, count).result()
        figures["private_mb"] = in_new_process(use, folder, count)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return figures | {"imports_mb": in_new_process(memory_mb, "Private"), "size_mb": size / 1e6}


def main() -> None:
    """Measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--products", action="append", type=int, help="number of products; may be repeated")
    parser.add_argument("--data", action="append", type=Path, default=[], help="an existing catalogue")
    parser.add_argument("--work", type=Path, help="folder for raw files and catalogues, kept for the next run")
    parser.add_argument("--queries", type=int, default=500)
    given = parser.parse_args()
    figures = [figures_of(folder, given.queries) for folder in given.data]
    with tempfile.TemporaryDirectory() as passing:
        work = given.work or Path(passing)
        for products in given.products or ([] if given.data else [1_000, 20_000]):
            raw, folder = work / f"raw-{products}", work / f"catalogue-{products}"
            if not raw.exists():
                synthetic.write_synthetic(raw, products, SEED)
            built = in_new_process(make, raw, folder)
            figures.append({**figures_of(folder, given.queries), "build": built})
    columns = {"products": "{products:,}", "size MB": "{size_mb:,.0f}", "open s": "{open_s:.4f}"}
    columns |= {"private MB": "{private_mb:.0f}", "of it imports": "{imports_mb:.0f}"}
    for kind in KINDS:
        columns[f"{kind}: p50 / p95 ms"] = f"{{query_ms[{kind}][p50]:.1f}} / {{query_ms[{kind}][p95]:.1f}}"
    columns[f"floor of {KINDS[-1]}: p95 ms"] = f"{{floor_ms[{KINDS[-1]}][p95]:.1f}}"
    print_table(figures, columns, "WebShop's catalogue: CPU time, one core")
    builds = [{"products": row["products"], **row["build"]} for row in figures if "build" in row]
    print_table(builds, title="Build")
    print(store("webshop_catalogue", {"catalogues": figures}, keep=given.keep))


if __name__ == "__main__":
    main()
