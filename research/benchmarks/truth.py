"""Measure truths a second beside rollouts that are played one by one.

    python -m research.benchmarks.truth                    ALFWorld and WebShop, three policies each, M = 16
    python -m research.benchmarks.truth --tasks 8 --group-size 64

`truth` is `hgpo_research.truth` for all steps of a group of rollouts of each task, in one process. `plain` is
what it replaces: for each step, M forks of the episode, one response drawn from the policy's distribution at a time,
nothing remembered but what the policy itself caches. Both are in the same process with the same policy; times are CPU
seconds for 10,000 truths. `at that error` is the time of so many plain rollouts that their error is that of `truth`:
the square of an error falls with the number of rollouts; `ratio` is that time beside `truth`. `known` is
the share of rollout steps that led to a node that was known already.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.runner import make_parser, store
from hgpo_envs.episode import Episode
from hgpo_research.tabular.report import markdown_table
from hgpo_research.truth import Budget, Rewards
from hgpo_research.truth.graph import Graph
from hgpo_research.truth.places import Step
from hgpo_research.truth.task import task_truth, without_collector
from hgpo_train.policies.base import Request
from hgpo_train.rollout import PolicyContext, make_policy, open_env

if TYPE_CHECKING:
    from hgpo_train.rollout import EnvHandle

POLICIES: Final[dict[str, list[dict[str, float]]]] = {
    "HGPO/ALFWorld-v0": [{"skill": 0.4}, {"skill": 0.6}, {"skill": 1.0}],
    "HGPO/WebShop-v0": [
        {"skill": 0.6},
        {"skill": 1.0},
        {"temperature": 0.5},
    ],
}
PLAIN_S: Final = 3.0
REWARDS: Final = Rewards(reward_scale=1)


def policy_for(handle: EnvHandle, options: dict[str, float]) -> Any:  # noqa: ANN401 - a `KnownPolicy`
    """Return a softmax policy that reads two past steps, with empty caches."""
    return make_policy(
        "softmax",
        PolicyContext(handle.shared.source.name, "command", {"memory": 2, **options}),
    )


def act(episode: Episode, policy: Any, rng: random.Random) -> Step:  # noqa: ANN401
    """Play one step of an episode."""
    now = episode.task, episode.state, None, episode.prompt, episode.history
    (found,) = policy.distributions([Request(0, "", 0, 0, episode.steps_taken, *now)])
    text = episode.state.text
    response = found.draw(rng.random())
    episode.act(response)
    return Step(
        text,
        episode.action,
        response,
        episode.action_valid,
        episode.state.reward,
    )


def play(episode: Episode, policy: Any, rng: random.Random) -> list[Step]:  # noqa: ANN401
    """Play an episode to its end and return its steps."""
    steps = []
    while not episode.done:
        steps.append(act(episode, policy, rng))
    return steps


def started(handle: EnvHandle, task: str) -> Episode:
    """Return an episode at the start of a task."""
    episode = Episode(handle.shared, handle.settings)
    episode.start(task)
    return episode


def measure(
    env_id: str,
    options: dict[str, float],
    tasks: int,
    group_size: int,
    rollouts: int,
) -> dict[str, float]:
    """Measure one policy."""
    handle = open_env(env_id, action_format="command")
    rng = random.Random(1)
    groups = {}
    for task in handle.tasks[:tasks]:
        start = started(handle, task)
        policy = policy_for(handle, options)
        groups[task] = [play(start.fork(), policy, rng) for _ in range(group_size)]

    policy = policy_for(handle, options)
    steps = 0
    nodes = 0
    errors: list[float] = []
    began = time.process_time()
    for number, (task, group) in enumerate(groups.items()):
        with without_collector():
            graph = Graph(handle.shared, handle.settings, policy, REWARDS, task)
            columns, count = task_truth(
                graph, group, REWARDS, Budget(rollouts=rollouts), [number]
            )
        steps += count
        nodes += graph.nodes
        errors += columns["advantage_error"]
    seconds = (time.process_time() - began) / len(errors)

    plain_seconds, plain_error = plain_truths(
        handle, policy_for(handle, options), list(groups), rollouts
    )
    error = float(np.sqrt(np.mean(np.square(errors))))
    at_that_error = plain_seconds * (plain_error / error) ** 2
    won = np.mean(
        [rollout[-1].reward for group in groups.values() for rollout in group]
    )
    return {
        "mean reward": round(float(won), 3),
        "truths": len(errors),
        "truths/s": round(1 / seconds, 1),
        "10k truths, s": round(10_000 * seconds, 1),
        "error": round(error, 4),
        "steps/s": round(steps / seconds / len(errors)),
        "known": round(max(0.0, 1 - nodes / max(steps, 1)), 3),
        "plain, s": round(10_000 * plain_seconds, 1),
        "plain error": round(plain_error, 4),
        "at that error, s": round(10_000 * at_that_error, 1),
        "ratio": round(at_that_error / seconds, 1),
    }


def plain_truths(
    handle: EnvHandle,
    policy: Any,  # noqa: ANN401
    tasks: list[str],
    rollouts: int,
) -> tuple[float, float]:
    """Return the CPU seconds of a truth by separate rollouts from each step, and the error of its advantages.

    An advantage is r + γ V' - V, so its squared error is γ² that of V' and that of V.
    """
    gamma = REWARDS.gamma
    rng = random.Random(2)
    squares: list[float] = []
    began = time.process_time()
    while time.process_time() - began < PLAIN_S:
        episode = started(handle, rng.choice(tasks))
        variances = []
        while not episode.done:
            played = [play(episode.fork(), policy, rng) for _ in range(rollouts)]
            returns = [
                sum(gamma**n * step.reward for n, step in enumerate(steps))
                for steps in played
            ]
            variances.append(np.var(returns, ddof=1) / rollouts)
            act(episode, policy, rng)
        squares += [
            now + gamma**2 * later
            for now, later in zip(variances, [*variances[1:], 0.0], strict=True)
        ]
    return (time.process_time() - began) / len(squares), float(
        np.sqrt(np.mean(squares))
    )


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--rollouts", type=int, default=16)
    given = parser.parse_args()
    figures = {}
    for env_id, policies in POLICIES.items():
        for options in policies:
            name = f"{env_id} " + ", ".join(
                f"{key}={value:g}" for key, value in options.items()
            )
            figures[name] = measure(
                env_id,
                options,
                given.tasks,
                given.group_size,
                given.rollouts,
            )
    heads = ["policy", *next(iter(figures.values()))]
    rows = [[name, *map(str, found.values())] for name, found in figures.items()]
    print(
        f"Truths of {given.group_size} rollouts a task, one process\n\n{markdown_table(heads, rows)}"
    )
    print(store("truth", figures, keep=given.keep))
