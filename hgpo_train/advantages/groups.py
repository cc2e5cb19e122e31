"""Groups of steps as integer codes, and means and deviations within them, the same to the bit for any row order.

Floating-point sums depend on the order of their terms. Here terms are added in ascending order of value, so a group's
mean and deviation depend on its members alone: not on row order, names, engine, threads or chunks. A mean is
the group's least member plus the mean of what the others have above it, so that the mean of equal values is exactly
that value, whatever their magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_train.advantages.parameters import Mode

_ODD: Final = np.int64(-7046029254386353131)  # 2⁶⁴/φ: multiplied by it, numbers spread over the 64 bits


@dataclass(frozen=True, slots=True)
class Groups:
    """Which group each row belongs to.

    Attributes:
        code: int64 of shape (rows,), in 0 … number-1.
        number: How many groups there are.
    """

    code: NDArray[np.int64]
    number: int

    def size(self) -> NDArray[np.int64]:
        """Rows a group, int64 of shape (number,)."""
        return np.bincount(self.code, minlength=self.number)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Groups:
        """The same groups for some of the rows, or for the rows in another order."""
        return Groups(self.code[rows], self.number)


def encode(values: NDArray[np.int64]) -> Groups:
    """Rows of equal value as groups, numbered by first appearance.

    >>> encode(np.array([7, 5, 7])).code.tolist()
    [0, 1, 0]
    """
    first = _first_rows(values)
    begins = first == np.arange(len(first))
    return Groups((np.cumsum(begins) - 1)[first], int(np.count_nonzero(begins)))


def _first_rows(values: NDArray[np.int64]) -> NDArray[np.int32]:
    """For each row the first one of its value, int32 of shape (rows,), by hashing whole arrays at a time.

    All rows are put into a table of slots, the last first, so that a slot ends up with its first row. Rows whose value
    is that row's are done; the others, few where there are twice as many slots as rows, go on with another hash. Each
    round settles at least one value a slot. At the thousands of rows that are encoded at a time this takes less than
    half as long as a sort or a window, and as long as Arrow's dictionaries.
    """
    keys = values.astype(np.int64, copy=False).view(np.uint64)
    first = np.empty(len(keys), np.int32)
    bits = max(2 * len(keys), 2).bit_length()
    table = np.empty(1 << bits, np.int32)
    odd = int(_ODD) % 2**64
    rows = np.arange(len(keys), dtype=np.int32)
    while len(rows):
        own = keys[rows]
        slots = ((own * np.uint64(odd)) >> np.uint64(64 - bits)).astype(np.intp)
        table[slots[::-1]] = rows[::-1]
        found = table[slots]
        first[rows] = found
        rows = rows[keys[found] != own]
        odd = odd * int(_ODD) % 2**64
    return first


def encode_pairs(outer: Groups, inner: NDArray[np.int64]) -> Groups:
    """Rows that share both the outer group and the inner value.

    Both are mixed into one 64-bit key, in which two inner values of one outer group always stay apart; should two
    outer groups meet in a key (they never will but by design), pairs are numbered the slow way.

    Args:
        outer: Groups of the rows.
        inner: int64 of shape (rows,).
    """
    with np.errstate(over="ignore"):
        key = inner + outer.code * _ODD
    groups = encode(key)
    owner = np.empty(groups.number, dtype=np.int64)
    owner[groups.code] = outer.code
    if not np.array_equal(owner[groups.code], outer.code):
        values = encode(inner)
        groups = encode(outer.code * values.number + values.code)
    return groups


def value_order(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The rows in ascending order of value: the order in which this module adds.

    Equal values stay in the order of their rows.
    """
    rows = pl.DataFrame({"value": values}).with_row_index("row")
    return rows.sort("value", maintain_order=True)["row"].to_numpy().astype(np.intp)


def add_up(code: NDArray[np.int64], values: NDArray[np.float64], number: int) -> NDArray[np.float64]:
    """The sum of each group's values, added in the order in which they come; float64 of shape (number,)."""
    return np.bincount(code, values, number).astype(np.float64, copy=False)


def centre(
    values: NDArray[np.float64],
    groups: Groups,
    sample: NDArray[np.bool_] | None = None,
    *,
    keep_lone: bool = False,
) -> NDArray[np.float64]:
    """Each value minus its group's mean.

    Args:
        values: float64 of shape (rows,), ascending (`value_order`).
        groups: Groups of the rows.
        sample: bool of shape (rows,): the rows that means are taken over, at least one a group; None takes all.
        keep_lone: Whether a group whose mean would be over one value keeps mean 0, and so its values.

    >>> centre(np.array([0.1, 0.1, 0.1, 4.0]), Groups(np.array([0, 0, 0, 1]), 2)).tolist()
    [0.0, 0.0, 0.0, 0.0]
    """
    members, counted = _sampled(groups.code, values, sample)
    number = np.bincount(members, minlength=groups.number)
    low = np.zeros(groups.number)
    low[members[::-1]] = counted[::-1]
    mean = low + add_up(members, counted - low[members], groups.number) / number.clip(min=1)
    if keep_lone:
        mean[number == 1] = 0.0
    centred: NDArray[np.float64] = values - mean[groups.code]
    return centred


def deviation(
    centred: NDArray[np.float64], groups: Groups, ddof: int, sample: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """The standard deviation of each group, from centred values; NaN where there is only one value.

    Returns:
        float64 of shape (number of groups,).
    """
    members, counted = _sampled(groups.code, centred, sample)
    squares = add_up(members, counted * counted, groups.number)
    number = np.bincount(members, minlength=groups.number)
    return np.where(number > 1, np.sqrt(squares / (number - ddof).clip(min=1)), np.nan)


def _sampled(
    code: NDArray[np.int64], values: NDArray[np.float64], sample: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return (code, values) if sample is None else (code[sample], values[sample])


def normalise(
    values: NDArray[np.float64],
    groups: Groups,
    *,
    mode: Mode,
    ddof: int,
    epsilon: float,
    sample: NDArray[np.bool_] | None = None,
    lone_scale: float | None = None,
) -> NDArray[np.float64]:
    """(x - mean) / (std + ε) within each group, or x - mean for ``mean_norm``.

    Args:
        values: float64 of shape (rows,), ascending (`value_order`).
        groups: Groups of the rows.
        mode: Whether to divide.
        ddof: 0 divides squares by n, 1 by n - 1.
        epsilon: Added to the standard deviation.
        sample: The rows that mean and deviation are taken over; see `centre`.
        lone_scale: What a group with one such row is divided by, with mean 0; None gives it 0.
    """
    centred = centre(values, groups, sample, keep_lone=lone_scale is not None)
    if mode == "mean_norm":
        return centred
    scale = deviation(centred, groups, ddof, sample) + epsilon
    scale[np.isnan(scale)] = 1.0 if lone_scale is None else lone_scale
    scaled: NDArray[np.float64] = centred / scale[groups.code]
    return scaled
