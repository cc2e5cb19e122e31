"""The building blocks of estimators: keys, returns, and means and deviations within groups, as Polars expressions.

    mean(x)        = low + Σ (x - low) / n
    variance(x)    = (Σ (x - low)² - (Σ (x - low))² / n) / (n - ddof)          low is the group's least x

A sum of floating-point numbers depends on the order in which they are added, and Polars adds in an order that changes
with engine, threads and chunks. So that the same table always gives the same bits, terms are first rounded to a grid
so coarse that their sum is exact, and then no order matters: for terms of at most b and n of them, t + 2nb - 2nb
rounds t to a multiple of 2nb · 2⁻⁵³ (Demmel and Nguyen 2013, "Fast reproducible floating-point summation"). A sum is
off by no more than n roundings of ordinary addition at its largest term. Where x are equal, x - low is 0, and
so are mean, deviation and advantage: not nearly, but exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from hgpo_train.advantages.parameters import Mode

_ODD: Final = -7046029254386353131  # 2⁶⁴/φ as int64: multiplied by it, numbers spread over the 64 bits

_VALUE, _GROUP, _SAMPLE, _COUNT = "(value)", "(group)", "(sample)", "(count)"
_LOW, _HIGH, _SPAN, _ABOVE, _GRID, _COARSE = "(low)", "(high)", "(span)", "(above)", "(grid)", "(coarse)"
_MEAN, _SQUARE = "(mean)", "(square)"


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


def within(*columns: str) -> pl.Expr:
    """The key of a group: the rows of one task that agree on some columns of hashes; null where one of them is null.

    `within()` is the task itself, `within("history_hash_2")` the steps with the same last three states. Windows
    over one integer column are about twice as fast as over several columns.
    """
    group = pl.col("task_key")
    for column in columns:
        group = chain(group, pl.col(column))
    return group


def along(value: pl.Expr, *, backwards: bool = False) -> pl.Expr:
    """A window over each trajectory in the order of its steps, or backwards; the table's row order does not matter."""
    return value.over("trajectory_key", order_by="step", descending=backwards)


def discounted(reward: pl.Expr, gamma: float) -> pl.Expr:
    """R_t = r_t + γ R_{t+1}: the discounted sum of the rewards of a step and those after it.

    The one sum that is no window: each term is rounded with those after it, as in the recursion, for a return that lies
    between two float32 numbers is rounded to another one if its last bit differs. Polars' own recursion
    (`ewm_mean`) and sums of γ^t r_t round differently.

    >>> steps = pl.DataFrame({"trajectory_key": 0, "step": [0, 1, 2], "r": [1.0, 0.0, 4.0]})
    >>> steps.select(discounted(pl.col("r"), 0.5)).to_series().to_list()
    [2.0, 2.0, 4.0]
    """
    return _in_order(reward, lambda rewards, starts: _backwards(rewards, starts, gamma))


def summed(reward: pl.Expr) -> pl.Expr:
    """The sum of each trajectory's rewards, added in the order of its steps, on each of its rows.

    >>> steps = pl.DataFrame({"trajectory_key": [7, 8, 7], "step": [1, 0, 0], "r": [1.0, 5.0, 4.0]})
    >>> steps.select(summed(pl.col("r"))).to_series().to_list()
    [5.0, 5.0, 5.0]
    """

    def sums(rewards: NDArray[np.float64], starts: NDArray[np.intp]) -> NDArray[np.float64]:
        lengths = np.diff(starts, append=len(rewards))
        number = np.repeat(np.arange(len(starts)), lengths)
        return np.repeat(np.bincount(number, rewards, len(starts)), lengths)

    return _in_order(reward, sums)


def _in_order(
    reward: pl.Expr, function: Callable[[NDArray[np.float64], NDArray[np.intp]], NDArray[np.float64]]
) -> pl.Expr:
    """A function of rewards by trajectory and step, and of the rows where trajectories start, as an expression."""

    def call(columns: Sequence[pl.Series]) -> pl.Series:
        trajectory, step, rewards = columns
        order = trajectory_order(trajectory, step)
        if order is not None:
            trajectory, rewards = trajectory.gather(order), rewards.gather(order)
        starts = trajectory.ne_missing(trajectory.shift(1)).fill_null(value=True).arg_true().to_numpy().astype(np.intp)
        values = function(rewards.to_numpy(), starts)
        if order is not None:
            placed = np.empty(len(values))
            placed[order.to_numpy()] = values
            values = placed
        return pl.Series(values)

    return batches([pl.col("trajectory_key"), pl.col("step"), reward], call, pl.Float64())


