"""Measure a step through `gymnasium.make` or `make_vec`, compared with a step of the bare engine.

    python -m benchmarks environments                     the bundled games and catalogue
    python -m benchmarks environments --rounds 3          faster, less precise

A random policy's walks are recorded once and then replayed in every way, alternately by walk, in one process; the
result is the minimum time of each walk. `empty caches` is measured in a new process: new queries, products and scenes.
Resets are not included. All figures are CPU time per step; those of `gymnasium.make_vec` are of a step of one of its
128 environments, beside `gymnasium.make` on the same steps.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium

import hgpo_envs  # noqa: F401 - registers the ids
from benchmarks.runner import Row, in_new_process, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hgpo_envs.engine import Engine

    Walk = tuple[str, list[str]]
    Times = dict[str, list[float]]

EPISODES = {"ALFWorld": 60, "WebShop": 250}
VECTOR = 128
WAYS = ("engine", "gym.make")


def random_walks(env_id: str, episodes: int) -> list[Walk]:
    """Choose a random admissible action; searches contain words of the task."""
    env = gymnasium.make(env_id)
    found = []
    for number in range(episodes):
        rng = random.Random(number)
        commands: list[str] = []
        done = False
        _, info = env.reset(seed=number)
        while not done:
            words = info["task"].split()
            query = " ".join(rng.sample(words, min(4, len(words))))
            commands.append(
                rng.choice(info["admissible_actions"]).replace("<your query>", query)
            )
            *_, terminated, truncated, info = env.step(commands[-1])
            done = terminated or truncated
        found.append((info["task_id"], commands))
    return found


def in_engine(engine: Engine, walk: Walk) -> float:
    """Return the seconds of a walk with the bare engine."""
    engine.start(walk[0])
    return seconds(lambda: [engine.act(command) for command in walk[1]])


def in_environment(env: gymnasium.Env[Any, Any], walk: Walk) -> float:
    """Return the seconds of a walk with an environment."""
    env.reset(options={"task": walk[0]})
    return seconds(lambda: [env.step(command) for command in walk[1]])


def played(env_id: str, walks: list[Walk], rounds: int, *names: str) -> list[Times]:
    """Measure each walk in turns, in every way that is named; return the seconds of the walks of each round."""
    env = gymnasium.make(env_id)
    engine = env.unwrapped.shared.source.engine()  # type: ignore[attr-defined]
    plays = {
        "engine": partial(in_engine, engine),
        "gym.make": partial(in_environment, env),
    }
    times: list[Times] = [{name: [] for name in names} for _ in range(rounds)]
    for each in times:
        for walk in walks:
            for name in names:
                each[name].append(plays[name](walk))
    return times


def of_a_step(walks: list[Walk], rounds: Iterable[Sequence[float]]) -> float:
    """Return the seconds of a step, by the minimum of each walk over rounds."""
    steps = sum(len(commands) for _, commands in walks)
    return sum(map(min, zip(*rounds, strict=True))) / steps


def vector(env_id: str, walks: list[Walk], rounds: int) -> tuple[float, float]:
    """Measure the first five steps of many walks in a vector environment and, alternately, in a single environment."""
    long = [(task, commands[:5]) for task, commands in walks if len(commands) > 5]
    walks = [long[number % len(long)] for number in range(VECTOR)]
    tasks = [task for task, _ in walks]
    actions = list(zip(*(commands for _, commands in walks), strict=True))
    envs = gymnasium.make_vec(env_id, num_envs=VECTOR)
    env = gymnasium.make(env_id)
    together = []
    single = []
    for _ in range(rounds):
        envs.reset(options={"task": tasks})
        together.append([seconds(partial(envs.step, each)) for each in actions])
        single.append([in_environment(env, walk) for walk in walks])
    return of_a_step(walks, together), of_a_step(walks, single)


def run(rounds: int = 9) -> Iterator[Row]:
    """Measure both benchmarks."""
    for name, episodes in EPISODES.items():
        env_id = f"HGPO/{name}-v0"
        walks = in_new_process(random_walks, env_id, episodes)
        warm = played(env_id, walks, rounds, *WAYS)
        # caches are empty in a new process, of which each way needs its own
        cold: list[Times] = []
        for _ in range(rounds):
            cold.append({})
            for way in WAYS:
                (times,) = in_new_process(played, env_id, walks, 1, way)
                cold[-1] |= times
        step = f"{name}: step through `gymnasium.make` with prompt, info and history hashes"
        for found, caches, shown in (
            (warm, "", "readme"),
            (cold, ", empty caches", "page"),
        ):
            engine, made = (
                of_a_step(walks, [times[way] for times in found]) for way in WAYS
            )
            yield Row(
                step + caches,
                made,
                "s",
                floor=("bare engine", engine),
                shown=shown,
            )
        together, single = vector(env_id, walks, 3 * rounds)
        yield Row(
            f"{name}: step in `make_vec` of {VECTOR}",
            together,
            "s",
            floor=("`gymnasium.make`", single),
        )
