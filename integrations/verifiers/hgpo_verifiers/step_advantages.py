"""Rewards of rollouts, and advantages of steps within the group of a task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import polars as pl
import verifiers as vf

from hgpo_train.advantages import compute, registry
from hgpo_verifiers.step_table import STEPS, group_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class StepRubric(vf.Rubric):
    """The environment's own reward per rollout, and an estimator's advantage per step.

    Args:
        estimator: The estimator.
        parameters: Its parameters.

    Raises:
        InputError: The estimator is unknown.
    """

    def __init__(self, estimator: str, parameters: Mapping[str, Any]) -> None:
        registry.get(estimator)
        self._estimator = estimator
        self._parameters = dict(parameters)
        super().__init__(funcs=[episode_return], weights=[1.0])
        for metric in (won, score, invalid_actions):
            self.add_metric(metric)

    async def score_group(self, states: list[Any]) -> None:
        """Score the rollouts of a task, and give each step its advantage; steps of aborted rollouts have 0."""
        rows = [state[STEPS] for state in states]
        found = await asyncio.to_thread(step_advantages, rows, self._estimator, self._parameters)
        for state, values in zip(states, found, strict=True):
            for step, value in zip(state["trajectory"], values, strict=False):
                step["advantage"] = value
        await super().score_group(states)


def step_advantages(
    rollouts: Sequence[Sequence[Mapping[str, Any]]], estimator: str, parameters: Mapping[str, Any]
) -> list[list[float]]:
    """Return the advantages of the steps of each rollout of a task.

    Args:
        rollouts: The rows of each rollout.
        estimator: The estimator.
        parameters: Its parameters.
    """
    rows = [row for rollout in group_rows(rollouts, 0) for row in rollout]
    if not rows:
        return [[] for _ in rollouts]
    steps = pl.DataFrame(rows, infer_schema_length=None)
    table = (
        compute(steps, estimator, **parameters).select("trajectory", "step", "advantage").collect(engine="in-memory")
    )
    found = {(trajectory, step): value for trajectory, step, value in table.iter_rows()}
    return [[found[row["trajectory"], row["step"]] or 0.0 for row in rollout] for rollout in group_rows(rollouts, 0)]


def episode_return(state: Any) -> float:  # noqa: ANN401 - verifiers' State
    """Return the sum of the rewards of a rollout's steps."""
    return float(sum(step["reward"] or 0.0 for step in state["trajectory"]))


def won(state: Any) -> float:  # noqa: ANN401
    """Return 1 if the task was solved."""
    return float(bool(_last(state).get("won")))


def score(state: Any) -> float:  # noqa: ANN401
    """Return the benchmark's score."""
    return float(_last(state).get("score") or 0.0)


def invalid_actions(state: Any) -> float:  # noqa: ANN401
    """Return the number of steps with an invalid action."""
    return float(sum(not step["extras"].get("action_valid", True) for step in state["trajectory"]))


def _last(state: Any) -> Mapping[str, Any]:  # noqa: ANN401
    rows: list[dict[str, Any]] = state.get(STEPS) or [{}]
    return rows[-1]
