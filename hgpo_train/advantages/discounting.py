"""Discounted sums along trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def discounted(
    values: NDArray[np.float64],
    factors: float | NDArray[np.float64],
    starts: NDArray[np.intp],
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
    ends = (starts + lengths - 1)[by_length]
    lengths = lengths[by_length]
    # The number of trajectories that are longer than each `back`.
    distances = np.arange(lengths.max(initial=0))
    running = np.searchsorted(-lengths, -distances)
    result = np.empty(len(values))
    later = values[ends]
    result[ends] = later
    with np.errstate(over="ignore", invalid="ignore"):
        for back, count in enumerate(running[1:].tolist(), 1):
            at = ends[:count] - back
            factor = factors if isinstance(factors, float) else factors[at]
            later = values[at] + factor * later[:count]
            result[at] = later
    return result
