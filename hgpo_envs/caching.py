"""Caches of bounded size: of results, none of which is large, and of objects that are costly to open."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from threading import RLock
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, TypeVar, cast
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

P = ParamSpec("P")
R = TypeVar("R")


class _TooLarge(Exception):  # noqa: N818 (carries a result past lru_cache, which keeps no exceptions)
    def __init__(self, result: object) -> None:
        self.result: Final = result


def bounded_cache(function: Callable[P, R], entries: int, largest: int, weigh: Callable[..., int]) -> Callable[P, R]:
    """Cache the results of the latest calls, except large ones.

    The cache holds at most `entries * largest` bytes, by the measure of `weigh`.

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


class OpenObjects(Generic[R]):
    """Objects that are costly to open, one per key: shared while they are in use, the last ones kept for later.

    Threads may share it. An object is opened by one thread, while the others wait.

    Args:
        keep: How many objects are kept although nothing else refers to them.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._lock = RLock()  # opening one object may open another
        self._in_use: WeakValueDictionary[Hashable, R] = WeakValueDictionary()
        self._latest: OrderedDict[Hashable, R] = OrderedDict()

    def get(self, key: Hashable, open_: Callable[[], R]) -> R:
        """Return the object of a key, opened by `open_` if there is none.

        Args:
            key: Everything that the object depends on, versions of files included.
            open_: Opens the object. If it raises, nothing is kept.
        """
        with self._lock:
            value = self._in_use.get(key)
            if value is None:
                value = self._in_use[key] = open_()
            self._latest[key] = value
            self._latest.move_to_end(key)
            if len(self._latest) > self._keep:
                self._latest.popitem(last=False)
            return value
