"""Shares of successes: their intervals, and successes by length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

Z: Final = 1.959963984540054
"""The 97.5% quantile of the standard normal distribution, for intervals of 95%."""

LENGTHS: Final = (5, 10, 20, 50)
"""The largest numbers of steps of the classes of `by_length`."""
CLASSES: Final = ("1–5", "6–10", "11–20", "21–50", "51–")


def wilson_interval(share: float, trials: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a probability: all p with |share - p| ≤ z · √(p · (1 - p) / trials).

    It has a width at 0 and 1, where tasks show no difference.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927),
    pp. 209-212. Its coverage: L. D. Brown, T. T. Cai, A. DasGupta, Interval estimation for a binomial proportion,
    Statistical Science 16 (2001), pp. 101-133.

    Args:
        share: The observed share of successes, in [0, 1].
        trials: Number of independent trials. A share of `trials` means of values in [0, 1] is allowed, such as tasks
            that were each played several times: their variance is at most p · (1 - p), so the interval is conservative.

    Raises:
        InputError: There are no trials, or the share is not in [0, 1].

    >>> [round(bound, 3) for bound in wilson_interval(0.0, 36)]
    [0.0, 0.096]
    """
    if trials < 1 or not 0 <= share <= 1:
        raise InputError(
            f"expected a share in [0, 1] of at least 1 trial, received {share} of {trials}"
        )
    weight = Z * Z / trials
    centre = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * (share * (1 - share) + weight / 4)) / (1 + weight)
    # rounding must not exclude the share itself
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def paired_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return Agresti and Min's 95% interval of the mean difference of two success rates on the same tasks.

    It is that of two more tasks, whose differences have the sum 0 and the sum of squares 1. So the interval has a width
    where few tasks differ, for which every resample gives nearly the same mean.

    Source: A. Agresti, Y. Min, Simple improved confidence intervals for comparing matched proportions, Statistics in
    Medicine 24 (2005), pp. 729-740, with 1/2 added to each of the four cells.

    Args:
        differences: Each task's difference of shares of successes, in [-1, 1].

    >>> [round(bound, 3) for bound in paired_interval([0.0] * 36)]
    [-0.052, 0.052]
    """
    count = len(differences) + 2
    mean = math.fsum(differences) / count
    variance = (math.fsum(value**2 for value in differences) + 1) / count - mean**2
    half = Z * math.sqrt(variance / count)
    observed = math.fsum(differences) / len(differences)
    return max(-1.0, min(observed, mean - half)), min(1.0, max(observed, mean + half))


_WON_OF_ENDED: Final = pl.col("won").filter(~pl.col("aborted"))
NO_OUTCOME: Final = (_WON_OF_ENDED.len() > 0) & _WON_OF_ENDED.is_null().all()
"""Whether episodes ended without aborting and it is known of none whether it won: then nothing bounds success."""


def by_length(episodes: pl.LazyFrame | pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return how many episodes of each class of lengths were aborted and won.

    Args:
        episodes: One row per episode: `length` in steps, `won` (null if unknown) and `aborted`.
        keys: Columns to split by.

    Returns:
        The keys, `steps` (such as ``6–10``), `episodes`, `aborted` and `won` (their numbers; `won` is null where
        episodes ended and the outcome of none is known).

    >>> table = pl.DataFrame({"length": [3, 50, 50], "won": [True, None, False], "aborted": [False, True, False]})
    >>> by_length(table).rows()
    [('1–5', 1, 0, 1), ('21–50', 2, 1, 0)]
    """
    won = pl.col("won").filter(~pl.col("aborted"))
    numbers = {
        "episodes": pl.len(),
        "aborted": pl.col("aborted").sum(),
        "won": pl.when(~NO_OUTCOME).then(won.sum()),
    }
    number_of_class = pl.sum_horizontal(pl.col("length") > most for most in LENGTHS)
    totals = episodes.lazy().group_by(*keys, number_of_class.alias("steps"))
    table = totals.agg(
        number.cast(pl.Int64).alias(name) for name, number in numbers.items()
    ).sort(*keys, "steps")
    titles = pl.col("steps").replace_strict(
        range(len(CLASSES)), CLASSES, return_dtype=pl.String
    )
    return table.with_columns(titles).collect()
