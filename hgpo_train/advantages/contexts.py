"""Groups of steps with equal contexts, depth by depth."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hgpo_envs import hashing
from hgpo_train.advantages.groups import Groups, encode_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hgpo_train.advantages.parameters import Context
    from hgpo_train.advantages.steps import Steps


@dataclass(frozen=True, slots=True)
class Level:
    """The groups of one depth: of its rows, those with equal codes share a context.

    Attributes:
        k: The depth; -1 for whole histories.
        rows: The rows that were looked at, in the order that was asked for; int64 of shape (n,). All other rows are
            alone at this depth, or have no context of it.
        groups: Their groups.
        size: How many rows share each row's context; int64 of shape (n,).
    """

    k: int
    rows: NDArray[np.int64]
    groups: Groups
    size: NDArray[np.int64]

    def company(self) -> tuple[NDArray[np.int64], Groups]:
        """The rows that are not alone, and their groups."""
        shared = self.size > 1
        return self.rows[shared], self.groups.take(shared)


def levels(steps: Steps, depth: int, context: Context, rows: NDArray[np.int64]) -> Iterator[Level]:
    """The groups of depth 0, 1 … `depth`, rows in the order given.

    Contexts only get narrower: a step that is alone at one depth is alone below, and is not looked at again.
    """
    for k in range(depth + 1):
        values, defined = steps.context(k, context)
        if k:
            rows = rows[defined[rows]]
        level = _level(steps, k, values, rows)
        rows = level.rows[level.size > 1]
        yield level


def whole_history(steps: Steps, context: Context = "states") -> Level:
    """The groups of steps with the same history from the first step on: the oracle of the paper. Its k is -1."""
    values = steps.states.copy()
    actions = steps.actions if context == "states_actions" else None
    position = np.arange(steps.height) - np.repeat(steps.starts, steps.lengths)
    by_position = np.argsort(position, kind="stable")
    ends = np.cumsum(np.bincount(position))
    for start, end in pairwise(ends.tolist()):
        rows = by_position[start:end]
        before = values[rows - 1] if actions is None else hashing.link(values[rows - 1], actions[rows - 1])
        values[rows] = hashing.link(before, values[rows])
    return _level(steps, -1, values, np.arange(steps.height))


def _level(steps: Steps, k: int, values: NDArray[np.int64], rows: NDArray[np.int64]) -> Level:
    groups = encode_pairs(steps.task.take(rows), values[rows])
    return Level(k, rows, groups, groups.size()[groups.code])