def trajectory_order(trajectory: pl.Series, step: pl.Series) -> pl.Series | None:
    """The rows by trajectory and step; None if they are in order: trajectories together, their steps ascending."""
    rows = pl.DataFrame([trajectory.alias("trajectory"), step.alias("step")])
    begins = pl.col("trajectory").ne_missing(pl.col("trajectory").shift(1)).fill_null(value=True)
    onward = (begins | (pl.col("step") > pl.col("step").shift(1))).all()
    apart = pl.col("trajectory").filter(begins).is_unique().all()
    if all(rows.select(onward=onward, apart=apart).row(0)):
        return None
    return rows.select(pl.arg_sort_by("trajectory", "step")).to_series()


def _backwards(values: NDArray[np.float64], starts: NDArray[np.intp], gamma: float) -> NDArray[np.float64]:
    """Returns of rows in order: all trajectories go back a step at a time together, those still running a prefix."""
    lengths = np.diff(starts, append=len(values))
    by_length = np.argsort(-lengths, kind="stable")
    ends, lengths = (starts + lengths - 1)[by_length], lengths[by_length]
    returns, running = np.empty(len(values)), np.zeros(len(lengths))
    with np.errstate(over="ignore", invalid="ignore"):
        for back in range(int(lengths.max(initial=0))):
            going = int(np.searchsorted(-lengths, -back))  # those of more than `back` steps
            at = ends[:going] - back
            running = values[at] + gamma * running[:going]
            returns[at] = running
    return returns


def batches(
    columns: Sequence[pl.Expr],
    function: Callable[[Sequence[pl.Series]], pl.Series],
    kind: pl.DataType,
    *,
    returns_scalar: bool = False,
) -> pl.Expr:
    """A function of whole columns as an expression; each gets a name of its own, which Polars needs."""

    def call(given: Sequence[pl.Series], return_dtype: object = None) -> pl.Series:  # noqa: ARG001
        return function(given)

    named = [column.alias(f"(input {number})") for number, column in enumerate(columns)]
    return pl.map_batches(named, call, return_dtype=kind, returns_scalar=returns_scalar)


def mean(
    steps: pl.LazyFrame, value: str | pl.Expr, group: pl.Expr, into: str, *, sample: pl.Expr | None = None
) -> pl.LazyFrame:
    """Adds the mean of each row's group.

    Args:
        steps: A table.
        value: What the mean is of.
        group: The group's key, see `within`; the mean is null where it is null.
        into: The new column.
        sample: The rows that count; None for all.

    >>> steps = pl.LazyFrame({"task_key": [1, 1, 2], "x": [1.0, 2.0, 5.0]})
    >>> mean(steps, "x", within(), "m").collect()["m"].to_list()
    [1.5, 1.5, 5.0]
    """
    found = _moments(steps, expression(value), group, sample, squares=False)
    return found.with_columns(_where_grouped(pl.col(_LOW) + pl.col(_MEAN)).alias(into))


