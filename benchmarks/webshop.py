"""Measure steps and resets of WebShop: CPU time by page, compared with the original.

    python -m benchmarks webshop                                   the bundled catalogue
    python -m benchmarks webshop --data DIR DIR                    built catalogues
    python -m benchmarks webshop --checkout WEBSHOP --python PYTHON [--nouns FILE]
                                                                   the original too, both on its data

Both engines play the same seeded commands and return page, state text and available actions at every step. CPU time is
that of the process (all threads), so that other programs have little effect. The commands are first played once without
measurement: the figures are those of a warm process, for the native engine, which caches products and results, and for
the original, which does not. `empty caches` is the native engine's first pass.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.runner import Part, Row
from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_envs.webshop.reference.original import OriginalSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_envs.engine import Engine

    Walks = list[tuple[str, list[str]]]

PAGES = ("index", "results", "item", "sub page", "done")


def walks(source: WebShopSource, episodes: int) -> Walks:
    """Return seeded episodes as lists of commands: search, page, open, look, choose, buy."""
    choose = random.Random(1)
    engine = source.engine()
    ids = source.ids("all")
    found = []
    for _ in range(episodes):
        task = ids[choose.randrange(len(ids))]
        state = engine.start(task)
        words = source.task(task).instruction.split()
        commands: list[str] = []
        while not state.terminated and len(commands) < 15:
            if state.info["page_type"] == "index" or choose.random() < 0.05:
                command = (
                    f"search[{' '.join(choose.sample(words, min(5, len(words))))}]"
                )
            else:
                command = choose.choice(
                    [action for action in state.actions if action.startswith("click[")]
                )
            state = engine.act(command)
            commands.append(command)
        found.append((task, commands))
    return found


def play(
    engine: Engine,
    episodes: Walks,
    clock: Callable[[], float],
    kinds: list[str],
) -> dict[str, float]:
    """Play all commands; return the mean CPU seconds of a reset, a step, and a step to each page type.

    The page types are added to `kinds` if it is empty, and taken from it otherwise: the original does not say them.
    """
    times = defaultdict(list)
    taken = []
    known = bool(kinds)
    for task, commands in episodes:
        begun = clock()
        engine.start(task)
        times["reset"].append(clock() - begun)
        for command in commands:
            begun = clock()
            state = engine.act(command)
            taken.append(clock() - begun)
            if not known:
                page = state.info.get("page_type", "")
                kinds.append(page if page in PAGES else "sub page")
    times["step"] = taken
    for kind, seconds in zip(kinds, taken, strict=False):
        times[kind].append(seconds)
    return {what: statistics.fmean(each) for what, each in times.items()}


def process_clock(process: int) -> Callable[[], float]:
    """Return CPU seconds of another process, all threads (Linux)."""
    path = Path(f"/proc/{process}/stat")
    tick = os.sysconf("SC_CLK_TCK")

    def clock() -> float:
        fields = path.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / tick

    return clock


def data_of(checkout: Path, folder: Path, nouns: str | None) -> Path:
    """Build a catalogue of the checkout's data."""
    data = checkout / "data"
    items = next(data.glob("items_shuffle*.json"))
    attributes = next(data.glob("items_ins_v2*.json"))
    build(
        items,
        attributes,
        data / "items_human_ins.json",
        folder / "catalogue",
        nouns=nouns or "stand-in",
    )
    return folder / "catalogue"


def run(
    data: tuple[Path, ...] = (),
    checkout: Path | None = None,
    python: str | None = None,
    nouns: str | None = None,
    goals: Literal["human", "synthetic"] = "human",
    episodes: int = 200,
) -> Iterator[Part]:
    """Measure catalogues, or the data of the original's checkout with both engines (`python` has the original)."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as made:
        folders = data or (bundled_folder(),)
        if checkout:
            folders = (data_of(checkout, Path(made), nouns),)
        for folder in folders:
            source = WebShopSource(folder, goals=goals)
            listed = walks(source, episodes)
            # its caches are empty
            fresh = WebShopSource(folder, goals=goals, price_seed=1)
            kinds: list[str] = []
            cold = play(fresh.engine(), listed, time.process_time, kinds)
            warm = play(source.engine(), listed, time.process_time, kinds)
            theirs = {}
            # its clock has a resolution of 10 ms, so only means are useful
            if checkout:
                original = OriginalSource(
                    checkout, goals=goals, python=python, nouns=nouns
                )
                clock = process_clock(original.process.pid)
                play(original.engine(), listed[: len(listed) // 4], clock, kinds)
                theirs = play(original.engine(), listed, clock, kinds)
                original.process.close()
            for caches, times in (
                ("empty caches", cold),
                ("cached products and searches", warm),
            ):
                for what, value in times.items():
                    title = f"WebShop: {what} of the bare engine with available actions, {caches}"
                    rival = ("original", theirs[what]) if what in theirs else None
                    shown = ""
                    if rival and what == "step":
                        shown = "readme" if times is cold else "page"
                    case = f"{len(source.shop.catalogue):,} products, {goals} goals"
                    rows.append(
                        Row(
                            title,
                            value,
                            "s",
                            rival=rival,
                            case=case,
                            shown=shown,
                        )
                    )
    yield Part(rows, suffix="_original" if checkout else "")
