"""Outcomes and failures of rollouts: success with its bounds, informative groups, and when failures end a collection.

Rollouts that aborted are not a random sample: long ones fail more often, and long ones are lost more often. The success
of the others is therefore too high, and is reported with the bounds within which the missing results can move it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.measures import measure
from hgpo_train.proportions import by_length

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_train.rollout.row import Row

GROUP: Final = ("iteration", "task_id", "group")

OUTCOMES: Final[Mapping[str, Callable[[Sequence[Row]], float | bool | None]]] = {
    "reward": lambda rows: math.fsum(row.reward for row in rows),
    "success": lambda rows: rows[-1].won,
    "score": lambda rows: rows[-1].score,
}
"""The outcomes of a trajectory, from its rows in the order of steps; None if unknown.

The names are those of the columns from which the estimators read rewards.
"""

_COLUMNS: Final = {"reward": "episode_return", "success": "won", "score": "score"}
"""The same outcomes as columns of `rollout_table`."""

MAX_FAILED: Final = 0.1
"""Default of the largest share of failed rollouts with which a collection still counts as successful.

A few failures do no harm: a group's advantages are computed from the remaining members, and the same command retries
the failed ones. But failures are rarely uniform: long prompts time out, and hard tasks crash engines. With more than a
tenth, the distribution of the remaining rollouts probably differs from the requested one.
"""

_NUMBER: Final = re.compile(r"\d+")
_SHOWN: Final = 3


def rollout_table(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per rollout of a step table.

    The columns are run, iteration, task_id, group and trajectory; env_id, task and task_type; won (null if unknown),
    score, episode_return and length (number of steps, those of an aborted rollout until it failed); invalid (number of
    actions that were not well-formed), judged and admissible (numbers of actions of which that is known, and of
    admissible ones); aborted and error.
    """
    return steps.group_by("run", *GROUP, "trajectory").agg(
        pl.col("env_id", "task", "task_type", "episode_return").first(),
        pl.col("episode_won").first().alias("won"),
        pl.col("score").sort_by("step").last(),
        pl.len().alias("length"),
        (~pl.col("action_valid")).sum().alias("invalid"),
        pl.col("action_admissible").count().alias("judged"),
        pl.col("action_admissible").sum().alias("admissible"),
        pl.col("aborted").any(),
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
        if_aborted_lost: The share of all rollouts if every other one is counted as lost.
        if_aborted_won: The share if every other one is counted as won.
        aborted_by_length: Number of rollouts and of aborted ones for each class of lengths
            (`hgpo_train.proportions.by_length`); empty if no rollout aborted.
    """

    rollouts: int
    aborted: int
    unknown: int
    share: float | None
    interval: tuple[float, float] | None
    if_aborted_lost: float
    if_aborted_won: float
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
        if self.aborted:
            bounds = (
                f"{self.if_aborted_lost:.1%} if the {self.aborted} aborted rollouts are lost, "
                f"{self.if_aborted_won:.1%} if won"
            )
            shares = [f"{aborted / rollouts:.0%} of {steps}" for steps, rollouts, aborted in self.aborted_by_length]
            text += f" ({bounds}); aborted: {', '.join([f'{shares[0]} steps', *shares[1:]])}"
        return text


def success(rollouts: pl.DataFrame) -> Success:
    """Return the success of rollouts, with bounds.

    Args:
        rollouts: Rows of `rollout_table`, of which `env_id`, `task_id`, `won`, `aborted` and `length` are read.
    """
    whole = rollouts.filter(~pl.col("aborted"))
    aborted, won, unknown = len(rollouts) - len(whole), int(whole["won"].sum()), whole["won"].null_count()
    lost, most = won / len(rollouts), (won + aborted + unknown) / len(rollouts)
    found = measure(rollouts.with_columns(success="won"), ["success"])[None]["success"]
    share, interval = (found.value, found.interval) if found else (None, None)
    lengths = by_length(rollouts).select("steps", "episodes", "aborted").rows() if aborted else []
    return Success(len(rollouts), aborted, unknown, share, interval, lost, most, tuple(lengths))


def group_table(steps: pl.LazyFrame, outcome: str) -> pl.LazyFrame:
    """Return one row per group of a step table.

    Args:
        steps: A step table.
        outcome: A key of `OUTCOMES`.

    Returns:
        A frame with the columns ``iteration``, ``task_id`` and ``group``; ``failed``, the ids of the failed
        trajectories; and ``ends``, the known outcomes of the others.
    """
    whole = ~pl.col("aborted")
    return (
        rollout_table(steps)
        .group_by(GROUP)
        .agg(
            pl.col("trajectory").filter("aborted").alias("failed"),
            pl.col(_COLUMNS[outcome]).filter(whole).drop_nulls().alias("ends"),
        )
    )


def groups_with_mixed_outcomes(steps: pl.LazyFrame, outcome: str) -> pl.LazyFrame:
    """Select the informative groups of a step table: those whose trajectories have different outcomes.

    Otherwise all advantages of a group are zero. Aborted trajectories and unknown outcomes are ignored. Source: dynamic
    sampling of DAPO (arXiv 2503.14476), Eq. 11.

    Returns:
        A frame with the columns ``iteration``, ``task_id`` and ``group``.
    """
    return group_table(steps, outcome).filter(pl.col("ends").list.n_unique() > 1).select(GROUP)


class RolloutError(RuntimeError):
    """Too many rollouts failed. The message is one line, which the command line prints before it exits with 1.

    Attributes:
        run: The collected run (`hgpo_train.rollout.collect`), if it was played to its end; None if it was stopped.
    """

    run: object = None


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """Counts of failures in a set of rollouts.

    Attributes:
        rollouts: Number of rollouts.
        failed: Number of failed rollouts.
        reasons: Each reason with the number of rollouts that failed for it, the most frequent first.

    >>> FailureSummary(102, 12, (("timed out", 9), ("HTTP 500", 3))).describe()
    '12 of 102 rollouts failed (12%): 9 × timed out; 3 × HTTP 500'
    """

    rollouts: int
    failed: int
    reasons: tuple[tuple[str, int], ...] = ()

    def describe(self) -> str:
        """Return the counts and the most frequent reasons in one line."""
        shown = [f"{times} × {reason.rstrip('.')}" for reason, times in self.reasons[:_SHOWN]]
        if others := sum(times for _, times in self.reasons[_SHOWN:]):
            shown.append(f"{others} × other reasons")
        share = self.failed / self.rollouts if self.rollouts else 0.0
        return f"{self.failed} of {self.rollouts} rollouts failed ({share:.0%}): {'; '.join(shown)}"


def allowed_in_a_row(rollouts: int, most: float = MAX_FAILED) -> int:
    """Return the number of rollouts in a row whose failure stops a collection of so many.

    It is the smallest number above the share `most`, with which the collection fails in any case; but at least 3, so
    that an isolated failure never stops a small collection, and at most 64.

    >>> [allowed_in_a_row(rollouts) for rollouts in (1, 5, 36, 108, 10_000)]
    [3, 3, 4, 11, 64]
    """
    return min(64, max(3, int(rollouts * most) + 1))


def merged_reasons(reasons: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return each reason with its count, the most frequent first. Those that differ only in numbers are the first one.

    >>> merged_reasons({"no disk": 1, "no answer within 3 s": 1, "no answer within 20 s": 2})
    (('no answer within 3 s', 3), ('no disk', 1))
    """
    merged: dict[str, tuple[str, int]] = {}
    for reason, times in reasons.items():
        shown, before = merged.get(_NUMBER.sub("0", reason), (reason, 0))
        merged[_NUMBER.sub("0", reason)] = (shown, before + times)
    return tuple(sorted(merged.values(), key=lambda counted: -counted[1]))


def failures_of_steps(steps: pl.LazyFrame) -> FailureSummary:
    """Summarize the failures in a step table."""
    return failures_of(rollout_table(steps).select("aborted", "error").collect())


def failures_of(rollouts: pl.DataFrame) -> FailureSummary:
    """Summarize the failures in a table of rollouts, of which the columns `aborted` and `error` are read."""
    failed = rollouts.filter("aborted")
    counts = failed["error"].fill_null("no reason is stored").value_counts(name="times").sort("times", "error")[::-1]
    return FailureSummary(len(rollouts), len(failed), merged_reasons(dict(counts.iter_rows())))


def raise_if_too_many(failures: FailureSummary, most: float = MAX_FAILED, advice: str = "") -> None:
    """Raise if more than the share `most` of rollouts failed, or all of them.

    Raises:
        RolloutError: More failed. The message contains the counts, the most frequent reasons and the advice.
    """
    failed, rollouts = failures.failed, failures.rollouts
    if failed and (failed > most * rollouts or failed == rollouts):
        raise RolloutError(f"{failures.describe()}. {advice}".rstrip())


def raise_if_too_long(steps: pl.DataFrame) -> None:
    """Raise if a prompt was too long, for `rollout.overflow = "error"`.

    Raises:
        InputError: A rollout failed for that reason.
    """
    from hgpo_train.policies.generation import PROMPT_TOO_LONG

    errors = steps.filter(pl.col("error").str.starts_with(PROMPT_TOO_LONG))["error"]
    if len(errors):
        raise InputError(
            f'{errors[0]}, and rollout.overflow is "error"; increase rollout.max_prompt_tokens, or set overflow to '
            "left or history, in a new run"
        )
