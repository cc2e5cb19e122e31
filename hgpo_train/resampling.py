"""Intervals over tasks, which are the independent units: steps and rollouts of one task are not.

**Jackknife.** The statistic is computed without each task in turn, on a scale without bounds: the logit of a share, the
logarithm of a positive number. The deviations u of these values from their mean give the standard error (B. Efron,
C. Stein, The jackknife estimate of variance, Annals of Statistics 9, 1981, pp. 586-596). Where a few tasks decide, the
standard error is itself uncertain, so Student's quantile has 1.5 · (Σ u²)² / Σ u⁴ - 1 degrees of freedom, rounded down
and at most T - 1, where T is the number of tasks; below 1 there is no interval. The factor 1.5 was chosen by simulation
(`tests/analysis/test_coverage.py`). Tasks of a kind that no task of the run shows are not covered.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from hgpo_train.proportions import wilson_interval

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEVEL: Final = 0.95
FEWEST_TASKS: Final = 6
"""The fewest tasks with an interval. No resample is beyond the largest and smallest task, and with fewer tasks all of
them lie on one side of the true mean more often than an interval of 95% may miss it."""
_ROUNDING: Final = 1e-24  # the largest sum of squared deviations that is taken for 0
_NORMAL: Final = NormalDist()

Scale = Literal["share", "positive", "real"]


def _logit(share: Floats) -> Floats:
    return np.log(share) - np.log1p(-share)


def _expit(logit: Floats) -> Floats:
    return 1 / (1 + np.exp(-logit))


_SCALES: Final[
    dict[Scale, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]]
] = {
    "share": (_logit, _expit),
    "positive": (np.log, np.exp),
    "real": (np.positive, np.positive),
}
"""Each scale's function to numbers without bounds, and its inverse."""


def jackknife_bounds(
    values: Floats, without: Floats, weights: Floats, scale: Scale
) -> tuple[Floats, Floats]:
    """Return the lower and upper bounds of the 95% intervals of numbers, by the jackknife over tasks.

    Args:
        values: The numbers, of shape (numbers,); NaN where there is none.
        without: The same numbers without each task, of shape (tasks, numbers).
        weights: The tasks' parts of the numbers' denominators, of shape (tasks, numbers).
        scale: Whether they are shares in [0, 1], positive, or any real numbers. Shares in which too few tasks differ
            have Wilson's interval, with (Σ weights)² / Σ weights² trials: the number of tasks if these are equal.

    Returns:
        The bounds; NaN with fewer than `FEWEST_TASKS` tasks that have a weight, or as many trials, and where too few
        tasks decide or differ.
    """
    tasks = len(without)
    if tasks < FEWEST_TASKS:
        return np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    forward, back = _SCALES[scale]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # The standard error, and how certain it is: few tasks that decide have few degrees of freedom.
        deviations = forward(without) - forward(without).mean(0)
        squares = (deviations**2).sum(0)
        error = np.sqrt((tasks - 1) / tasks * squares)
        freedom = np.minimum(
            np.floor(1.5 * squares**2 / (deviations**4).sum(0) - 1), tasks - 1
        )
        known = (freedom >= 1) & (squares > _ROUNDING) & np.isfinite(forward(values))
        known &= np.count_nonzero(weights, axis=0) >= FEWEST_TASKS

        quantiles = np.array(
            [
                student_quantile((1 + LEVEL) / 2, int(f))
                for f in np.where(known, freedom, 1)
            ]
        )
        half = np.where(known, quantiles, np.nan) * error
        low = back(forward(values) - half)
        high = back(forward(values) + half)
        trials = weights.sum(0) ** 2 / (weights**2).sum(0)
        unknown = (
            np.isnan(low)
            & (values >= 0)
            & (values <= 1)
            & (trials > FEWEST_TASKS - 0.5)
        )
    if scale == "share":
        for number in np.flatnonzero(unknown):
            low[number], high[number] = wilson_interval(
                values[number], round(trials[number])
            )
    return low, high


def ratio_interval(
    above: NDArray[np.float64 | np.int64],
    below: NDArray[np.float64 | np.int64],
    scale: Scale = "share",
) -> tuple[float, float | None, float | None]:
    """Return a ratio of sums over tasks and the bounds of its 95% interval, which are None where there is none.

    Args:
        above: Each task's part of the numerator, shape (tasks,).
        below: Each task's part of the denominator, shape (tasks,); their sum must not be 0.
        scale: Whether the ratio is a share in [0, 1], positive, or any real number, as a difference is.

    >>> [round(bound, 3) for bound in ratio_interval(np.array([0, 1, 2, 1, 2, 1]), np.full(6, 4))]
    [0.292, 0.112, 0.573]
    """
    value = np.array([above.sum() / below.sum()])
    with np.errstate(divide="ignore", invalid="ignore"):
        without = ((above.sum() - above) / (below.sum() - below))[:, None]
    bounds = jackknife_bounds(value, without, below[:, None].astype(np.float64), scale)
    low, high = (None if np.isnan(bound[0]) else float(bound[0]) for bound in bounds)
    return float(value[0]), low, high


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
