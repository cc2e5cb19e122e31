"""What a check is given, and what it returns: the problem in a line, a note, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_record.conform.adapters import Advantages

if TYPE_CHECKING:
    from numpy.typing import NDArray

Estimate = Callable[[pl.DataFrame], Advantages]
"""The code that is checked: from a table to its advantages."""

NOISE: Final = 1e-5
"""Differences up to this are rounding of float32."""


class Note(str):
    """What a check returns that found a choice, not a fault."""

    __slots__ = ()


def unless_equal(
    found: NDArray[np.float64],
    expected: NDArray[np.float64],
    problem: str,
    most: float = NOISE,
) -> str | None:
    """Return the problem with its size unless advantages are equal up to rounding; NaN is a difference."""
    difference = np.abs(found - expected).max()
    if difference <= most:
        return None
    return f"{problem}, by {difference:.3g}"
