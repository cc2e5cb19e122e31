"""Soak test of WebShop in many processes: constant memory, no open files left, and the same results.

    python -m benchmarks webshop_soak --minutes 10 --processes 8 --environments 64

A list of seeded episodes is played once in one process. Each process then plays the list once, which fills its caches,
and draws from it afterwards with several interleaved environments. Texts, actions and rewards of every episode are
compared with those of the single process.
Fails if an episode differs, memory grows by more than 2% (and 2 MB) after the first fifth of the time, or file handles
remain open.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import random
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import gymnasium
import xxhash

import hgpo_envs
from benchmarks.runner import Row, memory_mb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import SupportsFloat

EPISODES = 400
STEPS = 12
MARK = 0.2
"""Fraction of the time after which memory should be constant."""

gymnasium.register_envs(hgpo_envs)


@dataclass(frozen=True)
class Load:
    """A periodic report of a process."""

    seconds: float
    private_mb: float
    files: int
    episodes: int
    different: int


def command(choose: random.Random, info: dict[str, Any], step: int) -> str:
    """Return a seeded action: first a search with words of the instruction, then mostly admissible actions."""
    words = info["task"].split()
    if step == 0 or choose.random() < 0.08:
        return f"search[{' '.join(choose.sample(words, min(4, len(words))))}]"
    offered = [
        action for action in info["admissible_actions"] if action.startswith("click[")
    ]
    return (
        choose.choice(offered)
        if offered and choose.random() < 0.97
        else "click[nowhere]"
    )


def make_env() -> gymnasium.Env[Any, Any]:
    """Return an environment of an episode."""
    return gymnasium.make("HGPO/WebShop-v0", split="all", max_steps=STEPS)


def played(env: gymnasium.Env[Any, Any], episode: int) -> Iterator[str]:
    """Play an episode of the list, step by step; return the digest of what was observed so far."""
    choose = random.Random(episode)
    tasks = env.unwrapped.shared.source.ids("all")  # type: ignore[attr-defined]
    digest = xxhash.xxh3_64()
    observation, info = env.reset(options={"task": choose.randrange(len(tasks))})
    reward: SupportsFloat = 0.0
    ended = False
    for step in itertools.count():
        observed = (
            observation["prompt"],
            info["page"],
            info["available_actions"],
            float(reward),
        )
        digest.update(repr(observed).encode("utf-8", "surrogatepass"))
        yield digest.hexdigest()
        if ended:
            return
        action = command(choose, info, step)
        observation, reward, terminated, truncated, info = env.step(action)
        ended = terminated or truncated


def reference() -> list[str]:
    """Return the digests of all listed episodes, played sequentially."""
    env = make_env()
    return [deque(played(env, episode), 1)[0] for episode in range(EPISODES)]


def endless(
    env: gymnasium.Env[Any, Any], choose: random.Random, digests: list[str]
) -> Iterator[bool | None]:
    """Play episodes drawn from the list, step by step; at the end of each, return whether it differs."""
    while True:
        episode = choose.randrange(EPISODES)
        digest = ""
        for digest in played(env, episode):  # noqa: B007 - the last one is read
            yield None
        yield digest != digests[episode]


def open_files() -> int:
    """Return the number of open file handles of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def work(
    seconds: float, digests: list[str], number: int, environments: int
) -> list[Load]:
    """Play a part of the environments until the time is over; return reports of about every second."""
    different = sum(
        found != known for found, known in zip(reference(), digests, strict=True)
    )
    begun = reported = time.monotonic()
    choose = random.Random(f"process {number}")
    players = [endless(make_env(), choose, digests) for _ in range(environments)]
    loads = []
    episodes = 0
    while time.monotonic() - begun < seconds:
        ends = [end for end in map(next, players) if end is not None]
        episodes += len(ends)
        different += sum(ends)
        if time.monotonic() - reported > min(1.0, seconds / 20):
            reported = time.monotonic()
            load = Load(
                reported - begun,
                memory_mb("Private"),
                open_files(),
                episodes,
                different,
            )
            loads.append(load)
    return loads


def soak(
    seconds: float, processes: int, environments: int
) -> tuple[list[list[Load]], int]:
    """Run the processes; return their reports by process, and the number of file handles left in this process."""
    digests = reference()
    resource_tracker.ensure_running()
    files = open_files()
    parts = [len(range(number, environments, processes)) for number in range(processes)]
    play = partial(work, seconds, digests)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        reports = list(pool.map(play, range(processes), parts))
    del pool
    gc.collect()
    return reports, open_files() - files


def memory(loads: list[Load], seconds: float) -> tuple[float, float]:
    """Return the private memory of a process early and late, in MB.

    The program ends if memory or open files grew, or an episode differs.
    """
    settled = [load for load in loads if load.seconds >= MARK * seconds]
    third = max(1, len(settled) // 3)
    before = fmean(load.private_mb for load in settled[:third])
    after = fmean(load.private_mb for load in settled[-third:])
    first = settled[0]
    last = settled[-1]
    grown = after - before > max(2.0, 0.02 * before) or last.files > first.files
    if grown or last.different:
        raise SystemExit(
            f"expected constant memory and files, and no different episode; received {first}, then {last}"
        )
    return before, after


def run(
    minutes: float = 10.0, processes: int = 8, environments: int = 64
) -> Iterator[Row]:
    """Play `environments` environments in processes."""
    seconds = minutes * 60
    reports, left = soak(seconds, processes, environments)
    if left > 0:
        raise SystemExit(f"expected no open files of the processes, received {left}")
    grown = [memory(loads, seconds) for loads in reports]
    before, after = map(fmean, zip(*grown, strict=True))
    episodes = sum(loads[-1].episodes for loads in reports)
    what = f"WebShop: {minutes:g} minutes in {processes} processes"
    yield Row(
        what,
        episodes,
        "episodes",
        note="0 differ from a single process",
        shown="page",
    )
    yield Row(f"{what}: memory of each, late", after, "MB", floor=("early", before))
