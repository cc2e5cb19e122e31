"""The rows of a finished group, plain or packed, until they are committed.

Groups are committed in the plan's order, so groups that finish early wait for slower ones, sometimes hundreds of them.
As Python objects a row takes about 6 KB. Each prompt repeats the steps before it, so rows compress well: packed, the
same row takes about 0.2 KB. Packing and unpacking take about 15 µs a row.
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
    """A finished group.

    Attributes:
        size: About how many bytes its rows take in a table. It depends on their values alone: not on how they came, nor
            on how well they compress.
        again: Whether the rows take the place of failed rollouts that are committed.

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
        """A group with these rows, in the order of their rollouts and steps; none where the run has them already."""
        return cls(sum(map(_size, rows)), again, rows)

    def packed(self) -> FinishedGroup:
        """The same group in little memory."""
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
        """About how many bytes of memory the group takes."""
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
