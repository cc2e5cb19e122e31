"""Informative groups: their trajectories have different outcomes, so that advantages are not all zero.

What an end is goes by what the estimator reads rewards from (`hgpo_train.advantages.Parameters.reward`).

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
"""A trajectory's outcome from its rows, in the order of steps."""

OUTCOME_EXPRESSIONS: Final[Mapping[str, pl.Expr]] = {
    "reward": pl.col("episode_return").first(),
    "success": pl.col("won").sort_by("step").last(),
    "score": pl.col("score").sort_by("step").last(),
}
"""The same from a step table's rows of one trajectory."""


def groups_with_mixed_outcomes(steps: pl.LazyFrame, outcome: str) -> pl.LazyFrame:
    """The groups of a step table whose trajectories, aborted ones aside, did not all end the same.

    Args:
        steps: A step table.
        outcome: A name of `OUTCOME_EXPRESSIONS`.

    Returns:
        Their ``iteration``, ``task_id`` and ``group``.
    """
    group = ("iteration", "task_id", "group")
    trajectories = steps.group_by(*group, "trajectory").agg(
        OUTCOME_EXPRESSIONS[outcome].alias("end"), pl.col("aborted").any()
    )
    ends = trajectories.filter(~pl.col("aborted")).group_by(group).agg(pl.col("end").n_unique())
    return ends.filter(pl.col("end") > 1).select(group)


def failed_groups(steps: pl.LazyFrame, outcome: str | None) -> dict[Key, FailedGroup]:
    """The groups of a step table with failed rollouts: which failed, and how the others ended.

    Args:
        steps: A step table.
        outcome: A name of `OUTCOME_EXPRESSIONS`; None leaves the outcomes out.
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
