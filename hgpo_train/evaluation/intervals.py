"""Confidence intervals of a share."""

from __future__ import annotations

import math
from typing import Final

from hgpo_envs.errors import InputError

Z: Final = 1.959963984540054
"""The 97.5% quantile of the standard normal distribution, for intervals of 95%."""


def wilson_interval(share: float, trials: int, z: float = Z) -> tuple[float, float]:
    """Return Wilson's interval of a probability: all p with |share - p| ≤ z · √(p · (1 - p) / trials).

    Unlike a bootstrap interval, it has a width at 0 and 1, where every resample gives the same share.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927),
    pp. 209-212. Its coverage: L. D. Brown, T. T. Cai, A. DasGupta, Interval estimation for a binomial proportion,
    Statistical Science 16 (2001), pp. 101-133.

    Args:
        share: The observed share of successes, in [0, 1].
        trials: Number of independent trials. A share of `trials` means of values in [0, 1] is allowed, such as tasks
            that were each played several times: their variance is at most p · (1 - p), so the interval is then
            conservative.
        z: The quantile of the standard normal distribution; 95% by default.

    Raises:
        InputError: There are no trials, or the share is not in [0, 1].

    >>> [round(bound, 3) for bound in wilson_interval(0.0, 36)]
    [0.0, 0.096]
    """
    if trials < 1 or not 0 <= share <= 1:
        raise InputError(f"expected a share in [0, 1] of at least 1 trial, received {share} of {trials}")
    weight = z * z / trials
    centre = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * (share * (1 - share) + weight / 4)) / (1 + weight)
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return low, high
