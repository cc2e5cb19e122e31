"""Numbers and lists in the sentences that users read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    Args:
        number: How many.
        noun: What one of them is called; words may come before it.
        plural: What several are called, if it is not the noun with an s.

    >>> counted(1, "file"), counted(0, "damaged file"), counted(2000, "trajectory", "trajectories")
    ('1 file', '0 damaged files', '2,000 trajectories')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(parts: Sequence[str]) -> str:
    """Join the parts of a sentence with commas and an "and".

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *first, last = parts or [""]
    return f"{', '.join(first)} and {last}" if first else last