def normalise(
    steps: pl.LazyFrame,
    value: str | pl.Expr,
    group: pl.Expr,
    into: str,
    *,
    mode: Mode = "mean_std_norm",
    ddof: int = 0,
    epsilon: float = 1e-6,
    sample: pl.Expr | None = None,
    alone: pl.Expr | None = None,
) -> pl.LazyFrame:
    """Adds (x - mean) / (std + ε) of each row's group, or x - mean for ``mean_norm``; exactly 0 where x are equal.

    Args:
        steps: A table.
        value: x.
        group: The group's key, see `within`; the result is null where it is null.
        into: The new column. `size(into)` is one more: how many rows the group has.
        mode: Whether to divide.
        ddof: 0 divides squares by n, 1 by n - 1.
        epsilon: Added to the standard deviation.
        sample: The rows that mean and deviation are taken over; None for all.
        alone: The result where only one row counts; None leaves it null.

    >>> steps = pl.LazyFrame({"task_key": [1, 1, 1, 2], "x": [0.1, 0.1, 0.1, 4.0]})
    >>> normalise(steps, "x", within(), "a").collect()["a"].to_list()
    [0.0, 0.0, 0.0, None]
    """
    found = _moments(steps, expression(value), group, sample, squares=mode == "mean_std_norm")
    count, centred = pl.col(_COUNT), pl.col(_VALUE) - pl.col(_LOW) - pl.col(_MEAN)
    result = centred
    if mode == "mean_std_norm":
        variance = pl.col(_SQUARE) - pl.col(_MEAN) * pl.col(_MEAN)
        if ddof:
            variance = quotient(variance * count, count - ddof)
        result = quotient(centred, variance.sqrt() + epsilon)
    if not epsilon:  # 0 / 0 where all are equal
        result = pl.when(pl.col(_SPAN) > 0).then(result).otherwise(centred)
    shared: pl.Expr
    if alone is None:
        shared = pl.when((count > 1) & pl.col(_GROUP).is_not_null()).then(result)
    else:
        shared = _where_grouped(pl.when(count > 1).then(result).otherwise(alone))
    return found.with_columns(shared.alias(into), _where_grouped(count).alias(size(into)))


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
        name: pl.when((pl.col(name) != 0) if skip_zero else pl.col(name).is_not_null()).then(weight).otherwise(0.0)
        for name, weight in levels.items()
    }
    total = pl.sum_horizontal(weight * pl.col(name) for name, weight in levels.items())
    steps = steps.with_columns(pl.sum_horizontal(counted.values()).alias("(weight)"))
    whole = pl.when(pl.col("(weight)") > 0).then(pl.col("(weight)") + epsilon).otherwise(1.0)
    parts = [quotient(weight, whole).alias(f"weight_{name}") for name, weight in counted.items()]
    return steps.with_columns(*parts, advantage=quotient(total, whole))


def quotient(above: pl.Expr, below: pl.Expr) -> pl.Expr:
    """The quotient, made as above · (1 / below).

    Polars divides by a column of one repeated value that way and by others directly, with another last bit.
    """
    return above * (1.0 / below)


def _where_grouped(value: pl.Expr) -> pl.Expr:
    return pl.when(pl.col(_GROUP).is_not_null()).then(value)


def _moments(
    steps: pl.LazyFrame, value: pl.Expr, group: pl.Expr, sample: pl.Expr | None, *, squares: bool
) -> pl.LazyFrame:
    """Adds each group's number of rows, least value and span, and the means of x - low and of its square."""
    counted = value if sample is None else pl.when(sample).then(value)
    steps = steps.with_columns(value.alias(_VALUE), group.alias(_GROUP), counted.alias(_SAMPLE))
    of_group = pl.col(_SAMPLE)
    steps = steps.with_columns(
        of_group.count().over(_GROUP).cast(pl.Float64).alias(_COUNT),
        of_group.min().over(_GROUP).alias(_LOW),
        of_group.max().over(_GROUP).alias(_HIGH),
    )
    steps = steps.with_columns(
        (of_group - pl.col(_LOW)).alias(_ABOVE), (pl.col(_HIGH) - pl.col(_LOW)).alias(_SPAN)
    ).with_columns((2.0 * pl.col(_COUNT) * pl.col(_SPAN)).alias(_GRID))
    sums = [_on_grid(pl.col(_ABOVE), pl.col(_GRID)).mean().over(_GROUP).alias(_MEAN)]
    if squares:
        steps = steps.with_columns((pl.col(_GRID) * pl.col(_SPAN)).alias(_COARSE))
        sums.append(_on_grid(pl.col(_ABOVE) * pl.col(_ABOVE), pl.col(_COARSE)).mean().over(_GROUP).alias(_SQUARE))
    return steps.with_columns(sums)


def _on_grid(term: pl.Expr, bound: pl.Expr) -> pl.Expr:
    """Terms rounded so that the sum of all is exact; `bound` is at least twice the sum of their magnitudes.

    It must be a column: Polars would fuse a product into the sum, and round it differently.
    """
    return (term + bound) - bound
