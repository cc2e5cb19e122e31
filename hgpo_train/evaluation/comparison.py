"""Paired comparison of two evaluations: the difference, its confidence interval, and a permutation test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.evaluation.report import MEASURES
from hgpo_train.measures import counts_successes, measure_by_task
from hgpo_train.proportions import paired_interval
from hgpo_train.resampling import ratio_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TASK: Final = ("env_id", "task_id", "task")
"""The columns that identify a task across runs: its environment, its id, and its instruction."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a paired comparison of two evaluations.

    Attributes:
        measure: The measure that is compared.
        tasks: Number of tasks in both evaluations.
        difference: Mean over tasks of (first - second), where each is the measure of all rollouts of the task.
        low: Lower bound of the difference's 95% confidence interval, of success and of scores and returns of 0 and 1 by
            `hgpo_train.proportions`, otherwise by `hgpo_train.resampling`; None if there is none.
        high: Upper bound of this interval.
        better: Number of tasks on which the first evaluation is better.
        worse: Number of tasks on which the first evaluation is worse.
        p: Two-sided p-value of the paired permutation test: the share of sign flips whose difference is at least as far
            from 0. With up to 16 tasks that differ, all sign flips are counted; otherwise the observed one and 10,000
            drawn ones.
    """

    measure: str
    tasks: int
    difference: float
    low: float | None
    high: float | None
    better: int
    worse: int
    p: float


def compare(
    first: pl.DataFrame,
    second: pl.DataFrame,
    measure: str = "success",
    *,
    on: Sequence[str] = TASK,
) -> Comparison:
    """Compare two evaluations on the tasks that both contain: those with equal environments, ids and instructions.

    Instructions count because an id can be a position in an order that depends on a seed, as in WebShop.

    Args:
        first: Episodes of `episode_table`.
        second: Episodes of the other evaluation.
        measure: One of `MEASURES`, or of `hgpo_train.measures.MEASURES`, whose columns the tables then need.
        on: The columns that identify a task.

    Raises:
        InputError: The evaluations have no task in common of which the measure is known (neither null nor NaN).

    >>> import polars as pl
    >>> values = {"env_id": "e", "task_id": ["a", "b", "c"], "task": "win", "success": [1.0, 1.0, 0.0]}
    >>> table = pl.DataFrame(values | {"aborted": False})
    >>> compare(table, table.with_columns(success=pl.lit(0.0))).p  # 2 of 3 differ: 2 of 4 sign flips are as extreme
    0.5
    """
    name = MEASURES.get(measure, measure)
    # NaN is what other libraries write for a value that is not known.
    sides = [
        measure_by_task(table.fill_nan(None), name, on) for table in (first, second)
    ]
    both = (
        sides[0].join(sides[1], on=on, suffix=" of second", nulls_equal=True).sort(on)
    )
    if both.is_empty():
        raise InputError(
            "the two evaluations have no task in common; evaluate the same split with the same data"
        )
    differences = (both[name] - both[f"{name} of second"]).to_numpy()
    difference, low, high = ratio_interval(differences, np.ones(len(both)), "real")
    tables = [table.filter(~pl.col("aborted")) for table in (first, second)]
    if all(table.select(counts_successes(name)).item() for table in tables):
        low, high = paired_interval(differences.tolist())
    return Comparison(
        measure=measure,
        tasks=len(both),
        difference=difference,
        low=low,
        high=high,
        better=int((differences > 0).sum()),
        worse=int((differences < 0).sum()),
        p=_permutation_p(differences[differences != 0]),
    )


def _permutation_p(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p-value of the sign-flip test of mean 0."""
    number = len(differences)
    # Sums in another order round differently, and must not count as less extreme.
    observed = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    if number <= 16:
        flips = (np.arange(2**number)[:, None] >> np.arange(number) & 1) * 2 - 1
        return float((np.abs(flips @ differences) >= observed).mean())
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 2, (10_000, number)) * 2 - 1
    return float((1 + (np.abs(drawn @ differences) >= observed).sum()) / (1 + 10_000))
