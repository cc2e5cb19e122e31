"""Finished groups that wait to be committed, optionally compressed.

Groups are committed in the plan's order, so groups that finish early wait for slower ones, sometimes hundreds of them.
A row takes about 6 KB as Python objects. Each prompt repeats the steps before it, so rows compress well: a packed row
takes about 0.2 KB. Packing and unpacking take about 15 µs per row.
"""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hgpo_train.rollout.trajectory import Row

_FASTEST: Final = 1
_OTHER_COLUMNS: Final = 300  # bytes of a row's numbers, hashes and offsets


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """The rows of a finished group.

    Attributes:
        size: Estimated size of the rows in a table, in bytes. It depends only on the values, not on the compression.
        again: Whether the rows replace failed rollouts that are already committed.

    >>> rows = [{"step": 0, "state": "a room " * 1000, "admissible_actions": ["look", "wait"]}]
    >>> packed = FinishedGroup.of(rows).packed()
    >>> packed.size, packed.bytes < 200, packed.rows == rows
    (7324, True, True)
    """

    size: int
    again: bool
    _plain: list[Row]
    _packed: bytes = b""

    @classmethod
    def of(cls, rows: list[Row], *, again: bool = False) -> FinishedGroup:
        """Create a group from rows in the order of rollouts and steps; no rows if the run contains them already."""
        return cls(sum(map(_size, rows)), again, rows)

    def packed(self) -> FinishedGroup:
        """Return the group with compressed rows."""
        if not self._plain:
            return self
        data = zlib.compress(pickle.dumps(self._plain, pickle.HIGHEST_PROTOCOL), _FASTEST)
        return replace(self, _plain=[], _packed=data)

    @property
    def rows(self) -> list[Row]:
        """The group's rows."""
        if not self._packed:
            return self._plain
        rows: list[Row] = pickle.loads(zlib.decompress(self._packed))  # noqa: S301 - this object made it
        return rows

    @property
    def bytes(self) -> int:
        """Estimated memory that the group takes, in bytes."""
        return len(self._packed) or 2 * self.size


def _size(row: Row) -> int:
    size = _OTHER_COLUMNS
    for value in row.values():
        kind = type(value)
        if kind is str:
            size += len(value)
        elif kind is list:
            size += 8 * len(value)
            if value and type(value[0]) is str:
                size += sum(map(len, value))
    return size
