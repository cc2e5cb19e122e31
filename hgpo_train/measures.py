"""The measures of rollouts and their 95% intervals, as every command, function and page reports them.

A measure is a ratio of sums over the rollouts that were not aborted. Its interval takes tasks as independent, because
rollouts of one task share its difficulty. A task with more rollouts than others counts for more in the share, so that
there are fewer trials than tasks (`effective_trials`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from hgpo_train.proportions import NO_OUTCOME, wilson_interval
from hgpo_train.resampling import Scale, ratio_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TASK: Final = ("env_id", "task_id")
_ONE: Final = "(one)"

_STEPS: Final = pl.col("length").cast(pl.Float64)
MEASURES: Final[dict[str, tuple[pl.Expr, pl.Expr]]] = {
    "success": (pl.col("success").cast(pl.Float64), pl.col("success").is_not_null()),
    "score": (pl.col("score").cast(pl.Float64), pl.col("score").is_not_null()),
    "mean_return": (pl.col("episode_return"), pl.col("episode_return").is_not_null()),
    "mean_length": (_STEPS, _STEPS.is_not_null()),
    "valid": (_STEPS - pl.col("invalid"), _STEPS),
    "admissible": (pl.col("admissible"), pl.col("judged")),
}
"""The numerator and the denominator of each measure, of one rollout.

The columns: `success` (0 or 1), `score` and `episode_return` (null if unknown), `length` in steps, `invalid` (number of
actions that were not well-formed), `judged` and `admissible` (numbers of actions of which that is known, and of
admissible ones).
"""

_REAL: Final[dict[str, Scale]] = {"mean_return": "real", "mean_length": "positive"}
"""The scales of measures that are no shares; a benchmark's score can be one or not."""


