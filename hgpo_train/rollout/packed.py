"""Rows of finished rollouts, packed until they are committed.

Groups are committed in the plan's order, so groups that finish early wait for slower ones, sometimes hundreds of them.
As Python objects a row takes about 6 KB. Each prompt repeats the steps before it, so rows compress well: packed, the
same row takes about 0.3 KB.
"""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hgpo_train.rollout.trajectory import Row

_FASTEST: Final = 1
_OTHER_COLUMNS: Final = 300  # bytes of a row's numbers, hashes and offsets


@dataclass(frozen=True, slots=True)
class Packed:
    """A rollout's rows in one piece of memory.

    Attributes:
        data: The rows, compressed.
        size: About how many bytes the rows take in a table. It depends on their values alone: not on how they came, nor
            on how well they compress.

    >>> packed = Packed.of([{"step": 0, "state": "a room " * 1000, "admissible_actions": ["look", "wait"]}])
    >>> packed.size, len(packed.data) < 200, packed.rows()[0]["admissible_actions"]
    (7324, True, ['look', 'wait'])
    """

    data: bytes
    size: int

    @classmethod
    def of(cls, rows: list[Row]) -> Packed:
        """Packs rows. Their values must be plain: text, numbers, lists of these, None."""
        return cls(zlib.compress(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL), _FASTEST), sum(map(_size, rows)))

    def rows(self) -> list[Row]:
        """The rows that were packed."""
        rows: list[Row] = pickle.loads(zlib.decompress(self.data))  # noqa: S301 - made by `of`, never read from outside
        return rows


def _size(row: Row) -> int:
    size = _OTHER_COLUMNS
    for value in row.values():
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list):
            size += 8 * len(value)
            if value and isinstance(value[0], str):
                size += sum(map(len, value))
    return size
