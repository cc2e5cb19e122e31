"""Informative groups: groups whose trajectories have different outcomes, so their advantages are not all zero.

The outcome corresponds to the column from which the estimator reads rewards
(`hgpo_train.advantages.Parameters.reward`).

Source: dynamic sampling of DAPO (arXiv 2503.14476), Eq. 11.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_train.rollout.failures import FailedGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_train.rollout.group_scheduler import Key

OUTCOMES: Final[Mapping[str, Callable[[Sequence[dict[str, Any]]], float | bool]]] = {
    "reward": lambda rows: math.fsum(row["reward"] for row in rows),
    "success": lambda rows: rows[-1]["won"],
    "score": lambda rows: rows[-1]["score"],
}
"""The outcome of a trajectory, computed from its rows in the order of steps."""

OUTCOME_EXPRESSIONS: Final[Mapping[str, pl.Expr]] = {
    "reward": pl.col("episode_return").first(),
    "success": pl.col("won").sort_by("step").last(),
    "score": pl.col("score").sort_by("step").last(),
}
"""The outcome of a trajectory, aggregated from its rows in a step table."""


def groups_with_mixed_outcomes(steps: pl.LazyFrame, outcome: str) -> pl.LazyFrame:
    """Select the groups of a step table whose trajectories have different outcomes. Aborted ones are ignored.

    Args:
        steps: A step table.
        outcome: A key of `OUTCOME_EXPRESSIONS`.

    Returns:
        A frame with the columns ``iteration``, ``task_id`` and ``group``.
    """
    group = ("iteration", "task_id", "group")
    trajectories = steps.group_by(*group, "trajectory").agg(
        OUTCOME_EXPRESSIONS[outcome].alias("end"), pl.col("aborted").any()
    )
    ends = trajectories.filter(~pl.col("aborted")).group_by(group).agg(pl.col("end").n_unique())
    return ends.filter(pl.col("end") > 1).select(group)


def failed_groups(steps: pl.LazyFrame, outcome: str | None) -> dict[Key, FailedGroup]:
    """Return the groups of a step table with failed rollouts, and the outcomes of their other rollouts.

    Args:
        steps: A step table.
        outcome: A key of `OUTCOME_EXPRESSIONS`; None omits the outcomes.
    """
    group = ("iteration", "task_id", "group")
    end = pl.lit(None) if outcome is None else OUTCOME_EXPRESSIONS[outcome]
    trajectories = steps.group_by(*group, "trajectory").agg(pl.col("aborted").any(), end.alias("end"))
    groups = trajectories.group_by(group).agg(
        pl.col("trajectory").filter("aborted").alias("failed"), pl.col("end").filter(~pl.col("aborted"))
    )
    found = groups.filter(pl.col("failed").list.len() > 0).collect()
    return {
        (iteration, task_id, number): FailedGroup(frozenset(failed), ends if outcome else ())
        for iteration, task_id, number, failed, ends in found.iter_rows()
    }
