"""Numbers of the visible contexts and actions of redrawn groups, by which errors at a fixed one are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_research.comparison.inputs import Draw

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Contexts:
    """The visible contexts of redrawn groups.

    Attributes:
        usable: Whether each step has action probabilities; the other arrays have only those steps.
        subgroup: The number of the step's subgroup, context and action.
        redraw: The number of the step's redraw, context and action.
    """

    usable: NDArray[np.bool_]
    subgroup: Integers
    redraw: Integers


def contexts_of(found: Draw) -> Contexts:
    """Number the visible contexts and actions of redrawn groups."""
    usable = found.prompt >= 0
    prompt = found.prompt[usable]
    choice = found.choice[usable]
    return Contexts(
        usable, numbered(found.group[usable], prompt, choice), numbered(found.redraw[usable], prompt, choice)
    )


def summed(number: Integers, values: Floats, count: int) -> Floats:
    """Return the sum of the values with each number from 0 to at least `count` - 1."""
    return np.bincount(number, values, count).astype(np.float64, copy=False)


def numbered(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each row's combination of values, from 0."""
    found = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, values = np.unique(column, return_inverse=True)
        _, found = np.unique(found * (values.max(initial=0) + 1) + values, return_inverse=True)
    return found
