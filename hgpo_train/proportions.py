"""Shares of successes: their intervals, and their bounds where some outcomes are not known."""

from __future__ import annotations

import math
from typing import Final, TypeVar

import polars as pl

from hgpo_envs.errors import InputError

Number = TypeVar("Number", float, pl.Expr)

Z: Final = 1.959963984540054
"""The 97.5% quantile of the standard normal distribution, for intervals of 95%."""

LENGTHS: Final = (5, 10, 20, 50)
"""The largest numbers of steps of the classes of `by_length`."""


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


def success_bounds(won: Number, unknown: Number, episodes: Number) -> tuple[Number, Number]:
    """Return the shares of won episodes if those of unknown outcome are lost, and if they are won.

    Aborted episodes are of unknown outcome. Long episodes are aborted more often, and are won less often, so that the
    share of won ones among those without failure is biased towards the upper bound.

    Args:
        won: Number of episodes that are known to be won; or a Polars expression, like the other arguments.
        unknown: Number of episodes of unknown outcome.
        episodes: Number of all episodes, at least 1.

    >>> success_bounds(15, 4, 20)
    (0.75, 0.95)
    """
    return won / episodes, (won + unknown) / episodes


def by_length(episodes: pl.LazyFrame | pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return how many episodes of each length were aborted and won.

    Args:
        episodes: One row per episode: `length` in steps, `won` (null if unknown) and `aborted`.
        keys: Columns to split by.

    Returns:
        One row per class of lengths that occurs: the keys, `steps` (such as ``6–10``), `episodes`, `aborted` and `won`
        (their numbers).

    >>> table = pl.DataFrame({"length": [3, 50, 50], "won": [True, None, False], "aborted": [False, True, False]})
    >>> by_length(table).rows()
    [('1–5', 1, 0, 1), ('21–50', 2, 1, 0)]
    """
    starts = [1, *(end + 1 for end in LENGTHS)]
    labels = [*(f"{start}–{end}" for start, end in zip(starts, LENGTHS, strict=False)), f"{starts[-1]}–"]
    classes = pl.sum_horizontal(pl.col("length") > end for end in LENGTHS)
    return (
        episodes.lazy()
        .group_by(*keys, classes.alias("class"))
        .agg(
            pl.len().cast(pl.Int64).alias("episodes"),
            pl.col("aborted").sum().cast(pl.Int64),
            (pl.col("won") & ~pl.col("aborted")).sum().cast(pl.Int64).alias("won"),
        )
        .sort(*keys, "class")
        .select(
            *keys, pl.col("class").replace_strict(dict(enumerate(labels))).alias("steps"), "episodes", "aborted", "won"
        )
        .collect()
    )
