"""The building blocks of estimators: keys of groups, and means and z-scores within groups, as Polars windows.

A sum of floating-point numbers depends on the order in which they are added, and Polars adds in an order that changes
with engine, threads and chunks. So that the same table always gives the same bits, values are summed as whole multiples
X of one small unit, the same for all rows of a task, and sums of integers are exact in any order:

    X          = round(x / unit),  unit the power of two for which n · max|x| / unit is between 2⁶⁰ and 2⁶¹
    n, S, Q    = Σ 1, Σ X, Σ X²                        over the group; Q takes 128 bits
    x - mean   = (n X - S) / n · unit
    variance   = (n Q - S²) / n² · unit²               by n; times n / (n - 1) for ddof = 1

n and max|x| are the task's. Rounding moves x by at most n · max|x| · 2⁻⁶¹, less than float64 itself does for tasks of
up to 256 rows. Nothing cancels: where all x of a group are equal, mean, deviation and advantage are exactly right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hgpo_train.advantages.parameters import Mode

_ODD: Final = -7046029254386353131  # 2⁶⁴/φ as int64: multiplied by it, numbers spread over the 64 bits
_EXPONENT: Final = 0x7FF0000000000000  # the bits of a float64 that hold its exponent

_VALUE, _MAGNITUDE, _GROUP = "(value)", "(magnitude)", "(group)"
_LARGEST, _ROWS, _PER_UNIT = "(largest)", "(rows)", "(per unit)"
_UNITS, _COUNTED, _SQUARED = "(units)", "(counted)", "(squared)"
_COUNT, _SUM, _SQUARES, _LOW, _HIGH = "(count)", "(sum)", "(squares)", "(low)", "(high)"


def expression(column: str | pl.Expr) -> pl.Expr:
    """A column's name as an expression; an expression as it is."""
    return pl.col(column) if isinstance(column, str) else column


def key(columns: Iterable[str]) -> pl.Expr:
    """One int64 for each combination of some columns; null counts as a value. Valid within one query only.

    >>> pl.DataFrame({"a": ["x", "x", "y"], "b": [1, 1, None]}).select(key(["a", "b"]).n_unique()).item()
    2
    """
    mixed = pl.lit(0, pl.Int64)
    for column in columns:
        mixed = chain(mixed, pl.col(column).hash().reinterpret(signed=True))
    return mixed


def chain(before: pl.Expr, item: pl.Expr) -> pl.Expr:
    """One int64 for a sequence of hashes and the hash that follows it, null where one of them is.

    Order counts and equal neighbours do not cancel. The result wraps around at 64 bits.
    """
    return before * _ODD + item


def within(*columns: str, of: str = "task_key") -> pl.Expr:
    """The key of a group: the rows of one task that agree on some columns of hashes; null where one of them is null.

    `within()` is the task itself, `within("history_hash_2")` the steps with the same last three states. Windows
    over one integer column are about twice as fast as over several columns.

    Args:
        columns: Columns of integers.
        of: The key that the groups are part of, `task_key` or `batch_key`.
    """
    group = pl.col(of)
    for column in columns:
        group = chain(group, pl.col(column))
    return group


def along(value: pl.Expr, *, backwards: bool = False) -> pl.Expr:
    """A window over each trajectory in the order of its steps, or backwards; the table's row order does not matter.

    `hgpo_train.advantages.trajectories` has faster functions for what is asked most.
    """
    return value.over("trajectory_key", order_by="step", descending=backwards)


