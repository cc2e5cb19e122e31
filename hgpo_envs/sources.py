"""Task sources that are opened once a process and shared by every environment over the same data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_envs.engine import TaskSource

_opened: dict[tuple[object, ...], SharedSource] = {}


@dataclass(frozen=True, eq=False)
class SharedSource:
    """A task source that copies share and that pickles open again where they land.

    Attributes:
        source: The task source.
        factory: ``module:callable`` that opened it; empty for a source that was made by hand, which is pickled whole.
        arguments: What the factory was called with.
    """

    source: TaskSource
    factory: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()

    def __copy__(self) -> SharedSource:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedSource:
        return self

    def __reduce__(self) -> tuple[Callable[..., SharedSource], tuple[object, ...]]:
        if self.factory:
            return _reopen, (self.factory, self.arguments)
        return SharedSource, (self.source,)


def share(source: TaskSource | SharedSource) -> SharedSource:
    """The source in its shared form."""
    return source if isinstance(source, SharedSource) else SharedSource(source)


def open_shared(factory: str, **arguments: Any) -> SharedSource:
    """The task source that the factory makes from these arguments, opened once a process.

    A file or folder among the arguments that changed since (size or modification time) is opened again.

    Args:
        factory: ``module:callable``.
        arguments: Hashable keyword arguments of the factory.
    """
    given = tuple(sorted(arguments.items()))
    key = (factory, *given, *(_stamp(value) for _, value in given))
    for name, value in given:
        if not isinstance(value, Hashable):
            raise InputError(f"{name}: expected text, a number, true, false or null, got {value!r:.60}")
    if key not in _opened:
        module, _, name = factory.partition(":")
        _opened[key] = SharedSource(_make(module, name, arguments), factory, given)
    return _opened[key]


def _make(module: str, name: str, arguments: dict[str, Any]) -> TaskSource:
    source: TaskSource = getattr(import_module(module), name)(**arguments)
    return source


def _reopen(factory: str, arguments: tuple[tuple[str, Any], ...]) -> SharedSource:
    return open_shared(factory, **dict(arguments))


def _stamp(value: object) -> tuple[int, int] | None:
    """What identifies a version of a file: modification time and size."""
    if not isinstance(value, str | Path) or not str(value):
        return None
    try:
        stat = Path(value).stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size


class Split(Sequence[str]):
    """The task ids of one split, in the source's documented order; copies share them and pickles find them again.

    Args:
        shared: The task source.
        name: The split; ``all`` is everything.

    Raises:
        InputError: The source knows no such split, or it holds no tasks.
    """

    def __init__(self, shared: SharedSource, name: str) -> None:
        self.shared, self.name = shared, name
        try:
            self._ids = shared.source.ids(name)
        except InputError:
            raise
        except KeyError as error:
            raise InputError(str(error.args[0]) if error.args else f"unknown split {name!r}") from error
        if not len(self._ids):
            raise InputError(f"split {name!r} of {shared.source.name} holds no tasks")

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._ids[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __deepcopy__(self, memo: dict[int, Any]) -> Split:
        return self

    def __reduce__(self) -> tuple[type[Split], tuple[SharedSource, str]]:
        return Split, (self.shared, self.name)
