"""Task sources, opened once per process and shared by all environments over the same data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from threading import RLock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, finalize

from hgpo_envs.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.engine import TaskSource

_SEARCHED: Final = 1000
"""Number of tasks in which the names of splits are searched."""
KEPT: Final = 8
"""Number of task sources that a process shares: those that were asked for last."""

_opening: Final = RLock()  # opening one source may open another
# the one that was asked for last is at the end
_kept: Final[dict[Hashable, SharedSource]] = {}


class SharedSource:
    """A task source. Copies share it, and unpickling opens it again.

    A source that has a method ``close`` is closed once: when the last of its users is closed, or when the process no
    longer keeps it and nobody refers to it, at the end of the process at the latest. Its users are episodes, those of
    environments among them, and `hgpo_train.rollout.env_handle.EnvHandle`.

    Attributes:
        source: The task source.
        factory: ``module:callable`` that opened it; empty for a source that was created directly, whose content is
            pickled.
        arguments: Names and values of the factory's arguments.
    """

    def __init__(
        self,
        source: TaskSource,
        factory: str = "",
        arguments: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        self.source = source
        self.factory = factory
        self.arguments = arguments
        self._users = WeakSet[Any]()
        close = getattr(source, "close", None)
        self._close = None if close is None else finalize(self, close)

    def add_user(self, user: object) -> None:
        """Keep the source open until this object calls `close`, or no longer exists."""
        # most sources have nothing to close, and forks take microseconds
        if self._close is not None:
            self._users.add(user)

    def close(self, user: object = None) -> None:
        """Close the source, if it can be closed and no user but this one is left. `open_shared` opens it again."""
        if self._close is None:
            return
        if user is not None:
            self._users.discard(user)
        if self._users:
            return
        with _opening:
            for key in [key for key, shared in _kept.items() if shared is self]:
                del _kept[key]
        self._close()

    def __copy__(self) -> SharedSource:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedSource:
        return self

    def __reduce__(self) -> tuple[Callable[..., SharedSource], tuple[object, ...]]:
        if self.factory:
            return partial(open_shared, self.factory, **dict(self.arguments)), ()
        return SharedSource, (self.source,)


def open_shared(factory: str, **arguments: Any) -> SharedSource:
    """Open a task source, or return the one that this process has open for the same arguments.

    A source is opened again if a file or folder among the arguments was replaced. The last `KEPT` are shared. Several
    threads may call this concurrently.

    Args:
        factory: ``module:callable``.
        arguments: Hashable keyword arguments of the factory.

    Raises:
        InputError: An argument is not hashable.
    """
    items = tuple(sorted(arguments.items()))
    identity: list[Any] = [factory]
    for name, value in items:
        if not isinstance(value, Hashable):
            raise InputError(
                f"{name}: expected text, a number, true, false or null, received {value!r:.60}"
            )
        version = None
        if isinstance(value, str | Path) and str(value):
            # which differs when the file or folder of this path, if there is one, was replaced
            with suppress(OSError, ValueError):
                status = Path(value).stat()
                version = (
                    status.st_dev,
                    status.st_ino,
                    status.st_mtime_ns,
                    status.st_size,
                )
        identity += [name, type(value), value, version]
    key = tuple(identity)
    with _opening:  # one thread opens a source while the others wait
        shared = _kept.pop(key, None)
        if shared is None:
            shared = SharedSource(resolve_name(factory)(**arguments), factory, items)
        _kept[key] = shared
        if len(_kept) > KEPT:
            del _kept[next(iter(_kept))]
    return shared


class Split(Sequence[str]):
    """The task ids of one split, in the source's documented order. Copies share them; unpickling reads them again.

    Args:
        shared: The task source.
        name: The split; ``all`` contains every task.
        chosen: Distinct ids of some of its tasks, in the order that replaces the source's. None is all of them.

    Raises:
        InputError: The source has no such split, the split has no tasks, or it lacks one that is chosen.
    """

    def __init__(
        self, shared: SharedSource, name: str, chosen: Sequence[str] | None = None
    ) -> None:
        self.shared = shared
        self.name = name
        self.chosen = None if chosen is None else tuple(chosen)
        try:
            self._ids = shared.source.ids(name)
        except InputError:
            raise
        except KeyError as error:
            # A dictionary's error has the name alone, and a source's own one says more.
            own = error.args and error.args[0] != name
            reason = error.args[0] if own else unknown("split", name, self._known())
            raise InputError(str(reason)) from error
        if not (hasattr(self._ids, "__len__") and hasattr(self._ids, "__getitem__")):
            kind = type(self._ids).__name__
            raise InputError(
                f"ids({name!r}) of {shared.source.name}: expected a list of texts, received {kind}; return list(…)"
            )
        if not len(self._ids):
            of = f"split {name!r} of {shared.source.name} has no tasks"
            raise InputError(f"{of}. Known: {', '.join(self._known()) or 'none'}")
        if self.chosen is not None:
            self._choose(self.chosen, set(self._ids))

    def _known(self) -> list[str]:
        """Return the splits that the first tasks of the source are of, and ``all``; none if it has no tasks."""
        source = self.shared.source
        with suppress(InputError, KeyError):
            first = islice(source.ids("all"), _SEARCHED)
            return [
                *dict.fromkeys(source.task(task_id).split for task_id in first),
                "all",
            ]
        return []

    def _choose(self, chosen: tuple[str, ...], known: set[str]) -> None:
        if not chosen or len(set(chosen)) < len(chosen):
            distinct = len(set(chosen))
            raise InputError(
                f"tasks: expected distinct ids, at least one, received {len(chosen)} with {distinct}"
            )
        for task_id in chosen:
            if task_id not in known:
                raise InputError(
                    unknown(f"task of split {self.name}", task_id, self._ids, limit=2)
                )
        self._ids = chosen

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 (an id, or several for a slice)
        return self._ids[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> Split:
        return self

    def __reduce__(
        self,
    ) -> tuple[type[Split], tuple[SharedSource, str, tuple[str, ...] | None]]:
        return Split, (self.shared, self.name, self.chosen)
