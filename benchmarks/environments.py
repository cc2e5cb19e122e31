"""Measure a step through `gymnasium.make` compared with a step of the bare engine, and the parts of the difference.

    python benchmarks/environments.py                     the bundled games and catalogue
    python benchmarks/environments.py --rounds 3          faster, less precise

A random policy's walks are recorded once and then replayed in every way, alternately by walk, in one process; the
result is the minimum time of each walk. `first` is measured in a new process with empty caches: new queries, products
and scenes. Resets are not included. All figures are CPU microseconds per step.

engine            the bare engine: state text and admissible actions
gym.make          the environment in Gymnasium's wrappers, with prompt, info and history hashes
vector            `gymnasium.make_vec` with 128 environments, a step of one of them; `single` is `gym.make` on its steps
wrappers          Gymnasium's wrappers around an environment that does nothing
prompt            the package's template; `user's prompt` is the same template in the sandbox for custom templates
info, hashes      the other parts of a step

The last rows are ratios of figures of the same run, which a loaded machine changes less.
"""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
from record import in_new_process, make_parser, print_table, seconds, store

import hgpo_envs  # noqa: F401 - registers the ids
from hgpo_envs.episode import Episode, settings_for
from hgpo_envs.hashing import Chain, text_hash
from hgpo_envs.spaces import UnicodeText

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.env import TextEnv

    Walk = tuple[str, list[str]]
    Play = Callable[[Walk], float]

EPISODES = {"HGPO/ALFWorld-v0": 60, "HGPO/WebShop-v0": 250}
VECTOR = 128
REPEATS = 3
RATIOS = (("gym.make", "engine"), ("gym.make, first", "engine, first"), ("vector", "single"))


class Idle(gymnasium.Env[int, str]):
    """An environment that does nothing, to measure Gymnasium. Its wrappers check spaces only in the first two steps."""

    observation_space = gymnasium.spaces.Discrete(1)
    action_space = UnicodeText(100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return 0, {}

    def step(self, action: str) -> tuple[int, float, bool, bool, dict[str, Any]]:  # noqa: ARG002 - Gymnasium's signature
        return 0, 0.0, False, False, {}


def random_walks(env_id: str) -> list[Walk]:
    """Choose a random admissible action; searches contain words of the task."""
    env, found = gymnasium.make(env_id), list[Any]()
    for number in range(EPISODES[env_id]):
        rng, commands, done = random.Random(number), list[str](), False
        _, info = env.reset(seed=number)
        while not done:
            words = info["task"].split()
            query = " ".join(rng.sample(words, min(4, len(words))))
            commands.append(rng.choice(info["admissible_actions"]).replace("<your query>", query))
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


def part(episode: Episode, work: Callable[[Episode], object]) -> Play:
    """Return a function that plays walks and measures one part of a step with repetitions."""

    def play(walk: Walk) -> float:
        episode.start(walk[0])
        taken = 0.0
        for command in walk[1]:
            episode.act(command)
            taken += seconds(lambda: [work(episode) for _ in range(REPEATS)])
        return taken / REPEATS

    return play


def ways(env_id: str, template: Path) -> dict[str, Play]:
    """Return all ways to play a walk."""
    made = gymnasium.make(env_id)
    env: TextEnv = made.unwrapped  # type: ignore[assignment]
    source, settings, chain = env.shared, env.episode.settings, Chain()
    template.write_text(settings.template.text, "utf-8")
    user = settings_for(source.source.name, prompt_template=str(template), max_steps=settings.max_steps)
    idle = gymnasium.wrappers.OrderEnforcing(gymnasium.wrappers.PassiveEnvChecker(Idle()))
    return {
        "engine": in_engine(source.source.engine()),
        "gym.make": in_environment(made),
        "wrappers": in_environment(idle),
        "prompt": part(Episode(source, settings), Episode.prompt),
        "user's prompt": part(Episode(source, user), Episode.prompt),
        "info": part(Episode(source, settings), Episode.info),
        "hashes": part(Episode(source, settings), lambda episode: chain.advance(text_hash(episode.state.text))),
        "clock": part(Episode(source, settings), lambda _: None),
    }


def again(env_id: str, walks: list[Walk], rounds: int) -> dict[str, float]:
    """Measure all ways alternately, walk by walk; return the minimum of the rounds."""
    steps = sum(len(commands) for _, commands in walks)
    with tempfile.TemporaryDirectory() as folder:
        plays = ways(env_id, Path(folder) / "mine.j2")
    least = {name: [float("inf")] * len(walks) for name in plays}
    for _ in range(rounds):
        for number, walk in enumerate(walks):
            for name, play in plays.items():
                least[name][number] = min(least[name][number], play(walk))
    figures = {name: 1e6 * sum(seconds) / steps for name, seconds in least.items()}
    clock = figures.pop("clock")
    return {
        name: value - clock * (name in ("prompt", "user's prompt", "info", "hashes")) for name, value in figures.items()
    }


def vector(env_id: str, walks: list[Walk], rounds: int) -> dict[str, float]:
    """Measure the first five steps of many walks in a vector environment and, alternately, in a single environment."""
    long = [(task, commands[:5]) for task, commands in walks if len(commands) > 5]
    walks = [long[number % len(long)] for number in range(VECTOR)]
    envs, play = gymnasium.make_vec(env_id, num_envs=VECTOR), in_environment(gymnasium.make(env_id))
    least, single = [float("inf")] * 5, [float("inf")] * VECTOR
    for _ in range(rounds):
        envs.reset(options={"task": [task for task, _ in walks]})
        for step in range(len(least)):
            actions = [commands[step] for _, commands in walks]
            least[step] = min(least[step], seconds(partial(envs.step, actions)))
        single = list(map(min, single, map(play, walks)))
    return {name: 1e6 * sum(seconds) / 5 / VECTOR for name, seconds in (("vector", least), ("single", single))}


def first(env_id: str, walks: list[Walk], rounds: int) -> dict[str, float]:
    """Measure engine and environment with empty caches, each round in a new process; return the minimum."""
    steps = sum(len(commands) for _, commands in walks)
    figures = {}
    for name in ("engine", "gym.make"):
        taken = [in_new_process(met_first, env_id, walks, name) for _ in range(rounds)]
        figures[f"{name}, first"] = 1e6 * sum(map(min, zip(*taken, strict=True))) / steps
    return figures


def met_first(env_id: str, walks: list[Walk], name: str) -> list[float]:
    """Measure each walk in a new process."""
    made = gymnasium.make(env_id)
    source = made.unwrapped.shared.source  # type: ignore[attr-defined]
    play = in_engine(source.engine()) if name == "engine" else in_environment(made)
    return list(map(play, walks))


def main() -> None:
    """Measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    rounds = given.rounds
    figures: dict[str, dict[str, float]] = {}
    for env_id in EPISODES:
        walks = in_new_process(random_walks, env_id)
        found = first(env_id, walks, rounds) | again(env_id, walks, rounds)
        found |= vector(env_id, walks, 3 * rounds)
        found |= {f"{name} / {reference}": found[name] / found[reference] for name, reference in RATIOS}
        figures[env_id] = {name: round(value, 2) for name, value in found.items()}
    rows = ({"CPU a step, µs": name} | {env_id: figures[env_id][name] for env_id in EPISODES} for name in found)
    print_table(rows, title="Environments")
    print(store("environments", figures, keep=given.keep))


if __name__ == "__main__":
    main()
