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
    """The groups of one depth.

    Attributes:
        k: The depth.
        defined: Where the context exists (k ≤ t); bool of shape (rows,).
        size: How many steps share it, 1 for those that are alone or have none; int64 of shape (rows,).
        groups: The groups; only those of rows with company are meant.
    """

    k: int
    defined: NDArray[np.bool_]
    size: NDArray[np.int64]
    groups: Groups

    @property
    def shared(self) -> NDArray[np.bool_]:
        """Where a step has company; bool of shape (rows,)."""
        return self.size > 1


def levels(steps: Steps, depth: int, context: Context) -> Iterator[Level]:
    """The groups of depth 0, 1 … `depth`.

    Contexts only get narrower: a step that is alone at one depth is alone below, and is not looked at again.
    """
    shared = np.ones(steps.height, dtype=np.bool_)
    for k in range(depth + 1):
        values, defined = steps.context(k, context)
        level = _level(steps, k, values, defined, np.flatnonzero(shared & defined))
        shared = level.shared
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
    return _level(steps, -1, values, np.ones_like(steps.first), np.arange(steps.height))


def _level(
    steps: Steps, k: int, values: NDArray[np.int64], defined: NDArray[np.bool_], rows: NDArray[np.intp]
) -> Level:
    groups = encode_pairs(steps.task.take(rows), values[rows])
    size, code = np.ones(steps.height, dtype=np.int64), np.zeros(steps.height, dtype=np.int64)
    size[rows], code[rows] = groups.size()[groups.code], groups.code
    return Level(k, defined, size, Groups(code, groups.number))
