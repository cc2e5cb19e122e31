"""Measure WebShop's catalogue at scale: build, open, memory per additional process, and query time.

    python -m benchmarks webshop_catalogue --work DIR --products 20000 100000 1180000

Synthetic raw files of each size are written to the working folder and built there (1.18 million
products take 4 GB of raw files and 3 GB of catalogue; files of an earlier run are reused). Build and queries are
measured in CPU seconds of one core. Queries are compared with a lower bound of plain search: the sum over every posting
of every query term. The memory of an additional process is its private memory (smaps) while another process has the
same catalogue open and has answered the same queries.
"""

from __future__ import annotations

import multiprocessing
import random
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.runner import Row, in_new_process, memory_mb, quantity, seconds
from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.generation import synthetic

if TYPE_CHECKING:
    from collections.abc import Iterator


SEED = 1
OPEN: list[Catalogue] = []
"""The catalogues that a process keeps open."""


def queries(catalogue: Catalogue, count: int) -> dict[str, list[str]]:
    """Return seeded queries: 2 to 6 adjacent words of titles and of instructions, and complete instructions."""
    chosen = random.Random(SEED)
    instructions = [human.instruction for human in catalogue.human_instructions()]

    def some(text: str) -> str:
        words = text.lower().split()
        length = chosen.randint(2, 6)
        first = chosen.randrange(max(1, len(words) - length + 1))
        return " ".join(words[first : first + length])

    titles = [
        catalogue.product(chosen.randrange(len(catalogue))).title for _ in range(count)
    ]
    whole = [chosen.choice(instructions) for _ in range(count)]
    return {
        "words of titles": [some(title) for title in titles],
        "words of instructions": [some(text) for text in whole],
        "whole instructions": whole,
    }


def exhaustive(catalogue: Catalogue, query: str) -> list[list[float]]:
    """Rank by every posting of every term, which is the lower bound; return products and scores."""
    totals = np.zeros(len(catalogue))
    for postings in catalogue.index.lists(query):
        totals[postings.documents] += postings.table[postings.codes]
    scores = totals.astype(np.float32)
    found = np.flatnonzero(scores)
    order = found[np.lexsort((found, -scores[found]))][:50]
    return [order.tolist(), scores[order].tolist()]


def measured(folder: Path, count: int, name: str, *, largest: bool) -> list[Row]:
    """Measure the queries of each kind, in a new process, and compare the ranking with the lower bound's."""
    rows = []
    catalogue = Catalogue.open(folder)
    search = catalogue.index.search
    for kind, texts in queries(catalogue, count).items():
        times = [seconds(partial(search, text)) for text in texts]
        few = texts[: count // 10]
        for text in few:
            ranking = [part.tolist() for part in search(text)]
            if ranking != exhaustive(catalogue, text):
                raise SystemExit(f"the ranking of {text!r} is not that of all postings")
        floor = [seconds(partial(exhaustive, catalogue, text)) for text in few]
        row = Row(
            f"{name}: search by {kind}, 95th percentile",
            float(np.percentile(times, 95)),
            "s",
            rival=("the sum of all postings", float(np.percentile(floor, 95))),
            note=f"median {quantity(float(np.median(times)), 's')}",
            shown="readme" * (largest and "whole" in kind),
        )
        rows.append(row)
    return rows


def use(folder: Path, count: int) -> float:
    """Open a catalogue, read queries and products, keep it open, and return the private memory of this process."""
    catalogue = Catalogue.open(folder)
    for texts in queries(catalogue, count).values():
        for text in texts:
            for product in catalogue.search(text)[:10]:
                catalogue.product(product)
    OPEN.append(catalogue)
    return memory_mb("Private")


def make(raw: Path, folder: Path) -> tuple[float, float]:
    """Build a catalogue in a new process; return its CPU seconds and peak memory."""
    shutil.rmtree(folder, ignore_errors=True)
    files = [raw / name for name in synthetic.FILES]
    return seconds(lambda: build(*files, folder, nouns="stand-in")), memory_mb("VmHWM")


def rows_of(folder: Path, count: int, *, largest: bool) -> Iterator[Row]:
    """Return all rows of one catalogue; the documentation shows those of the largest."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    opening = seconds(lambda: Catalogue.open(folder))
    products = len(Catalogue.open(folder))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as first:
        first.submit(use, folder, count).result()
        private = in_new_process(use, folder, count)
    imports = in_new_process(memory_mb, "Private")
    name = f"WebShop, {products:,} products"
    yield Row(f"{name}: open", opening, "s", note=f"{size / 1e6:,.0f} MB of files")
    yield Row(
        f"{name}: private memory of another process",
        private,
        "MB",
        floor=("its imports", imports),
        shown="page" * largest,
    )
    yield from in_new_process(partial(measured, largest=largest), folder, count, name)


def run(
    products: tuple[int, ...] = (1_000, 20_000),
    work: Path | None = None,
    queries: int = 500,
) -> Iterator[Row]:
    """Measure catalogues of these sizes, built in a folder that keeps their raw files for the next run."""
    with tempfile.TemporaryDirectory() as passing:
        place = work or Path(passing)
        for number in products:
            raw = place / f"raw-{number}"
            folder = place / f"catalogue-{number}"
            if not raw.exists():
                synthetic.write_synthetic(raw, number, SEED)
            taken, peak = in_new_process(make, raw, folder)
            yield Row(
                f"WebShop, {number:,} products: build",
                taken,
                "s",
                note=f"{peak:,.0f} MB of memory",
            )
            yield from rows_of(folder, queries, largest=number == products[-1])