class Estimate(NamedTuple):
    """A measure.

    Attributes:
        value: The ratio of the sums over all rollouts.
        low: Lower bound of its 95% interval: of success, and of a score or a return that is 0 or 1 in every rollout,
            Wilson's with tasks as trials (`hgpo_train.proportions.wilson_interval`), otherwise by the jackknife over
            tasks (`hgpo_train.resampling`); None where too few tasks decide.
        high: Upper bound of this interval.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both bounds; None where there are none."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def counts_successes(name: str) -> pl.Expr:
    """Return whether a measure is a share of successes: `success`, or a score or return that is always 0 or 1."""
    if name not in ("score", "mean_return"):
        return pl.lit(name == "success")
    value, known = MEASURES[name]
    return (value.is_in([0.0, 1.0]) | ~known).all()


def measure_by_task(
    rollouts: pl.DataFrame, name: str, by: Iterable[str]
) -> pl.DataFrame:
    """Return a measure of each task, as a frame with the columns of `by` and `name`, sorted by them.

    Args:
        rollouts: One row per rollout, with `aborted` and the measure's columns (`MEASURES`).
        name: The measure.
        by: Columns that identify a task.
    """
    sums = _sums(rollouts, [name], list(by)).filter(pl.col(f"{name}, below") > 0)
    return sums.select(
        *by, (pl.col(f"{name}, above") / pl.col(f"{name}, below")).alias(name)
    )


def measure(
    rollouts: pl.DataFrame,
    names: Iterable[str] = tuple(MEASURES),
    by: str | None = None,
) -> dict[Any, dict[str, Estimate | None]]:
    """Return measures of rollouts, by the values of a column; without one, of all by the key None.

    Args:
        rollouts: One row per rollout, with `env_id`, `task_id`, `aborted` and the columns of `MEASURES`.
        names: The measures.
        by: The column.

    Returns:
        Of each value, each measure; None if it is unknown of all rollouts that were not aborted.
    """
    names = list(names)
    if by is None:
        parts = {(None,): _sums(rollouts, names, list(TASK))}
    else:
        sums = _sums(rollouts, names, [by, *TASK])
        parts = {
            (value,): sums.clear() for value in rollouts[by].unique()
        } | sums.partition_by(by, as_dict=True)
    return {
        value: {name: _estimate(part, name) for name in names}
        for (value,), part in parts.items()
    }


def figures(
    rollouts: pl.DataFrame,
    by: Sequence[str] = (),
    *,
    names: Iterable[str] = tuple(MEASURES),
    task: Sequence[str] = TASK,
) -> pl.DataFrame:
    """Return the counts, the success and the other measures of rollouts, one row for each value of some columns.

    Args:
        rollouts: One row per rollout, without branches: `won` (null if unknown), `aborted`, `length` in steps, the
            columns of `by` and of `task`, and those that the measures read.
        by: Columns to split by.
        names: The measures.
        task: The columns that identify a task.

    Returns:
        The columns of `by`, by which the rows are sorted; `tasks`, `episodes` and `steps` (of all rollouts); `aborted`
        and `unknown` (numbers; an aborted rollout is not counted as unknown); the measures; and of success:

        - `success_trials`: the number of tasks that it is worth (`effective_trials`).
        - `success_95_low`, `success_95_high`: its interval, Wilson's with these trials.
        - `success_if_aborted_lost`, `success_if_aborted_won`: the bounds within which the missing results can move it.
          Rollouts of unknown outcome count like aborted ones.

        What is unknown of all rollouts is null; the bounds are if rollouts ended and no outcome is known.

    >>> table = pl.DataFrame({"env_id": "e", "task_id": ["a", "a", "b", "b"], "won": [True, None, False, True],
    ...                       "aborted": [False, False, False, True], "length": 3})
    >>> found = figures(table, names=["success"])
    >>> found.select("episodes", "aborted", "unknown", "success", "success_if_aborted_lost").rows()
    [(4, 1, 1, 0.5, 0.25)]
    """
    whole = ~pl.col("aborted")
    won = pl.col("won")
    known = whole & won.is_not_null()
    # Rollouts that ended without an outcome bound nothing, also beside aborted ones.
    is_told = ~NO_OUTCOME
    measures = {}
    for name in names:
        above, below = (part.filter(whole).sum() for part in MEASURES[name])
        measures[name] = (above / below).fill_nan(None)
    table = (
        rollouts.with_columns(pl.lit(0).alias(_ONE), success="won")
        .group_by(_ONE, *by)
        .agg(
            pl.struct(task).n_unique().cast(pl.Int64).alias("tasks"),
            pl.len().cast(pl.Int64).alias("episodes"),
            pl.col("length").sum().cast(pl.Int64).alias("steps"),
            pl.col("aborted").sum().cast(pl.Int64),
            (whole & won.is_null()).sum().cast(pl.Int64).alias("unknown"),
            effective_trials(pl.struct(task).filter(known).unique_counts()).alias(
                "success_trials"
            ),
            success_if_aborted_lost=pl.when(is_told).then((known & won).mean()),
            success_if_aborted_won=pl.when(is_told).then((~known | won).mean()),
            **measures,
        )
        .drop(_ONE)
    )
    bounds = [
        wilson_interval(share, trials) if trials else (None, None)
        for share, trials in table.select("success", "success_trials").iter_rows()
    ]
    ends = dict.fromkeys(("success_95_low", "success_95_high"), pl.Float64)
    table = table.hstack(pl.DataFrame(bounds, ends, orient="row"))
    return table.sort(by, nulls_last=True) if by else table


def effective_trials(counts: pl.Expr) -> pl.Expr:
    """Return the number of equally weighted tasks that have the variance of a share over rollouts: (Σ n)² / Σ n².

    That is the number of tasks if they have equally many rollouts, and nearly 1 if one task has most of them. Source:
    L. Kish, Survey Sampling (1965), section 11.7.

    Args:
        counts: The number of rollouts of each task.

    >>> pl.select(effective_trials(pl.lit(pl.Series([4, 4, 4])))).item()
    3
    >>> pl.select(effective_trials(pl.lit(pl.Series([200, *[1] * 35])))).item()
    1
    """
    n = counts.cast(pl.Float64)
    trials = n.sum() ** 2 / (n**2).sum()
    return trials.fill_nan(0.0).round().cast(pl.Int64)


def _sums(rollouts: pl.DataFrame, names: list[str], by: list[str]) -> pl.DataFrame:
    """Return the sums of numerators and denominators of each task, sorted."""
    sums: list[pl.Expr] = []
    for name in names:
        for place, part in zip(("above", "below"), MEASURES[name], strict=True):
            sums.append(part.sum().alias(f"{name}, {place}"))
        sums.append(counts_successes(name).alias(f"{name}, successes"))
    return rollouts.filter(~pl.col("aborted")).group_by(by).agg(sums).sort(by)


def _estimate(tasks: pl.DataFrame, name: str) -> Estimate | None:
    known = tasks.filter(pl.col(f"{name}, below") > 0)
    if known.is_empty():
        return None
    above = known[f"{name}, above"].to_numpy()
    below = known[f"{name}, below"].to_numpy()
    if known[f"{name}, successes"].all():
        share = float(above.sum() / below.sum())
        trials = known.select(effective_trials(pl.col(f"{name}, below"))).item()
        return Estimate(share, *wilson_interval(share, trials))
    of_tasks = above / below
    is_share = name not in _REAL and 0 <= of_tasks.min() <= of_tasks.max() <= 1
    scale = "share" if is_share else _REAL.get(name, "real")
    value, low, high = ratio_interval(above, below, scale)
    if name == "mean_length" and low is not None and high is not None:
        # No mean is beyond the shortest and the longest task, which a step limit can decide.
        low = max(low, float(of_tasks.min()))
        high = min(high, float(of_tasks.max()))
    return Estimate(value, low, high)
