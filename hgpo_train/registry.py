"""Functions by name: estimators, scores and branch rules.

A function is registered by a decorator, by an entry point of another package, or is named as ``module:function``.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.plugins import import_object, installed, load

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", bound="NamedFunction")


@dataclass(frozen=True)
class NamedFunction:
    """A function with the name by which it is registered."""

    name: str
    function: Callable[..., Any]

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or self.name).splitlines()[0].rstrip(".")


class Registry(Generic[T]):
    """The registered functions of a kind.

    Args:
        group: The entry-point group in which other packages declare theirs.
        kind: What a function is called in errors, such as ``a score``.
        read: Returns what a module or an entry point has under a name as a registered function.
    """

    def __init__(self, group: str, kind: str, read: Callable[[object, str], T]) -> None:
        self._group = group
        self._kind = kind
        self._read = read
        self._known: dict[str, T] = {}

    def add(self, new: T) -> T:
        """Register a function.

        Raises:
            InputError: Another one is registered under its name.
        """
        if self._known.setdefault(new.name, new) is not new:
            raise InputError(
                f"{self._kind} {new.name!r} is registered already; choose another name"
            )
        return new

    def get(self, name: str) -> T:
        """Return a function by its registered name, or one as ``module:function``, which is imported.

        Raises:
            InputError: It is unknown, or is none of this kind.
        """
        if name not in self._known and ":" in name:
            return self._read(import_object(name, self._kind), name)
        entry_points = installed(self._group)
        if name not in self._known and name in entry_points:
            # Its module may register it by the decorator while it is loaded.
            found = self._read(load(entry_points[name]), name)
            self._known.setdefault(name, found)
        if name not in self._known:
            noun = self._kind.partition(" ")[2]
            message = unknown(noun, name, self.names())
            raise InputError(f"{message}; your own is module:function")
        return self._known[name]

    def names(self) -> list[str]:
        """Return the names of all registered functions. Warn if an entry point cannot be imported."""
        for name in installed(self._group):
            try:
                self.get(name)
            except InputError as error:
                warnings.warn(str(error), stacklevel=2)
        return list(self._known)
