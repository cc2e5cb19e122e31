"""Types of arrays, arrays that grow, and numbers of values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Hashable

Array = NDArray[Any]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Hashes = NDArray[np.uint64]


def grown(array: Array, length: int, fill: int = 0) -> Array:
    """Return an array of at least some length: itself, or a copy at least twice as long, whose new entries are `fill`.

    Args:
        array: Any dtype, shape (n,).
        length: The smallest length.
        fill: The value of new entries.
    """
    missing = length - len(array)
    if missing <= 0:
        return array
    # Twice as long: appending many times takes linear time.
    more = np.full(max(len(array), missing), fill, array.dtype)
    return np.concatenate([array, more])


class Numbers(dict[Any, int]):
    """The numbers of values, from 0 in the order in which they are first looked up; `listed` has the values."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[Any] = []

    def __missing__(self, value: Hashable) -> int:
        number = self[value] = len(self.listed)
        self.listed.append(value)
        return number
