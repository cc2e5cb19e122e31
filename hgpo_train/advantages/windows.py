"""Building blocks of estimators: group keys, and means and z-scores within groups, as Polars window expressions.

Each function takes a LazyFrame and returns it with additional columns, or returns an expression. The rows of a
trajectory are next to each other, in the order of their steps, and are neither dropped nor reordered. A group is the
set of rows with an equal int64 key, for example the steps of a task in the same state; a row whose key is null is in no
group. Z-scores of returns among these steps, and 0 in singleton groups:

    steps = normalise(steps, "advantage", "return", within("state_hash"), alone=0.0)

Sums are those of float64, and their last digits depend on the order in which an engine adds. What is within their
rounding of 0 is therefore 0: if all values of a group are equal, their deviations are exactly 0.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hgpo_train.advantages.parameters import Mode

# 2⁶⁴/φ as int64: multiplication by it spreads numbers over all 64 bits
_ODD: Final = -7046029254386353131
_ROUNDING: Final = 1e-15  # some multiple of the rounding of one addition


def key(columns: Iterable[str]) -> pl.Expr:
    """Return an int64 key of each row's combination of values, valid within one query; null counts as a value."""
    hashes = [pl.col(column).hash().reinterpret(signed=True) for column in columns]
    return reduce(chain, hashes) if hashes else pl.lit(0, pl.Int64)


def chain(before: pl.Expr, item: pl.Expr) -> pl.Expr:
    """Return the int64 hash of a sequence that is extended by one item; null if either is null.

    The hash depends on the order of the items, and equal neighbours do not cancel. It wraps around at 64 bits.
    """
    return before * _ODD + item


def within(*columns: str, of: str = "task_key") -> pl.Expr:
    """Return the int64 key of a group: the rows of a task with equal values in some columns.

    `within()` is the key of the task, `within("history_hash_2")` the key of the steps with the same last three states.
    Use it in `over`: windows over one integer column are about twice as fast as windows over several columns.

    Args:
        columns: Names of int64 columns, usually hashes. The key is null if one of the values is null.
        of: The key whose rows are divided into groups: `task_key` or `batch_key`.
    """
    return reduce(chain, map(pl.col, columns), pl.col(of))


def neighbour(value: str | pl.Expr, offset: int) -> pl.Expr:
    """Return the value at another step of the same trajectory; null if there is no such step.

    Args:
        value: A column or expression of any type.
        offset: How many steps later; negative for earlier steps.

    >>> steps = pl.DataFrame({"trajectory_key": [7, 7, 8], "x": [4.0, 1.0, 5.0]})
    >>> steps.select(neighbour("x", 1)).to_series().to_list()
    [1.0, None, None]
    """
    trajectory = pl.col("trajectory_key")
    # The value where the trajectory goes back that far, moved there.
    return pl.when(trajectory == trajectory.shift(offset)).then(value).shift(-offset)


def mean(
    steps: pl.LazyFrame,
    into: str,
    value: str | pl.Expr,
    group: pl.Expr,
) -> pl.LazyFrame:
    """Add the mean of a value within each row's group; it is exactly x if all x of the group are equal.

    Args:
        steps: A table.
        into: The name of the new column (Float64); null where the group's key is null.
        value: The averaged value x: a numeric column or expression. Nulls do not count.
        group: The int64 key of the group; see `within`.

    >>> steps = pl.LazyFrame({"task_key": [1, 1, 2], "x": [1.0, 2.0, 5.0]})
    >>> mean(steps, "m", "x", within()).collect()["m"].to_list()
    [1.5, 1.5, 5.0]
    """
    x = pl.col("(x)")
    steps = steps.with_columns(**{"(group)": group, "(x)": value})
    steps = steps.with_columns(x.cast(pl.Float64))
    steps = steps.with_columns(
        x.mean().over("(group)").alias("(mean)"),
        x.min().over("(group)").alias("(least)"),
        x.max().over("(group)").alias("(most)"),
    )

    # A sum of equal numbers is rounded, and its mean can be another number.
    least = pl.col("(least)")
    average = pl.when(least == pl.col("(most)")).then(least).otherwise("(mean)")
    grouped = pl.col("(group)").is_not_null()
    return steps.with_columns(pl.when(grouped).then(average).alias(into))


