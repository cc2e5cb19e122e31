"""The bootstrap over tasks, which are the independent units: steps and rollouts of one task are not.

A resample draws as many tasks as there are, with replacement. Intervals are percentiles of resamples, at levels that
correct their narrowness for few tasks (T. Hesterberg, What Teachers Should Know About the Bootstrap, The American
Statistician 69, 2015, section 5.2: expanded percentiles): the level of the upper bound is Φ(t · √(T / (T - 1))), where
t is Student's quantile for T - 1 degrees of freedom.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from hgpo_train.resampling import FEWEST_TASKS, LEVEL, student_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def task_weights(tasks: int, resamples: int, seed: int) -> Floats:
    """Return how often each task is in each resample, float64 of shape (resamples, tasks)."""
    rng = np.random.Generator(np.random.PCG64([seed, tasks]))
    return rng.multinomial(tasks, np.full(tasks, 1 / tasks), resamples).astype(
        np.float64
    )


def percentile_bounds(
    values: Floats, draws: Floats, tasks: int
) -> tuple[Floats, Floats]:
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
        unknown = np.full(np.shape(values), np.nan)
        return unknown, unknown.copy()
    widened = student_quantile((1 + LEVEL) / 2, tasks - 1) * np.sqrt(
        tasks / (tasks - 1)
    )
    tail = NormalDist().cdf(-widened)
    # A resample that draws no task with a number lacks it. As long as these are one in twenty at most, they count as
    # the number itself, in the middle of the draws, and the ends of the interval hardly move.
    known = np.isfinite(values) & (np.isfinite(draws).mean(0) > LEVEL)
    filled = np.where(known, np.where(np.isfinite(draws), draws, values), 0.0)
    low, high = (
        np.where(known, bound, np.nan)
        for bound in np.quantile(filled, [tail, 1 - tail], axis=0)
    )
    return low, high