def mean(
    steps: pl.LazyFrame, value: str | pl.Expr, levels: Mapping[str, Sequence[str]], *, of: str = "task_key"
) -> pl.LazyFrame:
    """Adds the mean of each row's group; exactly x where all x of the group are equal.

    Args:
        steps: A table.
        value: What the mean is of.
        levels: Each new column, and the columns that the rows of its groups agree on, see `within`; the mean is null
            where one of them is null.
        of: The key that the groups are part of.

    >>> steps = pl.LazyFrame({"task_key": [1, 1, 2], "x": [1.0, 2.0, 5.0]})
    >>> mean(steps, "x", {"m": []}).collect()["m"].to_list()
    [1.5, 1.5, 5.0]
    """
    steps = _in_units(steps, expression(value), of)
    extremes = {_LOW: pl.col(_VALUE).min(), _HIGH: pl.col(_VALUE).max()}
    for into, columns in levels.items():
        steps = _grouped(steps, within(*columns, of=of), _UNITS, extremes)
        grouped, low, high = pl.col(_GROUP).is_not_null(), pl.col(_LOW), pl.col(_HIGH)
        whole = quotient(pl.col(_SUM).cast(pl.Float64), _n() * pl.col(_PER_UNIT))
        steps = steps.with_columns(pl.when(grouped & (low == high)).then(low).when(grouped).then(whole).alias(into))
    return steps


def normalise(
    steps: pl.LazyFrame,
    value: str | pl.Expr,
    levels: Mapping[str, Sequence[str]],
    *,
    of: str = "task_key",
    mode: Mode = "mean_std_norm",
    ddof: int = 0,
    epsilon: float = 1e-6,
    sample: pl.Expr | None = None,
    alone: pl.Expr | None = None,
    nested: bool = False,
) -> pl.LazyFrame:
    """Adds (x - mean) / (std + ε) of each row's group, or x - mean for ``mean_norm``; exactly 0 where x are equal.

    Args:
        steps: A table.
        value: x.
        levels: Each new column, and the columns that the rows of its groups agree on, see `within`; the result is
            null where one of them is null. `size(column)` is one more new column: how many rows the group has.
        of: The key that the groups are part of.
        mode: Whether to divide.
        ddof: 0 divides squares by n, 1 by n - 1.
        epsilon: Added to the standard deviation.
        sample: The rows that mean and deviation are taken over; None for all.
        alone: The result where only one row counts; None leaves it null.
        nested: Whether each level's groups are parts of the groups of the level before, as longer histories are. It is
            faster: a row that is alone in its group stays alone, and is left out from there on. Not with `alone`.

    >>> steps = pl.LazyFrame({"task_key": [1, 1, 1, 2], "x": [0.1, 0.1, 0.1, 4.0]})
    >>> normalise(steps, "x", {"a": []}).collect()["a"].to_list()
    [0.0, 0.0, 0.0, None]
    """
    steps = _in_units(steps, expression(value), of)
    counted, squared, divided = _UNITS, _SQUARED, mode == "mean_std_norm"
    if sample is not None:
        counted = _COUNTED
        steps = steps.with_columns(pl.when(sample).then(_UNITS).alias(counted))
    if divided:
        steps = steps.with_columns((_wide(counted) * _wide(counted)).alias(squared))
    further = {_SQUARES: pl.col(squared).sum()} if divided else {}
    before = None
    for into, columns in levels.items():
        group = within(*columns, of=of)
        searched = pl.when(pl.col(size(before)) > 1).then(group) if nested and before else group
        steps = _grouped(steps, searched, counted, further)
        found = pl.col(_GROUP).is_not_null()
        result = _z_score(ddof, epsilon) if divided else quotient(_centred(), _n() * pl.col(_PER_UNIT))
        result = pl.when(found & (pl.col(_COUNT) > 1)).then(result)
        result = result if alone is None else result.when(found).then(alone)
        rows = pl.when(found).then(_n()).when(group.is_not_null()).then(1.0)
        steps = steps.with_columns(result.alias(into), rows.alias(size(into)))
        before = into
    return steps


def size(into: str) -> str:
    """The column of group sizes that `normalise` adds beside its result."""
    return f"size_{into}"


