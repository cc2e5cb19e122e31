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

import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from record import make_parser, print_table, store

from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_envs.webshop.reference.original import OriginalSource

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from hgpo_envs.engine import Engine

    Walks = list[tuple[str, list[str]]]

PAGES = ("index", "results", "item", "sub page", "done")


def walks(source: WebShopSource, episodes: int) -> Walks:
    """Return seeded episodes as lists of commands: search, page, open, look, choose, buy."""
    choose, found = random.Random(1), []
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


def play(engine: Engine, episodes: Walks, clock: Callable[[], float], kinds: list[str] | None = None) -> dict[str, Any]:
    """Play all commands; return CPU milliseconds of a reset, a step, and a step to each page type."""
    resets, steps, names = list[float](), list[float](), list[str]()
    for task, commands in episodes:
        begun = clock()
        engine.start(task)
        resets.append(clock() - begun)
        for command in commands:
            begun = clock()
            state = engine.act(command)
            steps.append(clock() - begun)
            page = state.info.get("page_type")
            names.append(page if page in PAGES else "sub page")
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


def measure_native(folder: Path, goals: str, episodes: int) -> tuple[dict[str, Any], Walks]:
    """Open a catalogue, and play with empty and with filled caches."""
    begun = time.process_time()
    source = WebShopSource(folder, goals=goals)  # type: ignore[arg-type]
    opened = time.process_time() - begun
    listed = walks(source, episodes)
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
    parser = make_parser(__doc__)
    parser.add_argument("--data", action="append", type=Path, help="a built catalogue; may be repeated")
    parser.add_argument("--checkout", type=Path, help="the original's checkout, with data and index")
    parser.add_argument("--python", help="interpreter with the original installed")
    parser.add_argument("--nouns", help="file of nouns that replaces spaCy")
    parser.add_argument("--goals", choices=("human", "synthetic"), default="human")
    parser.add_argument("--episodes", type=int, default=200)
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        if given.checkout:
            folders = [data_of(given.checkout, Path(made), given.nouns)]
        else:
            folders = given.data or [bundled_folder()]
        for folder in folders:
            native, listed = measure_native(folder, given.goals, given.episodes)
            rows = {"native, cold": {**native, "ms": native["cold"]}, "native": native}
            if given.checkout:
                rows["original"] = {"products": native["products"], **measure_original(given, listed, native["kinds"])}
            found = {name: {k: v for k, v in row.items() if k != "kinds"} for name, row in rows.items()}
            title = f"{native['products']:,} products, CPU ms, {given.goals} goals, {given.episodes} episodes"
            shown = ({"engine": name, "open": row["open"], **row["ms"]} for name, row in found.items())
            print_table(shown, title=title)
            if given.checkout:
                step = found["original"]["ms"]["step"]
                found["ratio"] = {"warm": step / native["ms"]["step"], "cold": step / native["cold"]["step"]}
                print("step of the original / native step:", found["ratio"])
            figures[str(native["products"])] = found
    print(store("webshop_original" if given.checkout else "webshop", figures, keep=given.keep))


if __name__ == "__main__":
    main()
