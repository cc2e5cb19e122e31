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
    from collections.abc import Callable, Iterator

    Walk = tuple[str, list[str]]
    Play = Callable[[Walk], float]

EPISODES = {"ALFWorld": 60, "WebShop": 250}
VECTOR = 128


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


def in_engine(engine: Any) -> Play:  # noqa: ANN401 - the engine of any benchmark
    """Return a function that plays walks with the bare engine."""

    def play(walk: Walk) -> float:
        engine.start(walk[0])
        return seconds(lambda: [engine.act(command) for command in walk[1]])

    return play


def in_environment(env: gymnasium.Env[Any, Any]) -> Play:
    """Return a function that plays walks with a Gymnasium environment."""

    def play(walk: Walk) -> float:
        env.reset(options={"task": walk[0]})
        return seconds(lambda: [env.step(command) for command in walk[1]])

    return play


def replayed(env_id: str, walks: list[Walk], rounds: int) -> dict[str, float]:
    """Measure both ways alternately, walk by walk; return the seconds of a step, from the minima of the rounds."""
    made = gymnasium.make(env_id)
    engine = made.unwrapped.shared.source.engine()  # type: ignore[attr-defined]
    plays = {"engine": in_engine(engine), "gym.make": in_environment(made)}
    least = {name: [float("inf")] * len(walks) for name in plays}
    for _ in range(rounds):
        for number, walk in enumerate(walks):
            for name, play in plays.items():
                least[name][number] = min(least[name][number], play(walk))
    return {name: sum(times) / steps_of(walks) for name, times in least.items()}


def steps_of(walks: list[Walk]) -> int:
    """Return the number of steps."""
    return sum(len(commands) for _, commands in walks)


def vector(env_id: str, walks: list[Walk], rounds: int) -> tuple[float, float]:
    """Measure the first five steps of many walks in a vector environment and, alternately, in a single environment."""
    long = [(task, commands[:5]) for task, commands in walks if len(commands) > 5]
    walks = [long[number % len(long)] for number in range(VECTOR)]
    envs = gymnasium.make_vec(env_id, num_envs=VECTOR)
    play = in_environment(gymnasium.make(env_id))
    together = []
    single = []
    for _ in range(rounds):
        envs.reset(options={"task": [task for task, _ in walks]})
        actions = [[commands[step] for _, commands in walks] for step in range(5)]
        together.append([seconds(partial(envs.step, each)) for each in actions])
        single.append(list(map(play, walks)))
    steps = 5 * VECTOR
    return sum(map(min, zip(*together, strict=True))) / steps, sum(
        map(min, zip(*single, strict=True))
    ) / steps


def first_time(env_id: str, walks: list[Walk], name: str) -> list[float]:
    """Measure each walk, in a new process with empty caches."""
    made = gymnasium.make(env_id)
    source = made.unwrapped.shared.source  # type: ignore[attr-defined]
    play = in_engine(source.engine()) if name == "engine" else in_environment(made)
    return list(map(play, walks))


def run(rounds: int = 9) -> Iterator[Row]:
    """Measure both benchmarks."""
    for name, episodes in EPISODES.items():
        env_id = f"HGPO/{name}-v0"
        walks = in_new_process(random_walks, env_id, episodes)
        cold = {}
        for way in ("engine", "gym.make"):
            taken = [
                in_new_process(first_time, env_id, walks, way) for _ in range(rounds)
            ]
            cold[way] = sum(map(min, zip(*taken, strict=True))) / steps_of(walks)
        warm = replayed(env_id, walks, rounds)
        step = f"{name}: step through `gymnasium.make` with prompt, info and history hashes"
        for times, caches, shown in (
            (warm, "", "readme"),
            (cold, ", empty caches", "page"),
        ):
            yield Row(
                step + caches,
                times["gym.make"],
                "s",
                floor=("bare engine", times["engine"]),
                shown=shown,
            )
        together, single = vector(env_id, walks, 3 * rounds)
        yield Row(
            f"{name}: step in `make_vec` of {VECTOR}",
            together,
            "s",
            floor=("`gymnasium.make`", single),
        )
