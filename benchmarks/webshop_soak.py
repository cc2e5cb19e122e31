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
import multiprocessing
import random
import time
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


class Player:
    """An environment that plays the listed episodes step by step."""

    def __init__(self) -> None:
        self.env = gymnasium.make("HGPO/WebShop-v0", split="all", max_steps=STEPS)
        self.tasks = len(self.env.unwrapped.shared.source.ids("all"))  # type: ignore[attr-defined]
        self.episode = -1

    def begin(self, episode: int) -> None:
        """Start an episode of the list."""
        self.choose = random.Random(episode)
        self.episode = episode
        self.step = 0
        self.digest = xxhash.xxh3_64()
        observation, self.info = self.env.reset(
            options={"task": self.choose.randrange(self.tasks)}
        )
        self._take(observation, 0.0)

    def advance(self) -> str | None:
        """Make a step; return the episode's digest at its end."""
        action = command(self.choose, self.info, self.step)
        observation, reward, terminated, truncated, self.info = self.env.step(action)
        self.step += 1
        self._take(observation, float(reward))
        return self.digest.hexdigest() if terminated or truncated else None

    def _take(self, observation: dict[str, Any], reward: float) -> None:
        observed = (
            observation["prompt"],
            self.info["page"],
            self.info["available_actions"],
            reward,
        )
        self.digest.update(repr(observed).encode("utf-8", "surrogatepass"))


def reference() -> list[str]:
    """Return the digests of all listed episodes, played sequentially."""
    player = Player()
    digests = []
    for episode in range(EPISODES):
        player.begin(episode)
        while (digest := player.advance()) is None:
            pass
        digests.append(digest)
    return digests


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
    players = [Player() for _ in range(environments)]
    choose = random.Random(f"process {number}")
    loads = []
    played = 0
    for player in players:
        player.begin(choose.randrange(EPISODES))
    while time.monotonic() - begun < seconds:
        for player in players:
            digest = player.advance()
            if digest is not None:
                played += 1
                different += digest != digests[player.episode]
                player.begin(choose.randrange(EPISODES))
        if time.monotonic() - reported > min(1.0, seconds / 20):
            reported = time.monotonic()
            loads.append(
                Load(
                    reported - begun,
                    memory_mb("Private"),
                    open_files(),
                    played,
                    different,
                )
            )
    for player in players:
        player.env.close()
    return loads


def soak(
    seconds: float, processes: int, environments: int
) -> tuple[list[list[Load]], int]:
    """Run the processes; return their reports by process, and the number of file handles left in this process."""
    digests = reference()
    resource_tracker.ensure_running()
    files = open_files()
    parts = [
        environments // processes + (number < environments % processes)
        for number in range(processes)
    ]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        reports = list(
            pool.map(partial(work, seconds, digests), range(processes), parts)
        )
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
    if (
        after - before > max(2.0, 0.02 * before)
        or last.files > first.files
        or last.different
    ):
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
