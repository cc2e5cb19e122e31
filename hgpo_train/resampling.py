"""Intervals by resampled tasks.

Tasks are the independent units: steps and rollouts of one task are not. A resample draws as many tasks as there are,
with replacement. Intervals are percentiles of the resamples, at levels that correct the bootstrap's narrowness for few
tasks (T. Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69, 2015, section 5.2:
expanded percentiles): the level of the upper bound is Φ(t · √(T / (T - 1))), where T is the number of tasks and t is
Student's quantile for T - 1 degrees of freedom.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEVEL: Final = 0.95
FEWEST_TASKS: Final = 6
"""The fewest tasks with an interval. No resample is beyond the largest and smallest task, and with fewer tasks all of
them lie on one side of the true mean more often than an interval of 95% may miss it."""
RESAMPLES: Final = 1000
UNITS: Final = 4096
"""The largest number of parts of a run that are resampled; with more tasks, a part has several."""
_NORMAL: Final = NormalDist()


def task_weights(tasks: int, resamples: int, seed: int) -> Floats:
    """Return how often each task is in each resample, float64 of shape (resamples, tasks)."""
    rng = np.random.Generator(np.random.PCG64([seed, tasks]))
    return rng.multinomial(tasks, np.full(tasks, 1 / tasks), resamples).astype(np.float64)


def widening(tasks: int) -> float:
    """Return t · √(T / (T - 1)), the normal distribution's quantile, widened for few tasks (at least 2)."""
    return float(student_quantile((1 + LEVEL) / 2, tasks - 1) * np.sqrt(tasks / (tasks - 1)))


def percentile_bounds(values: Floats, draws: Floats, tasks: int) -> tuple[Floats, Floats]:
    """Return the lower and upper bounds of the 95% intervals of numbers.

    Args:
        values: The numbers, of any shape; NaN where there is none.
        draws: The same numbers of every resample, of shape (resamples, *shape).
        tasks: Number of tasks.

    Returns:
        The bounds; NaN with fewer than `FEWEST_TASKS` tasks, and for a number that many resamples lack, such as that of
        a level which few tasks have.
    """
    if tasks < FEWEST_TASKS:
        return np.full(np.shape(values), np.nan), np.full(np.shape(values), np.nan)
    tail = _NORMAL.cdf(-widening(tasks))
    known = np.isfinite(values) & (np.isfinite(draws).mean(0) > LEVEL)
    filled = np.where(known, np.where(np.isfinite(draws), draws, values), 0.0)
    low, high = (np.where(known, bound, np.nan) for bound in np.quantile(filled, [tail, 1 - tail], axis=0))
    return low, high


def ratio_interval(
    above: NDArray[np.float64 | np.int64], below: NDArray[np.float64 | np.int64]
) -> tuple[float, float | None, float | None]:
    """Return a ratio of sums over tasks and the bounds of its 95% interval, which are None where there is none.

    Args:
        above: Each task's part of the numerator, shape (tasks,).
        below: Each task's part of the denominator, shape (tasks,); their sum must not be 0.

    >>> ratio_interval(np.array([1, 1, 1, 1, 1, 1]), np.array([2, 2, 2, 2, 2, 2]))
    (0.5, 0.5, 0.5)
    """
    tasks, value = len(above), float(above.sum() / below.sum())
    if tasks > UNITS:
        starts = np.linspace(0, tasks, UNITS, endpoint=False).astype(np.int64)
        above, below = (np.add.reduceat(sums, starts) for sums in (above, below))
    weights = _ratio_weights(len(above))
    with np.errstate(invalid="ignore"):
        draws = (weights @ above) / (weights @ below)
    bounds = percentile_bounds(np.array([value]), draws[:, None], tasks)
    low, high = (None if np.isnan(bound[0]) else float(bound[0]) for bound in bounds)
    return value, low, high


@lru_cache(2)
def _ratio_weights(tasks: int) -> Floats:
    """Return the resamples of `ratio_interval`, which the measures of one run share."""
    return task_weights(tasks, RESAMPLES, seed=0)


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
    return float(student_value(_NORMAL.inv_cdf(level), freedom))


def student_value(z: float | Floats, freedom: int) -> float | Floats:
    """Return Student's quantile at the level of a quantile of the normal distribution; see `student_quantile`."""
    terms: tuple[float | Floats, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum((term / freedom ** (power + 1) for power, term in enumerate(terms)), z)
