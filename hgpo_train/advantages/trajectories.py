"""Values along trajectories, in the order of their steps, for any row order of the table.

The expressions require the columns `trajectory_key` (int64, equal for all steps of a trajectory) and `step` (integer),
and do not change the order of rows:

    steps = steps.with_columns(previous_reward=neighbour(pl.col("reward"), -1))

A step table usually stores each trajectory's rows contiguously and in order. The expressions test this with NumPy and
sort only other tables. They are about fifteen times as fast as a Polars window with `order_by`, which always sorts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


def neighbour(value: pl.Expr, offset: int) -> pl.Expr:
    """Return the value at another step of the same trajectory; null if there is no such step.

    Args:
        value: A column or expression of any type.
        offset: How many steps later; negative for earlier steps.

    >>> steps = pl.DataFrame({"trajectory_key": [7, 8, 7], "step": [1, 0, 0], "x": [1.0, 5.0, 4.0]})
    >>> steps.select(neighbour(pl.col("x"), 1)).to_series().to_list()
    [None, None, 1.0]
    """

    def shifted(trajectory: pl.Series, columns: Sequence[pl.Series]) -> pl.Series:
        later = pl.DataFrame([trajectory.alias("trajectory"), columns[0].alias("value")])
        same = pl.col("trajectory") == pl.col("trajectory").shift(-offset)
        return later.select(pl.when(same).then(pl.col("value").shift(-offset))).to_series()

    return in_order([value], shifted, pl.dtype_of(value))


def in_order(
    values: Sequence[pl.Expr],
    function: Callable[[pl.Series, Sequence[pl.Series]], pl.Series],
    dtype: pl.DataType | pl.DataTypeExpr,
) -> pl.Expr:
    """Return an expression that applies a function to columns that are ordered by trajectory and step.

    Args:
        values: The function's columns.
        function: A function of the ordered `trajectory_key` and columns, which returns an ordered column.
        dtype: The result's type.
    """

    def call(columns: Sequence[pl.Series]) -> pl.Series:
        trajectory, step, *rest = columns
        order = trajectory_order(trajectory, step)
        if order is None:
            return function(trajectory, rest)
        return function(trajectory.gather(order), [column.gather(order) for column in rest]).gather(order.arg_sort())

    columns = [pl.col("trajectory_key"), pl.col("step"), *(value.alias(f"({n})") for n, value in enumerate(values))]
    return pl.map_batches(columns, call, return_dtype=dtype)


def trajectory_order(trajectory: pl.Series, step: pl.Series) -> pl.Series | None:
    """Return row indices sorted by trajectory and step; None if trajectories are contiguous and their steps ascend."""
    keys, numbers = trajectory.to_numpy(), step.to_numpy()
    first = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
    ascending = (numbers[1:] >= numbers[:-1]) | first[1:]
    if ascending.all() and pl.Series(keys[first]).n_unique() == first.sum():
        return None
    rows = pl.DataFrame([trajectory.alias("trajectory"), step.alias("step")])
    return rows.select(pl.arg_sort_by("trajectory", "step")).to_series()


def discounted(
    values: NDArray[np.float64], factors: float | NDArray[np.float64], starts: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Return y_t = x_t + f_t y_{t+1} of ordered rows: returns, if f is γ.

    The recursion is computed term by term, as in the official code, because the last bit matters: it can change the
    float32 number to which a return is rounded. It runs backwards over all trajectories in parallel. They are sorted by
    decreasing length, so that the trajectories with a step at distance `back` from their end are a prefix.

    Args:
        values: x_t of rows that are ordered by trajectory and step, float64.
        factors: f, one for all rows or one per row.
        starts: The index of each trajectory's first row.
    """
    lengths = np.diff(starts, append=len(values))
    by_length = np.argsort(-lengths, kind="stable")
    ends, lengths = (starts + lengths - 1)[by_length], lengths[by_length]
    running = np.searchsorted(-lengths, -np.arange(lengths.max(initial=0)))  # trajectories longer than `back`
    result = np.empty(len(values))
    later = result[ends] = values[ends]
    with np.errstate(over="ignore", invalid="ignore"):
        for back, count in enumerate(running[1:].tolist(), 1):
            at = ends[:count] - back
            factor = factors if isinstance(factors, float) else factors[at]
            later = result[at] = values[at] + factor * later[:count]
    return result
