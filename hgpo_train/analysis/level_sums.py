"""Sums over the groups of each level of context, from which statistics are computed.

A *unit* is a task, or a task's part with one value of the columns that statistics are split by. Sums are arrays of
shape (units,), so that chunks and tasks are combined by adding. Those about returns have shape
(permutations of the returns, units).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Booleans = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The groups of one level.

    Attributes:
        rows: The rows that are in a group, those of a group next to each other.
        starts: The position in `rows` of each group's first row.
        sizes: The number of rows of each group.
        units: The unit of each group.
        count: The number of units.
    """

    rows: Integers
    starts: Integers
    sizes: Integers
    units: Integers
    count: int

    @classmethod
    def of(cls, keys: Integers, known: Booleans, units: Integers, count: int) -> Groups:
        """Group the rows whose key is known by their keys, which no two units share."""
        rows = np.flatnonzero(known)
        rows = rows[np.argsort(keys[rows], kind="stable")]
        starts = run_starts(keys[rows])
        sizes = np.diff(starts, append=len(rows))
        return cls(rows, starts, sizes, units[rows[starts]], count)

    def shared(self) -> Groups:
        """Return the groups of two rows or more."""
        several = self.sizes > 1
        rows = self.rows[self.by_row(several)]
        sizes = self.sizes[several]
        return Groups(
            rows,
            np.cumsum(sizes) - sizes,
            sizes,
            self.units[several],
            self.count,
        )

    def by_unit(self, values: NDArray[Any]) -> Floats:
        """Return the sums of one value per group over each unit's groups."""
        return sum_by(self.units, values, self.count)

    def by_row(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return one value per group as one per row of `rows`."""
        return np.repeat(values, self.sizes, axis=-1)

    def reduced(self, function: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        """Reduce one value per row to one per group."""
        if not len(self.rows):  # which reduceat refuses
            return values[..., :0]
        return function.reduceat(values[..., self.rows], self.starts, axis=-1)

    def pairs(self) -> Floats:
        """Return the number of ordered pairs of rows in the same group."""
        return self.by_unit(self.sizes * (self.sizes - 1))


def run_starts(*values: Integers) -> Integers:
    """Return the positions at which the first of equal neighbours is."""
    differs = np.zeros(len(values[0]), np.bool_)
    differs[:1] = True
    for array in values:
        differs[1:] |= array[1:] != array[:-1]
    return np.flatnonzero(differs)


def sum_by(units: Integers, values: NDArray[Any], count: int) -> Floats:
    """Return the sums of values by their units, along the last axis."""
    # One bincount for all leading axes: each of their elements counts in bins of its own.
    copies = math.prod(values.shape[:-1])
    bins = units + count * np.arange(copies)[:, None]
    sums = np.bincount(bins.ravel(), values.ravel(), count * copies)
    # of no values, they are integers
    return sums.reshape(*values.shape[:-1], count).astype(np.float64)


def counts(groups: Groups, trajectories: Integers) -> dict[str, Floats]:
    """Return the sums that do not depend on returns."""
    n = groups.sizes
    # A group whose least and greatest trajectory differ has several.
    of_several = groups.reduced(np.minimum, trajectories) != groups.reduced(
        np.maximum, trajectories
    )
    return {
        "eligible": groups.by_unit(n),
        "shared": groups.by_unit(n * (n > 1)),
        "cross": groups.by_unit(n * of_several),
        "squares": groups.by_unit(n * n),
        "pairs": groups.pairs(),
        "groups": groups.by_unit(np.ones(len(n))),
        "shared_groups": groups.by_unit(n > 1),
    }


def spread(groups: Groups, returns: Floats, at_state: Floats) -> dict[str, Floats]:
    """Return the sums about the variance of returns within groups of two or more.

    Args:
        groups: The groups of the level.
        returns: The return of each row, in the last axis.
        at_state: `unbiased_squares` of the groups of level 0, which contain those of the level.
    """
    shared = groups.shared()
    n = shared.sizes
    sums = shared.reduced(np.add, _squares(shared, returns))
    # The biased variance shrinks with the size of groups, which are smaller at deeper levels. What histories explain is
    # therefore measured by unbiased squares, of the level and of level 0 over the same rows: independent returns that
    # do not depend on histories have 0 in expectation.
    return {
        "variance": shared.by_unit(sums / n),
        "flat": shared.by_unit(sums == 0),
        "unexplained": shared.by_unit(sums * n / (n - 1)),
        "at_state": shared.by_unit(shared.reduced(np.add, at_state)),
    }


def unbiased_squares(groups: Groups, values: Floats) -> Floats:
    """Return the squared deviation of each row from its group's mean, times n / (n - 1); 0 in singleton groups."""
    shared = groups.shared()
    squares = _squares(shared, values)
    squares[..., shared.rows] *= shared.by_row(shared.sizes / (shared.sizes - 1))
    return squares


def _squares(groups: Groups, values: Floats) -> Floats:
    """Return the squared deviation of each row from its group's mean; 0 for rows in no group."""
    means = groups.reduced(np.add, values) / groups.sizes
    deviations = values[..., groups.rows] - groups.by_row(means)

    # The rounded mean of equal values can differ from them, and their deviations must be exactly 0.
    differ = groups.reduced(np.minimum, values) != groups.reduced(np.maximum, values)
    squares = np.zeros(values.shape)
    squares[..., groups.rows] = deviations**2 * groups.by_row(differ)
    return squares


def exchanged(
    groups: Groups,
    trajectories: Integers,
    returns: Floats,
    generators: Iterable[np.random.Generator],
) -> list[Floats]:
    """Return the returns, permuted at random among the trajectories that visit the same state, once a generator.

    A trajectory's visits of a state receive those of another, in their order, so that what they have in common remains.
    If it has more visits than the other trajectory, that one's returns are used again from the first.

    Args:
        groups: The groups of level 0.
        trajectories: The trajectory of each row; the rows of a trajectory are in the order of its steps.
        returns: The return of each row.
        generators: The generators of random numbers.
    """
    # Rows are ordered by state and trajectory. A block is a trajectory's visits of a state.
    state = groups.by_row(np.arange(len(groups.sizes)))
    order = np.lexsort((trajectories[groups.rows], state))
    rows = groups.rows[order]
    state = state[order]
    starts = run_starts(state, trajectories[rows])
    lengths = np.diff(starts, append=len(rows))
    block = np.repeat(np.arange(len(starts)), lengths)
    position = np.arange(len(rows)) - starts[block]

    results = []
    for rng in generators:
        # Blocks of each state in a random order: those of a state stay at its places.
        donor = np.argsort(state[starts] + rng.random(len(starts)))[block]
        result = returns.copy()
        result[rows] = returns[rows[starts[donor] + position % lengths[donor]]]
        results.append(result)
    return results


def level_statistics(sums: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the statistics of levels from sums whose last axis is the level, of one table or of many.

    A statistic without a value is NaN.
    """
    # The pairs at the same state, which are those of level 0, are what deeper levels are shares of.
    pairs = sums["pairs"][..., :1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "eligible": sums["eligible"] / sums["rows"],
            "shared": sums["shared"] / sums["rows"],
            "cross": sums["cross"] / sums["rows"],
            "mean_size": sums["eligible"] / sums["groups"],
            "step_size": sums["squares"] / sums["eligible"],
            "inconsistency": (pairs - sums["pairs"]) / pairs,
            "differing": (pairs - sums["whole_pairs"]) / pairs,
            "variance": sums["variance"] / sums["shared_groups"],
            "flat": sums["flat"] / sums["shared_groups"],
            "explained": (sums["at_state"] - sums["unexplained"]) / sums["at_state"],
            "weight": sums["weight"] / sums["rows"],
            "bias": sums["bias"] / sums["compared"],
            "sign_disagreement": sums["sign_disagreement"] / sums["compared"],
            "in_pairs": sums["in_pairs"] / sums["compared"],
        }
