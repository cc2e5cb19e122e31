"""Intervals of a family of numbers, which hold for all of them at once.

All measures of all estimators are computed from the same resamples of the tasks, so differences are paired. The
intervals are max-t over the resamples (P. H. Westfall, S. S. Young, Resampling-Based Multiple Testing, 1993): with s
the standard deviation of a number's resamples, the bounds are x ± c · s, where c is the 95% quantile, over resamples,
of the family's largest |x* - x| / s, as corrected for few tasks: a value z of the normal distribution becomes
t(z) · √(T / (T - 1)), with Student's quantile t(z) at the same level (`hgpo_train.resampling`). The adjusted p-value of
x = 0 is the share of resamples in which that largest value is at least |x| / s. Correlated numbers, such as pairs of
similar estimators, cost less than with Bonferroni's or Holm's correction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hgpo_research.resampling import percentile_bounds
from hgpo_train.resampling import LEVEL, student_value

if TYPE_CHECKING:
    from hgpo_research.arrays import Floats


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


def intervals(values: Floats, draws: Floats, tasks: int) -> Intervals:
    """Return the intervals of a family of numbers.

    Args:
        values: The numbers, of shape (numbers,); NaN where there is none.
        draws: The same numbers of every resample, of shape (resamples, numbers).
        tasks: Number of tasks.
    """
    low, high = percentile_bounds(values, draws, tasks)
    known = np.isfinite(low)
    size = np.abs(values)
    # What does not vary cannot be tested: it has no p-value, unless it is 0 itself.
    adjusted = np.where(known & (values == 0), 1.0, np.nan)
    with np.errstate(all="ignore"):
        filled = np.where(
            known,
            np.where(np.isfinite(draws), draws, values),
            0.0,
        )
        deviation = filled.std(0)
        # A number whose resamples differ by rounding alone has the interval of its percentiles, and no t.
        varies = known & (deviation > 1e-12 * np.maximum(size, 1e-300))
        if not varies.any():
            return Intervals(low, high, low, high, adjusted)
        t = np.abs(filled - values)[:, varies] / deviation[varies]
        # The largest t of each resample, widened for few tasks.
        largest = student_value(t.max(1), tasks - 1) * np.sqrt(tasks / (tasks - 1))
        half = np.quantile(largest, LEVEL) * deviation
        # The numbers themselves count as one more resample, so that no p-value is 0.
        adjusted[varies] = (
            1 + (largest[:, None] >= (size / deviation)[varies]).sum(0)
        ) / (1 + len(largest))
    return Intervals(
        low,
        high,
        np.where(varies, values - half, low),
        np.where(varies, values + half, high),
        adjusted,
    )
