"""Measure steps and resets of WebShop: CPU time by page and steps per second, compared with the original.

    python benchmarks/webshop.py                                   the bundled catalogue
    python benchmarks/webshop.py --data DIR --data DIR             built catalogues
    python benchmarks/webshop.py --checkout WEBSHOP --python PYTHON [--nouns FILE]
                                                                   the original too, both on its data

Both engines play the same seeded commands and return page, state text and available actions at every step. CPU time is
that of the process (all threads), so that other programs have little effect. The commands are first played once without
measurement: the figures are those of a warm process, for the native engine, which caches products and results, and for
the original, which does not. `cold` is the native engine's first pass, with empty caches.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from record import add_keep, store
from rich.console import Console
from rich.table import Table

from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_envs.webshop.reference.original import OriginalSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.engine import Engine

    Walks = list[tuple[str, list[str]]]

PAGES = ("index", "results", "item", "sub page", "done")


def walks(source: WebShopSource, episodes: int, seed: int) -> Walks:
    """Return seeded episodes as lists of commands: search, page, open, look, choose, buy."""
    choose, found = random.Random(seed), []
    engine, ids = source.engine(), source.ids("all")
    for _ in range(episodes):
        task = ids[choose.randrange(len(ids))]
        state, commands = engine.start(task), list[str]()
        words = source.task(task).instruction.split()
        while not state.terminated and len(commands) < 15:
            offered = [action for action in state.actions if action.startswith("click[")]
            searching = state.info["page_type"] == "index" or choose.random() < 0.05
            command = (
                f"search[{' '.join(choose.sample(words, min(5, len(words))))}]" if searching else choose.choice(offered)
            )
            state = engine.act(command)
            commands.append(command)
        found.append((task, commands))
    return found


def kind_of(page: str) -> str:
    """Return a page's name in the table."""
    return page if page in PAGES else "sub page"


def play(engine: Engine, episodes: Walks, clock: Callable[[], float], kinds: list[str] | None = None) -> dict[str, Any]:
    """Play all commands; return CPU milliseconds of a reset, a step, and a step to each page type."""
    resets, steps = list[float](), list[float]()
    names = []
    for task, commands in episodes:
        begun = clock()
        engine.start(task)
        resets.append(clock() - begun)
        for command in commands:
            begun = clock()
            state = engine.act(command)
            steps.append(clock() - begun)
            names.append(kind_of(state.info.get("page_type", "")))
    by_page = defaultdict(list)
    for name, seconds in zip(kinds or names, steps, strict=True):
        by_page[name].append(seconds)
    figures = {"reset": statistics.fmean(resets), "step": statistics.fmean(steps)}
    figures |= {name: statistics.fmean(by_page[name]) for name in PAGES if by_page[name]}
    return {"ms": {name: value * 1e3 for name, value in figures.items()}, "steps": len(steps), "kinds": kinds or names}


def process_clock(process: int) -> Callable[[], float]:
    """Return CPU seconds of another process, all threads (Linux)."""
    path, tick = Path(f"/proc/{process}/stat"), os.sysconf("SC_CLK_TCK")

    def clock() -> float:
        fields = path.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / tick

    return clock


def measure_native(folder: Path, goals: str, episodes: int, seed: int) -> tuple[dict[str, Any], Walks]:
    """Open a catalogue, and play with empty and with filled caches."""
    begun = time.process_time()
    source = WebShopSource(folder, goals=goals)  # type: ignore[arg-type]
    opened = time.process_time() - begun
    listed = walks(source, episodes, seed)
    fresh = WebShopSource(folder, goals=goals, price_seed=1)  # type: ignore[arg-type]  # its caches are empty
    cold = play(fresh.engine(), listed, time.process_time)
    warm = play(source.engine(), listed, time.process_time)
    return {"products": len(source.shop.catalogue), "open": opened * 1e3, "cold": cold["ms"], **warm}, listed


def measure_original(given: argparse.Namespace, listed: Walks, kinds: list[str]) -> dict[str, Any]:
    """Measure the original with the same commands. Its clock has a resolution of 10 ms, so only means are useful."""
    begun = time.monotonic()
    original = OriginalSource(given.checkout, goals=given.goals, python=given.python, nouns=given.nouns)
    opened = time.monotonic() - begun
    clock = process_clock(original.process.pid)
    engine = original.engine()
    play(engine, listed[: len(listed) // 4], clock)
    warm = play(engine, listed, clock, kinds)
    original.process.close()
    return {"open": opened * 1e3, **warm}


def data_of(checkout: Path, folder: Path, nouns: str | None) -> Path:
    """Build a catalogue of the checkout's data."""
    data = checkout / "data"
    items, attributes = next(data.glob("items_shuffle*.json")), next(data.glob("items_ins_v2*.json"))
    build(items, attributes, data / "items_human_ins.json", folder / "catalogue", nouns=nouns or "stand-in")
    return folder / "catalogue"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", type=Path, help="a built catalogue; may be repeated")
    parser.add_argument("--checkout", type=Path, help="the original's checkout, with data and index")
    parser.add_argument("--python", help="interpreter with the original installed")
    parser.add_argument("--nouns", help="file of nouns that replaces spaCy")
    parser.add_argument("--goals", choices=("human", "synthetic"), default="human")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    add_keep(parser)
    given = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        if given.checkout:
            folders = [data_of(given.checkout, Path(made), given.nouns)]
        else:
            folders = given.data or [bundled_folder()]
        table = Table(title=f"CPU ms, {given.goals} goals, {given.episodes} episodes")
        for column in ("engine", "products", "open", "reset", "step", *PAGES, "steps / CPU s"):
            table.add_column(column, justify="right" if table.columns else "left")
        for folder in folders:
            native, listed = measure_native(folder, given.goals, given.episodes, given.seed)
            rows = {"native, cold": {**native, "ms": native["cold"]}, "native": native}
            if given.checkout:
                rows["original"] = {"products": native["products"], **measure_original(given, listed, native["kinds"])}
            for name, row in rows.items():
                ms = row["ms"]
                cells = [f"{ms[column]:.3f}" if column in ms else "-" for column in ("reset", "step", *PAGES)]
                table.add_row(name, f"{row['products']:,}", f"{row['open']:,.0f}", *cells, f"{1e3 / ms['step']:,.0f}")
                figures.setdefault(str(row["products"]), {})[name] = {k: v for k, v in row.items() if k != "kinds"}
            if given.checkout:
                step = rows["original"]["ms"]["step"]
                ratios = step / native["ms"]["step"], step / native["cold"]["step"]
                figures[str(native["products"])]["ratio"] = {"warm": ratios[0], "cold": ratios[1]}
    console.print(table)
    if given.checkout:
        line = (
            "a step of the original takes {:,.0f} times the CPU of a native one, {:,.0f} times that of its first pass"
        )
        console.print(line.format(*ratios))
    console.print(store("webshop_original" if given.checkout else "webshop", figures, keep=given.keep))


if __name__ == "__main__":
    sys.exit(main())
