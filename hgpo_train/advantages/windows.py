"""Building blocks of estimators: group keys, and means and z-scores within groups, as Polars window expressions.

Each function takes a LazyFrame and returns it with additional columns, or returns an expression. Rows are neither
dropped nor reordered. Groups are subsets of the rows with equal `task_key`, an int64 column that identifies the
rollouts of one task (see `input_columns.py`). For example, z-scores of returns among a task's steps in the same state,
and 0 in singleton groups:

    steps = normalise(steps, {"advantage": Level("return", ["state_hash"], alone=pl.lit(0.0))})

Results are identical, bit for bit, for any row order, engine, number of threads and chunk size. This does not apply to
Polars' own sums and means of floating-point numbers, because their rounding depends on the order of the additions. The
functions of this module round values to integer multiples X of a small unit, one unit per task. Sums of integers are
exact in any order:

    X          = round(x / unit),  unit the power of two for which n · max|x| / unit is between 2⁶⁰ and 2⁶¹
    n, S, Q    = Σ 1, Σ X, Σ X²                        over the group; Q takes 128 bits
    x - mean   = (n X - S) / n · unit
    variance   = (n Q - S²) / n² · unit²               by n; times n / (n - 1) for ddof = 1

In the unit, n and max|x| are those of the task. Rounding changes x by at most n · max|x| · 2⁻⁶¹, which for tasks of up
to 256 rows is within the rounding error of float64. No digits cancel: if all x of a group are equal, their mean is
exactly x and their deviations are exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hgpo_train.advantages.parameters import Mode

_ODD: Final = -7046029254386353131  # 2⁶⁴/φ as int64: multiplication by it spreads numbers over all 64 bits
_EXPONENT: Final = 0x7FF0000000000000  # mask of a float64's exponent bits

_GROUP, _MAGNITUDE, _LARGEST, _ROWS, _PER_UNIT = "(group)", "(magnitude)", "(largest)", "(rows)", "(per unit)"


def expression(column: str | pl.Expr) -> pl.Expr:
    """Return a column name as an expression; return an expression unchanged."""
    return pl.col(column) if isinstance(column, str) else column


def key(columns: Iterable[str]) -> pl.Expr:
    """Return an int64 key of each row's combination of values; null counts as a value.

    Keys are hashes and are valid only within one query.

    >>> pl.DataFrame({"a": ["x", "x", "y"], "b": [1, 1, None]}).select(key(["a", "b"]).n_unique()).item()
    2
    """
    mixed = pl.lit(0, pl.Int64)
    for column in columns:
        mixed = chain(mixed, pl.col(column).hash().reinterpret(signed=True))
    return mixed


def chain(before: pl.Expr, item: pl.Expr) -> pl.Expr:
    """Return the int64 hash of a sequence that is extended by one item.

    The hash depends on the order of the items, and equal neighbours do not cancel. The multiplication wraps around at
    64 bits.

    Args:
        before: Hash of the sequence so far, int64.
        item: Hash of the item that follows, int64. The result is null if either hash is null.
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
    group = pl.col(of)
    for column in columns:
        group = chain(group, pl.col(column))
    return group


def along(value: pl.Expr) -> pl.Expr:
    """Return a window over each trajectory in the order of its steps, for any row order of the table.

    `hgpo_train.advantages.trajectories` has faster functions for the most frequent cases.

    Args:
        value: An expression that depends on the order of rows, such as ``pl.col("return").cum_max()``.
    """
    return value.over("trajectory_key", order_by="step")


def mean(
    steps: pl.LazyFrame, value: str | pl.Expr, levels: Mapping[str, Sequence[str]], *, of: str = "task_key"
) -> pl.LazyFrame:
    """Add the mean of a value within each row's group; it is exactly x if all x of the group are equal.

    Args:
        steps: A table with the key `of`.
        value: The averaged value x: a numeric column or expression.
        levels: For each new column (Float64), the columns that define its groups (see `within`); an empty sequence for
            the whole task. The mean is null if one of these columns is null.
        of: The key whose rows are divided into groups: `task_key` or `batch_key`.

    >>> steps = pl.LazyFrame({"task_key": [1, 1, 2], "x": [1.0, 2.0, 5.0]})
    >>> mean(steps, "x", {"m": []}).collect()["m"].to_list()
    [1.5, 1.5, 5.0]
    """
    steps, (x,) = _in_units(steps, [Level(value)], of)
    for into, columns in levels.items():
        steps = _grouped(steps, within(*columns, of=of), [x], least=True)
        grouped, least = pl.col(_GROUP).is_not_null(), x("least")
        # All x are equal if n times the least x is the sum. 1 / unit is 0 if an x of the task is not finite.
        equal = (x("count") * _multiples(least) == x("sum")) & (pl.col(_PER_UNIT) > 0)
        whole = quotient(x("sum").cast(pl.Float64), x.n * pl.col(_PER_UNIT))
        steps = steps.with_columns(pl.when(grouped & equal).then(least).when(grouped).then(whole).alias(into))
    return steps