def weighted_mean(
    steps: pl.LazyFrame, levels: Mapping[str, float], *, skip_zero: bool = True, epsilon: float = 1e-6
) -> pl.LazyFrame:
    """Adds `advantage`, Σ w_k A_k / (Σ w_k + ε) over the levels that a step has, and each one's part `weight_<level>`.

    Args:
        steps: A table with a column for each level, null where a step does not have it.
        levels: Each level's column and its weight.
        skip_zero: Whether levels that are exactly 0 are left out.
        epsilon: Added to the sum of the weights.
    """
    counted = {
        name: ((pl.col(name) != 0) if skip_zero else pl.col(name).is_not_null()).fill_null(value=False) * weight
        for name, weight in levels.items()
    }
    total = sum((weight * pl.col(name).fill_null(0.0) for name, weight in levels.items()), pl.lit(0.0))
    steps = steps.with_columns(sum(counted.values(), pl.lit(0.0)).alias("(weight)"))
    whole = pl.when(pl.col("(weight)") > 0).then(pl.col("(weight)") + epsilon).otherwise(1.0)
    parts = [quotient(weight, whole).alias(f"weight_{name}") for name, weight in counted.items()]
    return steps.with_columns(*parts, advantage=quotient(total, whole))


def quotient(above: pl.Expr, below: pl.Expr) -> pl.Expr:
    """The quotient, made as above · (1 / below).

    Polars divides by a column of one repeated value that way and by others directly, with another last bit.
    """
    return above * (1.0 / below)


def _in_units(steps: pl.LazyFrame, value: pl.Expr, of: str) -> pl.LazyFrame:
    """Adds x as whole multiples of its task's unit."""
    value = value.cast(pl.Float64)
    steps = steps.with_columns(value.alias(_VALUE), value.abs().alias(_MAGNITUDE))
    # Aggregates of columns, not of expressions: Polars makes them in one pass over the groups.
    steps = steps.with_columns(
        pl.col(_MAGNITUDE).nan_max().over(of).alias(_LARGEST), pl.col(_MAGNITUDE).count().over(of).alias(_ROWS)
    )
    # 1 / unit is 2⁶¹ / (n · max|x|) without the bits of its fraction, a power of two. Where x are 0 or tiny, 2⁹⁰⁰ keeps
    # x / unit finite.
    most = quotient(pl.lit(2.0**61), pl.col(_ROWS).cast(pl.Float64) * pl.col(_LARGEST).fill_nan(float("inf"))).clip(
        0.0, 2.0**900
    )
    per_unit = (most.reinterpret(dtype=pl.Int64) & _EXPONENT).reinterpret(dtype=pl.Float64)
    steps = steps.with_columns(per_unit.alias(_PER_UNIT))
    # Where an x of the task is not finite, 1 / unit is 0 and what is made of it not finite either.
    units = (pl.col(_VALUE) * pl.col(_PER_UNIT)).round().cast(pl.Int64, strict=False).fill_null(0)
    units = pl.when(pl.col(_VALUE).is_not_null()).then(units)
    return steps.with_columns(units.alias(_UNITS))


def _grouped(steps: pl.LazyFrame, group: pl.Expr, counted: str, further: Mapping[str, pl.Expr]) -> pl.LazyFrame:
    """Adds how many rows count in each group, the sum of their units, and further aggregates."""
    aggregates = {_COUNT: pl.col(counted).count(), _SUM: pl.col(counted).sum(), **further}
    steps = steps.with_columns(group.alias(_GROUP))
    return steps.with_columns(value.over(_GROUP).alias(name) for name, value in aggregates.items())


def _n() -> pl.Expr:
    return pl.col(_COUNT).cast(pl.Float64)


def _centred() -> pl.Expr:
    """N (x - mean), in units."""
    return (pl.col(_UNITS) * pl.col(_COUNT).cast(pl.Int64) - pl.col(_SUM)).cast(pl.Float64)


def _z_score(ddof: int, epsilon: float) -> pl.Expr:
    count, total = _wide(_COUNT), _wide(_SUM)
    squares = (count * pl.col(_SQUARES) - total * total).cast(pl.Float64)  # n² variance, in units²
    if ddof:
        squares = quotient(squares * _n(), _n() - ddof)
    z = quotient(_centred(), squares.sqrt() + epsilon * (_n() * pl.col(_PER_UNIT)))
    return z if epsilon else pl.when(squares > 0).then(z).otherwise(0.0)  # 0 / 0 where all are equal


def _wide(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.Int128)
