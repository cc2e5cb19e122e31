"""Differences between two JSON documents, by path: what `hgpo certificate check` and `hgpo card check` name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hgpo_envs.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

TOLERANCE: Final = 1e-9
"""The relative difference up to which floats are equal: sums in another order round differently."""

_MISSING: Final = object()


class Difference(NamedTuple):
    """One value that differs.

    Attributes:
        path: Where it is, such as ``results[0].success.share``.
        expected: The value in the first document, as text; ``nothing`` if it has none.
        found: The value in the second document, likewise.
    """

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, found {self.found}"


def differences(
    expected: object, found: object, path: str = ""
) -> Iterator[Difference]:
    """Yield the values that differ between two JSON documents, in the order of the first.

    Args:
        expected: JSON values; tuples are lists.
        found: JSON values likewise.
        path: The path of both, before those of values inside of them.

    >>> [str(each) for each in differences({"a": [1, 2.0], "b": 3}, {"a": [1, 2.5], "c": 3})]
    ['a[1]: expected 2.0, found 2.5', 'b: expected 3, found nothing', 'c: expected nothing, found 3']
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in dict.fromkeys([*expected, *found]):
            below = f"{path}.{name}" if path else str(name)
            yield from differences(
                expected.get(name, _MISSING), found.get(name, _MISSING), below
            )
    elif isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        for number in range(max(len(expected), len(found))):
            first = expected[number] if number < len(expected) else _MISSING
            second = found[number] if number < len(found) else _MISSING
            yield from differences(first, second, f"{path}[{number}]")
    elif not _equal(expected, found):
        yield Difference(path, _shown(expected), _shown(found))


def _equal(first: object, second: object) -> bool:
    if type(first) in (int, float) and type(second) in (int, float):
        try:
            return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)  # type: ignore[arg-type]
        except OverflowError:  # an integer that is no float
            return first == second
    # True is no 1, and a document without a value is not one with null.
    return type(first) is type(second) and first == second


def _shown(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return "nothing" if value is _MISSING else one_line(repr(value), 120)