@dataclass(frozen=True)
class Level:
    """A value and the groups in which `normalise` compares it.

    Attributes:
        value: The compared value x: a numeric column or expression.
        columns: The columns that define the groups (see `within`); an empty sequence for the whole task.
        sample: A boolean expression that selects the rows of mean and standard deviation; None selects all rows.
        alone: The result of singleton groups, whose sample is a single row; None leaves it null.
    """

    value: str | pl.Expr
    columns: Sequence[str] = ()
    sample: pl.Expr | None = None
    alone: pl.Expr | None = None


def normalise(
    steps: pl.LazyFrame,
    levels: Mapping[str, Level],
    *,
    of: str = "task_key",
    mode: Mode = "mean_std_norm",
    ddof: int = 0,
    epsilon: float = 1e-6,
    nested: bool = False,
) -> pl.LazyFrame:
    """Add z-scores within each row's group, (x - mean) / (std + ε); they are exactly 0 if all x of a group are equal.

    Args:
        steps: A table with the key `of`.
        levels: For each new column (Float64), its value and groups. The result is null in singleton groups without
            `Level.alone`, and if a column that defines the groups is null. Each level also adds the column
            `size(column)`: the number of sampled rows of the group (Float64).
        of: The key whose rows are divided into groups: `task_key` or `batch_key`.
        mode: ``mean_std_norm`` as above; ``mean_norm`` for x - mean.
        ddof: Delta degrees of freedom of the standard deviation: the divisor is n - ddof.
        epsilon: ε, added to the standard deviation.
        nested: Whether the groups of each level are subsets of the groups of the previous level, as for histories of
            increasing length. This is faster, because rows in singleton groups are excluded from the following levels.
            Do not combine it with `Level.alone`.

    >>> steps = pl.LazyFrame({"task_key": [1, 1, 1, 2], "x": [0.1, 0.1, 0.1, 4.0]})
    >>> normalise(steps, {"a": Level("x")}).collect()["a"].to_list()
    [0.0, 0.0, 0.0, None]
    """
    divided = mode == "mean_std_norm"
    steps, values = _in_units(steps, list(levels.values()), of)
    if divided:
        steps = steps.with_columns((_wide(x("counted")) * _wide(x("counted"))).alias(x["squared"]) for x in set(values))
    found = {name: (level, x) for (name, level), x in zip(levels.items(), values, strict=True)}
    before = None
    for columns in dict.fromkeys(tuple(level.columns) for level in levels.values()):
        group = within(*columns, of=of)
        searched = pl.when(pl.col(size(before)) > 1).then(group) if nested and before else group
        here = {name: (level, x) for name, (level, x) in found.items() if tuple(level.columns) == columns}
        steps = _grouped(steps, searched, list(dict.fromkeys(x for _, x in here.values())), squares=divided)
        grouped = pl.col(_GROUP).is_not_null()
        for name, (level, x) in here.items():
            result = _z_score(x, ddof, epsilon) if divided else quotient(_centred(x), x.n * pl.col(_PER_UNIT))
            result = pl.when(grouped & (x("count") > 1)).then(result)
            result = result if level.alone is None else result.when(grouped).then(level.alone)
            rows = pl.when(grouped).then(x.n).when(group.is_not_null()).then(1.0)
            steps = steps.with_columns(result.alias(name), rows.alias(size(name)))
            before = name
    return steps


def size(into: str) -> str:
    """Return the name of the column of group sizes that `normalise` adds for the column `into`."""
    return f"size_{into}"


