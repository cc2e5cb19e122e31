"""How many seeds or pairs a comparison needs, from the spread of those that were seen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hgpo_train.resampling import student_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence


def seeds_needed(
    difference: float,
    deviation: float,
    level: float = 0.05,
    power: float = 0.8,
) -> int:
    """Return the number of seeds per algorithm for which a two-sided t test finds a difference with this power.

    Source: the usual formula for two groups of n, ``n ≥ 2 σ² (t(1 - level/2) + t(power))² / d²`` with 2n - 2 degrees of
    freedom (J. Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, section 2.4).

    Args:
        difference: The true difference of the means, not 0.
        deviation: The standard deviation between the seeds of one algorithm.
        level: The level of the test.
        power: The probability that the test finds the difference.

    >>> seeds_needed(1, 1)
    17
    >>> seeds_needed(0.5, 1)
    64
    """
    # The quantiles depend on the number of seeds: it is searched for from the smallest one.
    seeds = 2
    while seeds < 2 * (deviation / difference) ** 2 * _quantiles(level, power, 2 * seeds - 2) ** 2:
        seeds += 1
    return seeds


def pairs_needed(difference: float, deviation: float, level: float = 0.05, power: float = 0.8) -> int:
    """Return the number of pairs for which a paired two-sided t test finds a difference with this power.

    Source: the usual formula for one sample of differences, ``n ≥ σ² (t(1 - level/2) + t(power))² / d²`` with n - 1
    degrees of freedom (J. Cohen, section 2.4, as above).

    Args:
        difference: The true mean of the pairs' differences, not 0.
        deviation: The standard deviation of the differences.
        level: The level of the test.
        power: The probability that the test finds the difference.

    >>> pairs_needed(1, 1)
    10
    >>> pairs_needed(0.5, 1)
    34
    """
    square = (deviation / difference) ** 2
    # Student's quantiles are above the normal ones, which begin the search near its end.
    pairs = max(2, math.floor(square * _quantiles(level, power, 10**9) ** 2))
    while pairs < square * _quantiles(level, power, pairs - 1) ** 2:
        pairs += 1
    return pairs


def _quantiles(level: float, power: float, freedom: int) -> float:
    return student_quantile(1 - level / 2, freedom) + student_quantile(power, freedom)


def pooled_deviation(deviations: Sequence[float], freedom: int) -> tuple[float, float, float]:
    """Return the standard deviation of one seed, pooled over algorithms with equally many seeds, and its 95% interval.

    Args:
        deviations: Each algorithm's standard deviation (ddof 1) between its seeds.
        freedom: The degrees of freedom together: the sum of seeds - 1 over the algorithms.

    >>> [round(value, 2) for value in pooled_deviation([1, 1, 1, 1], 8)]
    [1.0, 0.68, 1.92]
    """
    pooled = math.sqrt(math.fsum(value**2 for value in deviations) / len(deviations))
    low, high = (pooled * math.sqrt(freedom / chi_squared_quantile(level, freedom)) for level in (0.975, 0.025))
    return pooled, low, high


def chi_squared_quantile(level: float, freedom: int) -> float:
    """Return a quantile of the chi-squared distribution, by bisection of its distribution function.

    Source: M. Abramowitz, I. Stegun, Handbook of Mathematical Functions, 6.5.29 and 26.4.19.

    >>> [round(chi_squared_quantile(level, 8), 3) for level in (0.025, 0.5, 0.975)]
    [2.18, 7.344, 17.535]
    """

    def below(value: float) -> float:
        a = freedom / 2
        x = value / 2
        return math.fsum(
            math.exp((a + n) * math.log(x) - x - math.lgamma(a + n + 1)) for n in range(1000 + 10 * freedom)
        )

    # By bisection: the distribution function grows with its argument.
    low = 1e-9
    high = 100.0 + 10 * freedom
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if below(middle) < level:
            low = middle
        else:
            high = middle
    return low
