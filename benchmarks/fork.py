"""Measure forks and keys of engines, episodes and environments beside copies, which replay the commands.

    python benchmarks/fork.py                     the bundled games and catalogue
    python benchmarks/fork.py --branches 10000    more random branches

The state of each branch is that of a random walk of 1 to 20 steps. All ways are measured at the same states,
alternately; the result is the median over branches, in CPU microseconds.
"""

from __future__ import annotations

import argparse
import copy
import pickle
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

import gymnasium
from record import add_keep, store
from rich.console import Console
from rich.table import Table

import hgpo_envs  # noqa: F401 - registers the ids

if TYPE_CHECKING:
    from collections.abc import Callable

ENVS = ("HGPO/ALFWorld-v0", "HGPO/WebShop-v0")
REPEATS = 20


def walked(env: Any, seed: int) -> None:  # noqa: ANN401 - a `TextEnv`
    """Play a random walk that has not ended."""
    rng = random.Random(seed)
    _, info = env.reset(seed=seed)
    for _ in range(rng.randint(1, 20)):
        action = rng.choice(info["admissible_actions"]).replace("<your query>", "red shoe")
        if action == "click[buy now]":
            continue
        *_, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            env.reset(seed=seed)
            return


def ways(env: Any) -> dict[str, Callable[[], object]]:  # noqa: ANN401 - a `TextEnv`
    """Return everything that is measured."""
    episode, engine = env.episode, env.episode.engine
    return {
        "engine.fork": engine.fork,
        "engine.key": engine.key,
        "episode.fork": episode.fork,
        "episode.key": episode.key,
        "env.fork": env.fork,
        "copy.deepcopy (replays)": lambda: copy.deepcopy(env),
        "pickle (replays)": lambda: pickle.loads(pickle.dumps(env)),  # noqa: S301 - our own
    }


def measure(env_id: str, branches: int) -> dict[str, float]:
    """Return the median CPU microseconds of every way."""
    env = gymnasium.make(env_id, max_steps=50).unwrapped
    found: dict[str, list[float]] = {}
    for seed in range(branches):
        walked(env, seed)
        for name, way in ways(env).items():
            repeats = 1 if "replays" in name else REPEATS
            began = time.process_time_ns()
            for _ in range(repeats):
                way()
            found.setdefault(name, []).append((time.process_time_ns() - began) / 1000 / repeats)
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, default=300)
    add_keep(parser)
    given = parser.parse_args()
    figures = {env_id: measure(env_id, given.branches) for env_id in ENVS}
    table = Table("CPU, µs", *ENVS, title="Forks and copies")
    for name in next(iter(figures.values())):
        table.add_row(name, *(f"{found[name]:.1f}" for found in figures.values()))
    console = Console()
    console.print(table)
    console.print(store("fork", figures, keep=given.keep))


if __name__ == "__main__":
    main()
