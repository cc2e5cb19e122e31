"""Numbers of the visible contexts and actions of redrawn groups, by which errors at a fixed one are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from hgpo_research.arrays import Booleans, Floats, Integers


class Contexts(NamedTuple):
    """The visible contexts of redrawn groups.

    Attributes:
        usable: Whether each step has action probabilities; the other arrays have only those steps.
        subgroup: The number of the step's subgroup, context and action.
        redraw: The number of the step's redraw, context and action.
    """

    usable: Booleans
    subgroup: Integers
    redraw: Integers


def numbered(*columns: Integers) -> Integers:
    """Return the number of each row's combination of values, from 0."""
    found = np.zeros(len(columns[0]), np.int64)
    # Numbers are made small after each column, so that no product overflows.
    for column in columns:
        _, values = np.unique(column, return_inverse=True)
        _, found = np.unique(
            found * (values.max(initial=0) + 1) + values,
            return_inverse=True,
        )
    return found


def summed(number: Integers, values: Floats, count: int) -> Floats:
    """Return the sum of the values with each number from 0 to at least `count` - 1."""
    return np.bincount(number, values, count).astype(np.float64, copy=False)  # integers if empty
