"""Caches of a bounded size in bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


class _TooLarge(Exception):  # noqa: N818 (carries a result past lru_cache, which keeps no exceptions)
    def __init__(self, result: object) -> None:
        self.result: Final = result


def bounded_cache(
    function: Callable[P, R], entries: int, largest: int, weigh: Callable[..., int]
) -> Callable[P, R]:
    """Cache the results of the latest calls, except large ones, in at most `entries * largest` bytes.

    Args:
        function: The function. Its arguments must be hashable.
        entries: Maximum number of cached results.
        largest: Maximum size of a cached result.
        weigh: Called with the result and the arguments; returns their size, in bytes or characters.

    >>> doubled = bounded_cache(lambda text: 2 * text, entries=2, largest=4, weigh=lambda result, text: len(text))
    >>> doubled("ab") is doubled("ab"), doubled("abcde") is doubled("abcde")
    (True, False)
    """

    @lru_cache(entries)
    def kept(*args: P.args, **kwargs: P.kwargs) -> R:
        result = function(*args, **kwargs)
        if weigh(result, *args, **kwargs) > largest:
            raise _TooLarge(result)
        return result

    def cached(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return kept(*args, **kwargs)  # type: ignore[arg-type]  # hashable, as the docstring asks
        except _TooLarge as large:
            return cast("R", large.result)

    return cached