def normalise(
    steps: pl.LazyFrame,
    into: str,
    value: str | pl.Expr,
    group: pl.Expr,
    *,
    mode: Mode = "mean_std_norm",
    ddof: int = 0,
    epsilon: float = 1e-6,
    sample: pl.Expr | None = None,
    alone: pl.Expr | float | None = None,
) -> pl.LazyFrame:
    """Add (x - mean) / (std + ε) within each row's group, or x - mean with ``mean_norm``.

    Args:
        steps: A table.
        into: The name of the new column (Float64). `size_<into>`, the number of sampled rows in the group, is
            added too. Both are null where the group's key is null.
        value: The compared value x: a numeric column or expression.
        group: The int64 key of the group; see `within`.
        mode: Whether deviations are divided by the standard deviation.
        ddof: Delta degrees of freedom of the standard deviation: the divisor is n - ddof.
        epsilon: ε, added to the standard deviation.
        sample: A boolean expression that selects the rows of mean and standard deviation; None selects all rows.
        alone: The result of singleton groups, whose sample is a single row; None leaves it null.

    >>> steps = pl.LazyFrame({"task_key": [1, 1, 1, 2], "x": [0.1, 0.1, 0.1, 4.0]})
    >>> normalise(steps, "a", "x", within()).collect()["a"].to_list()
    [0.0, 0.0, 0.0, None]
    """
    # 1. The value, and the statistics of each group.
    x = pl.col("(x)")
    steps = steps.with_columns(**{"(group)": group, "(x)": value})
    steps = steps.with_columns(x.cast(pl.Float64))
    sampled = x
    if sample is not None:
        steps = steps.with_columns(pl.when(sample).then("(x)").alias("(sample)"))
        sampled = pl.col("(sample)")
    steps = steps.with_columns(
        sampled.mean().over("(group)").alias("(mean)"),
        sampled.std(ddof).over("(group)").alias("(std)"),
        sampled.count().cast(pl.Float64).over("(group)").alias("(n)"),
    )

    # 2. The result: exactly 0 where a value differs from the mean by rounding alone.
    mean = pl.col("(mean)")
    std = pl.col("(std)")
    n = pl.col("(n)")
    deviation = x - mean
    score = deviation
    if mode == "mean_std_norm":
        score = score / (std + epsilon)
    rounding = _ROUNDING * n * (mean.abs() + std)  # of a sum of n numbers
    # NaN counts as equal to NaN
    equal = (deviation.abs() <= rounding) & deviation.is_finite()

    # 3. Nothing outside of groups, and what the caller chose in singleton groups.
    grouped = pl.col("(group)").is_not_null()
    score = pl.when(equal).then(0.0).otherwise(score)
    compared = pl.when(grouped & (n > 1)).then(score)
    result = compared if alone is None else compared.when(grouped).then(alone)
    return steps.with_columns(
        result.alias(into),
        pl.when(grouped).then(n).alias(f"size_{into}"),
    )


def weighted_mean(
    steps: pl.LazyFrame,
    levels: Mapping[str, float],
    *,
    skip_zero: bool = True,
    epsilon: float = 1e-6,
) -> pl.LazyFrame:
    """Add `advantage`, the weighted mean of levels Σ w_k A_k / (Σ w_k + ε), and the effective weights.

    The sums are over the levels that are not null (and not 0 with `skip_zero`). A step without any level has advantage
    0. The effective weight of a level, `weight_<level>`, is w_k / (Σ w_k + ε), or 0 if the level is excluded.

    Args:
        steps: A table with a numeric column A_k for each level, null if the step does not have the level.
        levels: The weight w_k of each level's column.
        skip_zero: Whether levels that are exactly 0 are excluded.
        epsilon: ε, added to the sum of the weights.
    """
    weights = {}
    products = []
    for name, weight in levels.items():
        level = pl.col(name)
        counts = level != 0 if skip_zero else level.is_not_null()
        weights[name] = pl.when(counts).then(weight).otherwise(0.0)
        products.append(weight * level.fill_null(0.0))
    steps = steps.with_columns(reduce(add, weights.values()).alias("(weight)"))

    # Without any level, numerator and weights are 0, and so is what they are divided by 1.
    total = pl.col("(weight)")
    divisor = pl.when(total > 0).then(total + epsilon).otherwise(1.0)
    return steps.with_columns(
        *(
            (weight / divisor).alias(f"weight_{name}")
            for name, weight in weights.items()
        ),
        advantage=reduce(add, products) / divisor,
    )
