"""Outcomes of rollouts in a step table: one row per rollout, success with its bounds, and informative groups.

Rollouts that aborted are not a random sample: long ones fail more often, and long ones are lost more often. The success
of the others is therefore too high, and is reported with the bounds within which the missing results can move it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets.branches import IS_BRANCH, roots
from hgpo_train.measures import figures
from hgpo_train.proportions import by_length

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_train.rollout.row import Row

GROUP: Final = ("iteration", "task_id", "group")

OUTCOMES: Final[Mapping[str, Callable[[Sequence[Row]], float | bool | None]]] = {
    "reward": lambda rows: math.fsum(row.reward for row in rows),
    "success": lambda rows: any(row.won for row in rows) or rows[-1].won,
    "score": lambda rows: rows[-1].score,
}
"""The outcomes of a trajectory, from its rows in the order of steps; None if unknown.

The names are those of the columns from which the estimators read rewards.
"""

_COLUMNS: Final = {"reward": "episode_return", "success": "won", "score": "score"}
"""The same outcomes as columns of `rollout_table`."""


def rollout_table(steps: pl.LazyFrame, *, branches: bool = False) -> pl.LazyFrame:
    """Return one row per rollout of a step table.

    Branches are left out, because they are no independent rollouts: where a run branched, its rollouts would count more
    than elsewhere. With `branches` they have rows, too, and a column `branch`.

    The columns are run, iteration, task_id, group and trajectory; env_id, task and task_type; won (null if
    unknown), score, episode_return and length (number of steps, those of an aborted rollout until it failed); invalid
    (number of actions that were not well-formed), judged and admissible (numbers of actions of which that is known, and
    of admissible ones); aborted, truncated (whether the step limit ended it) and error.
    """
    named = [IS_BRANCH.first().alias("branch")] if branches else []
    steps = steps if branches else roots(steps)
    return steps.group_by("run", *GROUP, "trajectory").agg(
        *named,
        pl.col("env_id", "task", "task_type", "episode_return").first(),
        pl.col("episode_won").first().alias("won"),
        pl.col("score").sort_by("step").last(),
        pl.len().alias("length"),
        (~pl.col("action_valid")).sum().alias("invalid"),
        pl.col("action_admissible").count().alias("judged"),
        pl.col("action_admissible").sum().alias("admissible"),
        pl.col("aborted", "truncated").any(),
        pl.col("error").drop_nulls().first(),
    )


@dataclass(frozen=True, slots=True)
class Success:
    """The share of rollouts that solved their task, and its bounds if rollouts aborted.

    Attributes:
        rollouts: Number of rollouts.
        aborted: Number of rollouts that failed for a reason outside the task.
        unknown: Number of other rollouts of which the environment does not say whether they solved the task.
        share: Share of solved tasks among the rollouts whose result is known; None if there is none.
        interval: Its 95% interval with tasks as trials (`hgpo_train.measures`); None without a share.
        if_aborted_lost: The share of all rollouts if every other one is counted as lost; None if the
            environment tells no outcome and none aborted.
        if_aborted_won: The share if every other one is counted as won; likewise None.
        aborted_by_length: Number of rollouts and of aborted ones for each class of lengths
            (`hgpo_train.proportions.by_length`); empty if no rollout aborted.
    """

    rollouts: int
    aborted: int
    unknown: int
    share: float | None
    interval: tuple[float, float] | None
    if_aborted_lost: float | None
    if_aborted_won: float | None
    aborted_by_length: tuple[tuple[str, int, int], ...] = ()

    def describe(self) -> str:
        """Return the share with its interval, and with bounds and lengths if rollouts aborted.

        >>> Success(16, 2, 0, 0.75, (0.5, 0.9), 0.65, 0.78, (("1–5", 10, 0), ("6–10", 6, 2))).describe()
        '75.0% (95%: 50.0% to 90.0%) (65.0% if the 2 aborted rollouts are lost, 78.0% if won); aborted: 0% of 1–5 steps, 33% of 6–10'
        """  # noqa: E501
        text = "unknown" if self.share is None else f"{self.share:.1%}"
        if self.interval is not None:
            low, high = self.interval
            text += f" (95%: {low:.1%} to {high:.1%})"
        if self.share is None and self.unknown:
            # Nothing is known of any rollout: 0% to 100% would be no bounds.
            return text
        if self.aborted:
            bounds = (
                f"{self.if_aborted_lost:.1%} if the {self.aborted} aborted rollouts are lost, "
                f"{self.if_aborted_won:.1%} if won"
            )
            shares = [
                f"{aborted / rollouts:.0%} of {steps}"
                for steps, rollouts, aborted in self.aborted_by_length
            ]
            text += f" ({bounds}); aborted: {', '.join([f'{shares[0]} steps', *shares[1:]])}"
        return text


def success(rollouts: pl.DataFrame) -> Success:
    """Return the success of rollouts, with bounds.

    Args:
        rollouts: Rows of `rollout_table`, of which `env_id`, `task_id`, `won`, `aborted` and `length` are read.
    """
    (found,) = figures(rollouts, names=["success"]).to_dicts()
    interval = None
    if found["success"] is not None:
        interval = (found["success_95_low"], found["success_95_high"])
    lengths = []
    if found["aborted"]:
        lengths = by_length(rollouts).select("steps", "episodes", "aborted").rows()
    return Success(
        found["episodes"],
        found["aborted"],
        found["unknown"],
        found["success"],
        interval,
        found["success_if_aborted_lost"],
        found["success_if_aborted_won"],
        tuple(lengths),
    )


def group_table(
    steps: pl.LazyFrame, outcome: str, *, branches: bool = False
) -> pl.LazyFrame:
    """Return one row per group of a step table.

    Args:
        steps: A step table.
        outcome: A key of `OUTCOMES`.
        branches: Whether branches count as rollouts.

    Returns:
        A frame with the columns ``iteration``, ``task_id`` and ``group``; ``failed``, the ids of the failed
        rollouts; and ``ends``, the known outcomes of the others.
    """
    failed = pl.col("trajectory").filter("aborted")
    ends = pl.col(_COLUMNS[outcome]).filter(~pl.col("aborted"))
    table = rollout_table(steps, branches=branches)
    return table.group_by(GROUP).agg(
        failed.alias("failed"), ends.drop_nulls().alias("ends")
    )


def groups_with_mixed_outcomes(steps: pl.LazyFrame, outcome: str) -> pl.LazyFrame:
    """Select the informative groups of a step table: those whose rollouts or branches have different outcomes.

    Otherwise all advantages of a group are zero. Aborted trajectories and unknown outcomes are ignored. Source: dynamic
    sampling of DAPO (arXiv 2503.14476), Eq. 11.

    Returns:
        A frame with the columns ``iteration``, ``task_id`` and ``group``.
    """
    return (
        group_table(steps, outcome, branches=True)
        .filter(pl.col("ends").list.n_unique() > 1)
        .select(GROUP)
    )
