"""What runs along a trajectory in the order of its steps: returns, and the steps before and after.

These are functions of whole columns. A written table holds trajectories together and their steps in order, so they
check that first, and sort only where it is not so; a window with `order_by` sorts every time and takes fifteen times as
long. Rows stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Function = Callable[[Sequence[pl.Series], NDArray[np.intp]], pl.Series]
    """From columns in order, and the rows where trajectories start, to a column in order."""


def discounted(reward: pl.Expr, gamma: float) -> pl.Expr:
    """R_t = r_t + γ R_{t+1}: the discounted sum of the rewards of a step and those after it.

    It is no window: each term is rounded with those after it, as in the recursion, for a return that lies between two
    float32 numbers is rounded to another one if its last bit differs. Polars' own recursion (`ewm_mean`) and sums of
    γ^t r_t round differently.

    >>> steps = pl.DataFrame({"trajectory_key": 0, "step": [0, 1, 2], "r": [1.0, 0.0, 4.0]})
    >>> steps.select(discounted(pl.col("r"), 0.5)).to_series().to_list()
    [2.0, 2.0, 4.0]
    """
    return in_order([reward], lambda columns, starts: pl.Series(returns(columns[0].to_numpy(), starts, gamma)))


def steps_left() -> pl.Expr:
    """T - t: how many steps follow a step in its trajectory, as int64.

    >>> steps = pl.DataFrame({"trajectory_key": [7, 8, 7], "step": [1, 0, 0]})
    >>> steps.select(steps_left()).to_series().to_list()
    [0, 0, 1]
    """

    def count(columns: Sequence[pl.Series], starts: NDArray[np.intp]) -> pl.Series:
        rows = len(columns[0])
        lengths = np.diff(starts, append=rows)
        return pl.Series(np.repeat(starts + lengths - 1, lengths) - np.arange(rows))

    return in_order([pl.col("step")], count, pl.Int64())


def first_step() -> pl.Expr:
    """True on the first row of each trajectory."""

    def begins(columns: Sequence[pl.Series], starts: NDArray[np.intp]) -> pl.Series:
        found = np.zeros(len(columns[0]), np.bool_)
        found[starts] = True
        return pl.Series(found)

    return in_order([pl.col("step")], begins, pl.Boolean())


def neighbour(value: pl.Expr, offset: int) -> pl.Expr:
    """A value of the step `offset` steps later (earlier if negative) in the same trajectory; null where there is none.

    >>> steps = pl.DataFrame({"trajectory_key": [7, 8, 7], "step": [1, 0, 0], "x": [1.0, 5.0, 4.0]})
    >>> steps.select(neighbour(pl.col("x"), 1)).to_series().to_list()
    [None, None, 1.0]
    """

    def shifted(columns: Sequence[pl.Series], starts: NDArray[np.intp]) -> pl.Series:
        rows = len(columns[0])
        ends = np.append(starts[1:], rows)
        begun = np.arange(rows) + offset
        lengths = ends - starts
        inside = (begun >= np.repeat(starts, lengths)) & (begun < np.repeat(ends, lengths))
        frame = pl.DataFrame([columns[0].alias("value"), pl.Series("inside", inside)])
        return frame.select(pl.when("inside").then(pl.col("value").shift(-offset))).to_series()

    return in_order([value], shifted, pl.dtype_of(value))


def in_order(
    values: Sequence[pl.Expr], function: Function, kind: pl.DataType | pl.DataTypeExpr | None = None
) -> pl.Expr:
    """A function of columns in the order of trajectories and steps, as an expression of type `kind` (Float64)."""

    def call(columns: Sequence[pl.Series]) -> pl.Series:
        trajectory, step, *given = columns
        order = trajectory_order(trajectory, step)
        if order is None:
            return function(given, trajectory_starts(trajectory))
        sorted_values = [column.gather(order) for column in given]
        return function(sorted_values, trajectory_starts(trajectory.gather(order))).gather(order.arg_sort())

    return batches([pl.col("trajectory_key"), pl.col("step"), *values], call, kind or pl.Float64())


def trajectory_starts(trajectory: pl.Series) -> NDArray[np.intp]:
    """The rows where trajectories start, in a column where they are together."""
    keys = trajectory.to_numpy()
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])


def trajectory_order(trajectory: pl.Series, step: pl.Series) -> pl.Series | None:
    """The rows by trajectory and step; None if they are in order: trajectories together, their steps ascending."""
    starts = trajectory_starts(trajectory)
    numbers = step.to_numpy()
    onward = numbers[1:] > numbers[:-1]
    onward[starts[1:] - 1] = True
    if onward.all() and trajectory.gather(starts).is_unique().all():
        return None
    return (
        pl.DataFrame([trajectory.alias("trajectory"), step.alias("step")])
        .select(pl.arg_sort_by("trajectory", "step"))
        .to_series()
    )


def returns(rewards: NDArray[np.float64], starts: NDArray[np.intp], gamma: float) -> NDArray[np.float64]:
    """R_t of rows in order: all trajectories go back a step at a time together, those still running a prefix."""
    lengths = np.diff(starts, append=len(rewards))
    by_length = np.argsort(-lengths, kind="stable")
    ends, lengths = (starts + lengths - 1)[by_length], lengths[by_length]
    found, running = np.empty(len(rewards)), np.zeros(len(lengths))
    with np.errstate(over="ignore", invalid="ignore"):
        for back in range(int(lengths.max(initial=0))):
            going = int(np.searchsorted(-lengths, -back))  # those of more than `back` steps
            at = ends[:going] - back
            running = rewards[at] + gamma * running[:going]
            found[at] = running
    return found


def batches(
    columns: Sequence[pl.Expr],
    function: Callable[[Sequence[pl.Series]], pl.Series],
    kind: pl.DataType | pl.DataTypeExpr,
) -> pl.Expr:
    """A function of whole columns as an expression; each gets a name of its own, which Polars needs."""

    def call(given: Sequence[pl.Series], return_dtype: object = None) -> pl.Series:  # noqa: ARG001
        return function(given)

    named = [column.alias(f"(input {number})") for number, column in enumerate(columns)]
    return pl.map_batches(named, call, return_dtype=kind)
