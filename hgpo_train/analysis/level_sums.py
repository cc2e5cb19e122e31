"""Sums over the groups of each level of context, from which statistics are computed.

A *unit* is a task, or a task's part with one value of the columns that statistics are split by. Sums are arrays of
shape (units,), so that chunks, tasks and resamples of tasks are combined by adding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
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
        ordered = keys[rows]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(rows)])
        return cls(rows, starts, np.diff(starts, append=len(rows)), units[rows[starts]], count)

    def by_unit(self, values: NDArray[Any]) -> Floats:
        """Return the sums of one value per group over each unit's groups."""
        return sum_by(self.units, values, self.count)

    def reduced(self, function: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        """Reduce one value per row to one per group."""
        return function.reduceat(values[self.rows], self.starts) if len(self.rows) else values[:0]

    def pairs(self) -> Floats:
        """Return the number of ordered pairs of rows in the same group."""
        return self.by_unit(self.sizes * (self.sizes - 1))


def sum_by(units: Integers, values: NDArray[Any], count: int) -> Floats:
    """Return the sums of values by their units."""
    return np.bincount(units, values, count).astype(np.float64)  # of no values, they are integers


def counts(groups: Groups, trajectories: Integers) -> dict[str, Floats]:
    """Return the sums that do not depend on returns."""
    n = groups.sizes
    several = groups.reduced(np.minimum, trajectories) != groups.reduced(np.maximum, trajectories)
    return {
        "eligible": groups.by_unit(n),
        "shared": groups.by_unit(n * (n > 1)),
        "cross": groups.by_unit(n * several),
        "squares": groups.by_unit(n * n),
        "pairs": groups.pairs(),
        "groups": groups.by_unit(np.ones(len(n))),
        "shared_groups": groups.by_unit(n > 1),
    }


def spread(groups: Groups, states: Groups, returns: Floats) -> dict[str, Floats]:
    """Return the sums about the variance of returns within groups of two or more.

    Args:
        groups: The groups of the level.
        states: Those of level 0, which contain them.
        returns: The return of each row.
    """
    n, squares = groups.sizes, _squares(groups, returns)
    several = n > 1
    sums = groups.reduced(np.add, squares)
    factor = np.divide(n, n - 1, out=np.zeros(len(n)), where=several)
    at_state = np.zeros(len(returns))
    share = np.divide(states.sizes, states.sizes - 1, out=np.zeros(len(states.sizes)), where=states.sizes > 1)
    at_state[states.rows] = _squares(states, returns)[states.rows] * np.repeat(share, states.sizes)
    return {
        "variance": groups.by_unit(np.where(several, sums / n, 0.0)),
        "flat": groups.by_unit(several & (sums == 0)),
        "unexplained": groups.by_unit(sums * factor),
        "at_state": groups.by_unit(np.where(several, groups.reduced(np.add, at_state), 0.0)),
    }


def _squares(groups: Groups, values: Floats) -> Floats:
    """Return the squared deviation of each row from its group's mean, exactly 0 if the group's values are equal."""
    squares = np.zeros(len(values))
    means = groups.reduced(np.add, values) / groups.sizes
    equal = groups.reduced(np.minimum, values) == groups.reduced(np.maximum, values)
    squares[groups.rows] = (values[groups.rows] - np.repeat(means, groups.sizes)) ** 2
    squares[groups.rows[np.repeat(equal, groups.sizes)]] = 0.0
    return squares


def advantage_sums(
    own: Floats, deepest: Floats, deepest_size: Floats, weight: Floats, units: Integers, count: int
) -> dict[str, Floats]:
    """Return the sums about a level's weights, and about its advantages compared with the deepest level's.

    Args:
        own: The level's advantage of each row; NaN where it has none.
        deepest: The deepest level's.
        deepest_size: The size of each row's group at the deepest level.
        weight: The level's weight at each row.
        units: The unit of each row.
        count: The number of units.
    """
    both = ~np.isnan(own) & ~np.isnan(deepest)
    own, deepest, pairs, unit = own[both], deepest[both], deepest_size[both] == 2, units[both]
    values = {
        "bias": np.abs(own - deepest),
        "sign_disagreement": np.sign(own) != np.sign(deepest),
        "compared": np.ones(len(unit)),
        "in_pairs": pairs,
    }
    sums = {name: sum_by(unit, value, count) for name, value in values.items()}
    return {"weight": sum_by(units, weight, count), **sums}


def exchanged(groups: Groups, trajectories: Integers, returns: Floats, rng: np.random.Generator) -> Floats:
    """Return the returns, permuted at random among the trajectories that visit the same state.

    A trajectory's visits of a state receive those of another, in their order, so that what they have in common remains.
    If it has more visits than the other trajectory, that one's returns are used again from the first.

    Args:
        groups: The groups of level 0.
        trajectories: The trajectory of each row; the rows of a trajectory are in the order of its steps.
        returns: The return of each row.
        rng: The generator.
    """
    state = np.repeat(np.arange(len(groups.sizes)), groups.sizes)
    order = np.lexsort((trajectories[groups.rows], state))
    rows, state, owner = groups.rows[order], state[order], trajectories[groups.rows[order]]
    first = np.r_[True, (state[1:] != state[:-1]) | (owner[1:] != owner[:-1])][: len(rows)]
    starts = np.flatnonzero(first)
    lengths = np.diff(starts, append=len(rows))
    donors = np.lexsort((rng.random(len(starts)), state[starts]))
    visit = np.cumsum(first) - 1
    donor = donors[visit]
    within = (np.arange(len(rows)) - starts[visit]) % lengths[donor]
    result = returns.copy()
    result[rows] = returns[rows[starts[donor] + within]]
    return result


def level_statistics(sums: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the statistics of levels from sums whose last axis is the level, of one chunk or of many resamples.

    A statistic without a value is NaN.
    """
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