def weighted_mean(
    steps: pl.LazyFrame, levels: Mapping[str, float], *, skip_zero: bool = True, epsilon: float = 1e-6
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
    """Return above / below, computed as above · (1 / below).

    Polars computes `/` in this way if the divisor is a column of one repeated value, and divides directly otherwise.
    The last bit of the results can differ.
    """
    return above * (1.0 / below)


@dataclass(frozen=True)
class _Value:
    """The names and expressions of the temporary columns that belong to one value x."""

    number: int

    def __getitem__(self, name: str) -> str:
        return f"({name} {self.number})"

    def __call__(self, name: str) -> pl.Expr:
        return pl.col(self[name])

    @property
    def n(self) -> pl.Expr:
        return self("count").cast(pl.Float64)


def _in_units(steps: pl.LazyFrame, levels: Sequence[Level], of: str) -> tuple[pl.LazyFrame, list[_Value]]:
    """Add each level's x as integer multiples of its task's unit: `units` of all rows, `counted` of the sample."""
    named = [(value if isinstance(value := level.value, str) else id(value), id(level.sample)) for level in levels]
    numbers = {name: _Value(number) for number, name in enumerate(dict.fromkeys(named))}  # levels share equal values
    values = [numbers[name] for name in named]
    distinct = dict(zip(values, levels, strict=True))
    given = {x["value"]: expression(level.value).cast(pl.Float64) for x, level in distinct.items()}
    steps = steps.with_columns(value.alias(name) for name, value in given.items())
    magnitudes = [x("value").abs().fill_nan(float("inf")) for x in distinct]
    steps = steps.with_columns(pl.max_horizontal(magnitudes).alias(_MAGNITUDE))
    largest, rows = pl.col(_MAGNITUDE).max(), pl.col(_MAGNITUDE).count()
    steps = steps.with_columns(largest.over(of).alias(_LARGEST), rows.over(of).alias(_ROWS))
    # 1 / unit is 2⁶¹ / (n · max|x|), rounded down to a power of two by clearing the fraction's bits. If all x are 0 or
    # tiny, the limit of 2⁹⁰⁰ keeps x / unit finite. If an x of the task is not finite, 1 / unit is 0, and the division
    # by it makes all results of the task NaN or infinite.
    most = quotient(pl.lit(2.0**61), pl.col(_ROWS).cast(pl.Float64) * pl.col(_LARGEST)).clip(0.0, 2.0**900)
    per_unit = (most.reinterpret(dtype=pl.Int64) & _EXPONENT).reinterpret(dtype=pl.Float64)
    steps = steps.with_columns(per_unit.alias(_PER_UNIT))
    steps = steps.with_columns(
        pl.when(x("value").is_not_null()).then(_multiples(x("value"))).alias(x["units"]) for x in distinct
    )
    return steps.with_columns(
        (x("units") if level.sample is None else pl.when(level.sample).then(x("units"))).alias(x["counted"])
        for x, level in distinct.items()
    ), values


def _multiples(value: pl.Expr) -> pl.Expr:
    """Return values as integer multiples of their task's unit; 0 if the task has no unit."""
    return (value * pl.col(_PER_UNIT)).round().cast(pl.Int64, strict=False).fill_null(0)


def _grouped(
    steps: pl.LazyFrame, group: pl.Expr, values: Sequence[_Value], *, squares: bool = False, least: bool = False
) -> pl.LazyFrame:
    """Add each group's number of sampled rows, their sum in units, and optionally the sum of squares or the least x."""
    aggregates = {x["count"]: x("counted").count() for x in values} | {x["sum"]: x("counted").sum() for x in values}
    if squares:
        aggregates |= {x["squares"]: x("squared").sum() for x in values}
    if least:
        aggregates |= {x["least"]: x("value").min() for x in values}
    # Polars aggregates plain columns in one pass over the groups; expressions would take one pass each.
    steps = steps.with_columns(group.alias(_GROUP))
    return steps.with_columns(value.over(_GROUP).alias(name) for name, value in aggregates.items())


def _centred(x: _Value) -> pl.Expr:
    """Return n · (x - mean), in units."""
    return (x("units") * x("count").cast(pl.Int64) - x("sum")).cast(pl.Float64)


def _z_score(x: _Value, ddof: int, epsilon: float) -> pl.Expr:
    count, total = _wide(x("count")), _wide(x("sum"))
    squares = (count * x("squares") - total * total).cast(pl.Float64)  # n² variance, in units²
    if ddof:
        squares = quotient(squares * x.n, x.n - ddof)
    z = quotient(_centred(x), squares.sqrt() + epsilon * (x.n * pl.col(_PER_UNIT)))
    return z if epsilon else pl.when(squares > 0).then(z).otherwise(0.0)  # 0 / 0 where all are equal


def _wide(value: pl.Expr) -> pl.Expr:
    return value.cast(pl.Int128)
