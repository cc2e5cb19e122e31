"""How many pairs a comparison needs, from the spread of those that were seen."""

from __future__ import annotations

import math

from hgpo_train.resampling import student_quantile


def pairs_needed(
    difference: float, deviation: float, level: float = 0.05, power: float = 0.8
) -> int:
    """Return the number of pairs for which a paired two-sided t test finds a difference with this power.

    Source: the usual formula for one sample of differences, ``n ≥ σ² (t(1 - level/2) + t(power))² / d²`` with n - 1
    degrees of freedom (J. Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, section 2.4).

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
