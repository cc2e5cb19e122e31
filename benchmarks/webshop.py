"""Measure steps and resets of WebShop, compared with the original.

    python -m benchmarks webshop                                   the bundled catalogue
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
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from benchmarks.runner import Part, Row, seconds
from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_envs.webshop.reference.original import OriginalSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_envs.engine import Engine

    Walks = list[tuple[str, list[str]]]


def walks(source: WebShopSource, episodes: int) -> Walks:
    """Return seeded episodes as lists of commands: search, page, open, look, choose, buy."""
    choose = random.Random(1)
    engine = source.engine()
    found = []
    for _ in range(episodes):
        task = choose.choice(source.ids("all"))
        state = engine.start(task)
        words = source.task(task).instruction.split()
        commands: list[str] = []
        while not state.terminated and len(commands) < 15:
            if state.info["page_type"] == "index" or choose.random() < 0.05:
                query = choose.sample(words, min(5, len(words)))
                command = f"search[{' '.join(query)}]"
            else:
                command = choose.choice(
                    [action for action in state.actions if action.startswith("click[")]
                )
            state = engine.act(command)
            commands.append(command)
        found.append((task, commands))
    return found


def play(
    engine: Engine, episodes: Walks, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Play all commands; return the mean CPU seconds of a reset and of a step."""
    resets = []
    steps = []
    for task, commands in episodes:
        resets.append(seconds(partial(engine.start, task), clock))
        steps += [seconds(partial(engine.act, each), clock) for each in commands]
    return {"reset": fmean(resets), "step": fmean(steps)}


def process_seconds(process: int) -> float:
    """Return CPU seconds of another process, all threads (Linux)."""
    status = Path(f"/proc/{process}/stat").read_text()
    fields = status.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(
    checkout: Path | None = None,
    python: str | None = None,
    nouns: str | None = None,
    goals: Literal["human", "synthetic"] = "human",
    episodes: int = 200,
) -> Iterator[Part]:
    """Measure the bundled catalogue, or the data of the original's checkout with both (`python` has the original)."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as made:
        folder = bundled_folder()
        if checkout:
            folder = Path(made) / "catalogue"
            data = checkout / "data"
            items = next(data.glob("items_shuffle*.json"))
            attributes = next(data.glob("items_ins_v2*.json"))
            goal_texts = data / "items_human_ins.json"
            build(items, attributes, goal_texts, folder, nouns=nouns or "stand-in")
        source = WebShopSource(folder, goals=goals)
        listed = walks(source, episodes)
        # of a source of its own, whose caches are empty
        cold = play(WebShopSource(folder, goals=goals, price_seed=1).engine(), listed)
        warm = play(source.engine(), listed)
        theirs = {}
        # its clock has a resolution of 10 ms, so only means are useful
        if checkout:
            original = OriginalSource(checkout, goals=goals, python=python, nouns=nouns)
            clock = partial(process_seconds, original.process.pid)
            play(original.engine(), listed[: len(listed) // 4], clock)
            theirs = play(original.engine(), listed, clock)
            original.process.close()
        for caches, times, page in (
            ("empty caches", cold, "readme"),
            ("cached products and searches", warm, "page"),
        ):
            for what, value in times.items():
                row = Row(
                    f"WebShop: {what} of the bare engine with available actions, {caches}",
                    value,
                    "s",
                    rival=("original", theirs[what]) if theirs else None,
                    case=f"{len(source.shop.catalogue):,} products, {goals} goals",
                    shown=page if theirs and what == "step" else "",
                )
                rows.append(row)
    yield Part(rows, suffix="_original" if checkout else "")
