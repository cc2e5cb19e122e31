"""Intervals by resampled tasks, corrected for the number of comparisons.

Tasks are the independent units: steps and rollouts of one task are not. A resample draws as many tasks as there are,
with replacement, and all measures of all estimators are computed from the same resamples, so differences are paired.

*Intervals of one number* are percentiles of the resamples, at levels that correct the bootstrap's narrowness for few
tasks (T. Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69, 2015, section 5.2:
expanded percentiles): the level of the upper bound is Φ(t · √(T / (T - 1))), where T is the number of tasks and t is
Student's quantile for T - 1 degrees of freedom.

*Intervals of a family* hold for all of its numbers at once, with max-t over the resamples (P. H. Westfall, S. S. Young,
Resampling-Based Multiple Testing, 1993): with s the standard deviation of a number's resamples, the bounds are
x ± c · s, where c is the 95% quantile, over resamples, of the family's largest |x* - x| / s, times the same correction
for few tasks. The adjusted p-value of x = 0 is the share of resamples in which that largest value is at least |x| / s.
Correlated numbers, such as pairs of similar estimators, cost less than with Bonferroni's or Holm's correction.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEVEL: Final = 0.95
_NORMAL: Final = NormalDist()


class Intervals(NamedTuple):
    """Intervals of an array of numbers; NaN where a number has none.

    Attributes:
        low: Lower bounds of the single intervals.
        high: Upper bounds.
        low_all: Lower bounds of the intervals that hold for the whole family.
        high_all: Upper bounds.
        p: Adjusted p-values of the hypothesis that the number is 0.
    """

    low: Floats
    high: Floats
    low_all: Floats
    high_all: Floats
    p: Floats


def task_weights(tasks: int, resamples: int, seed: int) -> Floats:
    """Return how often each task is in each resample, float64 of shape (resamples, tasks)."""
    rng = np.random.Generator(np.random.PCG64([seed, tasks]))
    return rng.multinomial(tasks, np.full(tasks, 1 / tasks), resamples).astype(np.float64)


def resampled(sums: Mapping[str, Floats], weights: Floats) -> dict[str, Floats]:
    """Return the sums over all tasks of each resample, arrays of shape (resamples,)."""
    names = list(sums)
    made = weights @ np.stack([sums[name] for name in names], axis=1)
    return {name: made[:, number] for number, name in enumerate(names)}


def intervals(values: Floats, draws: Floats, tasks: int) -> Intervals:
    """Return the intervals of a family of numbers.

    Args:
        values: The numbers, of any shape; NaN where there is none.
        draws: The same numbers of every resample, of shape (resamples, *shape).
        tasks: Number of tasks.
    """
    none = np.full(np.shape(values), np.nan)
    if tasks < 2:
        return Intervals(none, none, none, none, none)
    usual = _NORMAL.inv_cdf((1 + LEVEL) / 2)
    wider = student_quantile((1 + LEVEL) / 2, tasks - 1) * np.sqrt(tasks / (tasks - 1))
    tail = _NORMAL.cdf(-wider)
    # A number that many resamples lack, such as that of a level which few tasks have, has no interval.
    known = np.isfinite(values) & (np.isfinite(draws).mean(0) > LEVEL)
    with np.errstate(all="ignore"):
        filled = np.where(known, np.where(np.isfinite(draws), draws, values), 0.0)
        low, high = (np.where(known, bound, np.nan) for bound in np.quantile(filled, [tail, 1 - tail], axis=0))
        deviation = filled.std(0)
        size = np.abs(values)
        varies = known & (deviation > 1e-12 * np.where(known, np.maximum(size, 1e-300), 1.0))
        if not varies.any():
            return Intervals(low, high, low, high, np.where(known, np.where(values == 0, 1.0, np.nan), np.nan))
        t = np.abs(filled - np.where(known, values, 0.0))[:, varies] / deviation[varies]
        largest = t.reshape(len(t), -1).max(1)
        half = np.quantile(largest, LEVEL) * deviation * wider / usual
        reached = size / (deviation * wider / usual)
        p = (1 + (largest[:, None] >= reached[varies][None]).sum(0)) / (1 + len(largest))
    adjusted = np.where(known & (values == 0), 1.0, np.nan)
    adjusted[varies] = p
    return Intervals(
        low,
        high,
        np.where(varies, values - half, low),
        np.where(varies, values + half, high),
        adjusted,
    )


def ratio_interval(
    above: NDArray[np.float64 | np.int64], below: NDArray[np.float64 | np.int64], resamples: int = 1000, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """Return a ratio of sums over tasks, and its 95% interval.

    Args:
        above: Each task's part of the numerator, shape (tasks,).
        below: Each task's part of the denominator, shape (tasks,).
        resamples: Number of resamples of the tasks.
        seed: Their seed.

    Returns:
        The ratio and the bounds, which are None where there is no interval. The sum of `below` must not be 0.

    >>> ratio_interval(np.array([1, 1, 1, 1]), np.array([2, 2, 2, 2]))
    (0.5, 0.5, 0.5)
    """
    weights, value = task_weights(len(above), resamples, seed), float(above.sum() / below.sum())
    with np.errstate(invalid="ignore"):
        draws = (weights @ above) / (weights @ below)
    found = intervals(np.array([value]), draws[:, None], len(above))
    low, high = (None if np.isnan(bound[0]) else float(bound[0]) for bound in (found.low, found.high))
    return value, low, high


def student_quantile(level: float, freedom: int) -> float:
    """Return a quantile of Student's t distribution.

    Source: the Cornish-Fisher expansion in 1 / freedom (M. Abramowitz, I. Stegun, Handbook of Mathematical Functions,
    26.7.5); its error is below 0.4% for 5 degrees of freedom or more. For 1 and 2 the quantile is exact.

    >>> [round(student_quantile(0.975, n), 2) for n in (1, 2, 5, 10, 30)]
    [12.71, 4.3, 2.57, 2.23, 2.04]
    """
    if freedom == 1:
        return float(np.tan(np.pi * (level - 0.5)))
    if freedom == 2:
        return float((2 * level - 1) * np.sqrt(2 / (4 * level * (1 - level))))
    z: float = _NORMAL.inv_cdf(level)
    terms: tuple[float, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom ** (power + 1) for power, term in enumerate(terms))
