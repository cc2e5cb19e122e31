"""Files and folders that appear complete or not at all, and locks that end with the process that holds them.

    write_file(path, data)              a file, complete or absent
    with new_file(path) as file: …      the same, written piece by piece
    with new_folder(path) as folder: …  a folder with everything in it, complete or absent
    remove_folder(path)                 the end of such a folder, at once
    with scratch_folder(path) as …      a folder for intermediate files beside a path
    with FolderLock(folder, "…"): …     at most one writer per folder
    make_folder(path)                   a folder that survives a power failure
    with making_folder(path): …         the same, removed again if the block fails
    sweep(folder)                       removes what killed processes left

New content is written in a *scratch folder* beside its target, flushed to disk (`fsync`), and renamed. A process may be
killed and a disk may fill at any moment: the target is then absent, or complete, old or new. A folder is replaced by
exchanging the two names at once where the system can (Linux); elsewhere it takes two renames, and if the process dies
between them, the next `remove_abandoned` finishes the replacement.

A scratch folder has an unguessable name, `.hgpo-<16 hexadecimal digits>.tmp`, and a lock file that names its owner. It
is removed by its owner, or by the next writer once the owner is dead. Nothing else is ever deleted. A scratch folder
of another machine is left alone for a week: not every network file system shows a lock to other machines.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import time
import weakref
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

from filelock import lock_descriptor

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

LOCK: Final = ".lock"
"""The lock file in a locked folder. It stays when the lock is released: removing it would let two processes lock."""

_CONTENT: Final = "content"
_PREVIOUS: Final = "previous"
_SCRATCH: Final = re.compile(r"\.hgpo-[0-9a-f]{16}\.tmp")
_MADE_BY: Final = "hgpo"
_TRIES: Final = 20
_HERE: Final = -100
"""Linux's AT_FDCWD: relative paths begin at the working folder."""
_EXCHANGE: Final = 2
"""Linux's RENAME_EXCHANGE."""
_ABANDONED_S: Final = 7 * 24 * 3600
_held: Final[weakref.WeakSet[FolderLock]] = weakref.WeakSet()


class FolderLock:
    """Exclusive use of a folder, held until `release` or until the process ends, however it ends.

    The lock is advisory: only processes that ask for it respect it. It works between processes of one machine, and on
    network file systems (NFS) that support locks between the machines that mount them.

    Args:
        folder: An existing folder.
        purpose: What the holder does there, for the error message of others, for example `"training"`.
        **details: Further JSON values to store in the lock file.

    Raises:
        InputError: Another process holds the lock, or the file system has no locks.
        OSError: The folder cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, FolderLock(Path(folder), "training"):
    ...     FolderLock(Path(folder), "training")
    Traceback (most recent call last):
    ...
    hgpo_envs.errors.InputError: ... is in use: process ... on ... is training there; wait for it, or ...
    """

    def __init__(self, folder: Path, purpose: str, **details: object) -> None:
        self.folder = folder
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        self._descriptor = os.open(folder / LOCK, flags, 0o644)
        try:
            _lock(self._descriptor, folder)
            holder = {"made_by": _MADE_BY, "purpose": purpose, "process": os.getpid(), "host": socket.gethostname()}
            self._details = details
            _write_note(self._descriptor, {**holder, **details})
            _held.add(self)
        except BaseException:
            self._close()
            raise

    def sync(self) -> None:
        """Returns when the disk has the lock file's content."""
        os.fsync(self._descriptor)

    def release(self) -> None:
        """Releases the lock. Releasing twice is harmless."""
        if self._descriptor >= 0:
            with suppress(OSError):
                # No process and no host: a finished folder holds the same bytes wherever it was written.
                _write_note(self._descriptor, {"made_by": _MADE_BY, "released": True, **self._details})
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _close_inherited() -> None:
    """A forked child must not hold its parent's locks: they would outlive the parent."""
    for lock in list(_held):
        lock._close()  # noqa: SLF001 (releasing would tell others that the parent is done)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def seems_locked(folder: Path) -> bool:
    """Whether a process of this machine that locked the folder is alive and has not released it.

    For readers that want to know whether a writer is at work, and must not disturb it by locking themselves. Windows
    and locks of other machines are not recognised: then it is False.
    """
    try:
        note = _note_of(folder)
    except OSError:
        return False
    process = note.get("process")
    if note.get("released") or note.get("host") != socket.gethostname() or type(process) is not int or os.name == "nt":
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def make_folder(path: Path) -> None:
    """Creates a folder and its missing parents, and returns when the disk has their names.

    Raises:
        FileExistsError: Something else is at `path`.
        OSError: A parent cannot be written. The parents that were created are removed.
    """
    with making_folder(path):
        pass


@contextmanager
def making_folder(path: Path) -> Iterator[None]:
    """Creates a folder and its missing parents; if the block fails, those that it created and are empty are removed.

    Raises:
        FileExistsError: Something else is at `path`.
        OSError: A parent cannot be written.
    """
    made: list[Path] = []
    try:
        _make_folders(path, made)
        yield
    except BaseException:
        for folder in reversed(made):
            with suppress(OSError):  # another process has put something there
                folder.rmdir()
        raise


def _make_folders(path: Path, made: list[Path]) -> None:
    if not path.parent.exists():
        _make_folders(path.parent, made)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        made.append(path)
        sync_folder(path.parent)


def write_file(path: Path, data: bytes) -> None:
    """Writes a file that is complete or absent under its name; an existing file is replaced at once.

    Args:
        path: The file. Its folder must exist.
        data: The content.

    Raises:
        OSError: The disk is full, or the folder cannot be written. What was at `path` is unchanged.
    """
    with new_file(path) as file:
        file.write(data)


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Gives a binary file to write; it becomes `path` when the block ends without an error.

    Raises:
        OSError: The disk is full, or the folder cannot be written. What was at `path` is unchanged.
    """
    with new_path(path) as content, content.open("wb") as file:
        yield file
        file.flush()


@contextmanager
def new_folder(path: Path, *, replace: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Gives an empty folder to fill; it becomes `path` when the block ends without an error.

    Args:
        path: The folder to make. Missing parents are created. It must not exist, or be an empty folder.
        replace: Whether an existing folder may be replaced. It is called with the folder and should recognise what
            this program made; without it nothing is replaced.

    Raises:
        InputError: Something else is at `path`.
        OSError: The disk is full, or the parent cannot be written. What was at `path` is unchanged.
    """
    path = path.absolute()
    _check_replaceable(path, replace)
    with making_folder(path.parent), new_path(path) as content:
        content.mkdir()
        yield content
        _check_replaceable(path, replace)
        if replace is None and path.exists():
            path.rmdir()  # it is empty; had it just been filled, this would fail and its content stay


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Gives a path at which to create a file or folder; it becomes `path` when the block ends without an error.

    The caller decides whether what is at `path` may be replaced: `new_file` and `new_folder` are safer.
    """
    path = path.absolute()
    with _naming(path):
        remove_abandoned(path.parent)
        scratch, lock = _make_scratch(path)
        try:
            content = scratch / _CONTENT
            yield content
            sync_tree(content)
            sync_folder(scratch)
            _move_into_place(scratch, path)
        finally:
            _remove_scratch(scratch, lock, path)


@contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """Gives an empty folder for intermediate files, in the folder of `beside`; it is removed when the block ends.

    If the process dies, the next writer in that folder removes it.
    """
    path = beside.absolute()
    with _naming(path):
        remove_abandoned(path.parent)
        scratch, lock = _make_scratch(path)
        try:
            (scratch / _CONTENT).mkdir()
            yield scratch / _CONTENT
        finally:
            _remove_scratch(scratch, lock, path)


def remove_folder(path: Path) -> None:
    """Removes a folder with everything in it: under its name it is complete or absent, never half of it.

    The caller decides that it may be removed.

    Raises:
        OSError: The parent cannot be written. The folder is unchanged.
    """
    path = path.absolute()
    with _naming(path):
        remove_abandoned(path.parent)
        scratch, lock = _make_scratch(path)
        try:
            sync_folder(scratch)  # what holds a folder must be known as scratch after a power cut, too
            path.rename(scratch / _CONTENT)
            sync_folder(path.parent)
        finally:
            _remove_scratch(scratch, lock, path)


def append(descriptor: int, data: bytes) -> None:
    """Appends to an open file and returns when the disk has it.

    Raises:
        OSError: The disk refused; the file is as long as before.
    """
    size = os.fstat(descriptor).st_size
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, size)
        raise


def remove_abandoned(folder: Path) -> None:
    """Removes the scratch folders of dead processes in a folder, and finishes replacements that they had begun."""
    try:
        found = scratch_folders(folder)
    except FileNotFoundError:
        return
    for scratch in found:
        with suppress(OSError, InputError):  # its owner lives, or the disk is read-only
            _remove_one_abandoned(scratch)


def is_scratch(name: str) -> bool:
    """Whether a folder's name is that of a scratch folder; readers that walk a tree skip these."""
    return _SCRATCH.fullmatch(name) is not None


def scratch_folders(folder: Path) -> list[Path]:
    """The scratch folders in a folder, of dead and living processes."""
    return sorted(path for path in folder.iterdir() if _SCRATCH.fullmatch(path.name))


def sync_tree(path: Path) -> None:
    """Returns when the disk has a file, or a folder with everything in it."""
    if path.is_dir() and not path.is_symlink():
        for inside in path.iterdir():
            sync_tree(inside)
        sync_folder(path)
    elif not path.is_symlink():
        # Windows flushes only what is open for writing.
        descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Returns when the disk has a folder's list of names. Windows cannot open folders; there it does nothing."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_replaceable(path: Path, replace: Callable[[Path], bool] | None) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if path.is_dir() and not path.is_symlink() and (not any(path.iterdir()) or (replace is not None and replace(path))):
        return
    if replace is None:
        raise InputError(f"{path} already exists; choose another name, or remove it first")
    raise InputError(f"{path} was not made by this command and is not replaced; choose another name")


def _make_scratch(path: Path) -> tuple[Path, FolderLock]:
    """A new, locked scratch folder beside `path`."""
    for _ in range(_TRIES):
        scratch = path.parent / f".hgpo-{secrets.token_hex(8)}.tmp"
        scratch.mkdir(mode=0o700)
        # Another process may sweep the folder away before it is locked: then a new one is made.
        try:
            lock = FolderLock(scratch, f"writing {path.name}", target=path.name)
        except (FileNotFoundError, InputError):
            with suppress(OSError):
                scratch.rmdir()
            continue
        except OSError:  # the disk is too full even for the lock's note
            with suppress(OSError):
                (scratch / LOCK).unlink()
                scratch.rmdir()
            raise
        try:
            lock.sync()  # without its note a scratch folder is nobody's, and would stay after a power cut
        except BaseException:
            _remove_scratch(scratch, lock, path)
            raise
        return scratch, lock
    raise InputError(f"cannot lock a new folder in {path.parent}: does its file system support locks?")


def _move_into_place(scratch: Path, path: Path) -> None:
    """Renames the content to its target. A folder that is there is exchanged for it, or moved away first."""
    content, previous = scratch / _CONTENT, scratch / _PREVIOUS
    if content.is_dir() and path.is_dir():
        if _exchange(content, path):
            sync_folder(path.parent)
            return
        path.rename(previous)
        try:
            content.rename(path)
        except BaseException:
            previous.rename(path)
            raise
    else:
        content.replace(path)
    sync_folder(path.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step, so that neither name is ever absent. False where the system cannot."""
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}:  # the file system cannot
        return False
    raise OSError(code, os.strerror(code), str(other))


def _remove_one_abandoned(scratch: Path) -> None:
    if scratch.is_symlink() or not scratch.is_dir():
        return
    names = {path.name for path in scratch.iterdir()}
    if not names:
        scratch.rmdir()  # killed before it was locked; if its owner lives, it makes another one
    elif LOCK in names and names <= {LOCK, _CONTENT, _PREVIOUS}:
        note = _note_of(scratch)
        if names == {LOCK} or (note.get("made_by") == _MADE_BY and _may_be_dead(scratch, note)):
            target = scratch.parent / Path(str(note.get("target", _CONTENT))).name
            lock = FolderLock(scratch, "removing", target=target.name)
            if {_CONTENT, _PREVIOUS} <= names and not target.exists():
                (scratch / _CONTENT).rename(target)
                sync_folder(scratch.parent)
            _remove_scratch(scratch, lock, target)


def _note_of(scratch: Path) -> dict[str, Any]:
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(scratch / LOCK, flags)
    try:
        return _read_note(descriptor)
    finally:
        os.close(descriptor)


def _may_be_dead(scratch: Path, note: dict[str, Any]) -> bool:
    """Whether the lock can tell if the owner lives: it can on the owner's machine."""
    here = note.get("released") or note.get("host") == socket.gethostname()
    return bool(here) or time.time() - (scratch / LOCK).stat().st_mtime > _ABANDONED_S


def _remove_scratch(scratch: Path, lock: FolderLock, target: Path) -> None:
    """Removes content first and the lock last, so that a scratch folder is recognised until it is gone."""
    unfinished = (scratch / _PREVIOUS).exists() and not target.exists()
    if not unfinished:  # else the only copy of what was replaced is in there: the next sweep finishes
        for name in (_CONTENT, _PREVIOUS):
            _remove(scratch / name)
    lock.release()  # Windows removes no open file
    with suppress(OSError):
        if {path.name for path in scratch.iterdir()} <= {LOCK}:
            (scratch / LOCK).unlink()
            scratch.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _lock(descriptor: int, folder: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise InputError(f"{folder / LOCK} is not a regular file; remove it, or use another folder")
    try:
        locked = lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        raise InputError(
            f"cannot lock {folder}: its file system does not support locks ({error.strerror}); use a local disk, or "
            "mount the network file system with locks"
        ) from error
    if not locked:
        raise InputError(f"{folder} is in use: {_holder(descriptor)}; wait for it, or use another folder")
    if os.fstat(descriptor).st_nlink == 0:  # the folder was removed before we had the lock
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / LOCK))


# Windows locks the first byte of a file against readers, too: the note begins behind it.
def _write_note(descriptor: int, note: dict[str, object]) -> None:
    line = b" " + json.dumps(note).encode() + b"\n"
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, line)  # in one piece, so that whoever is killed here leaves the old note or the new one
    os.ftruncate(descriptor, len(line))


def _read_note(descriptor: int) -> dict[str, Any]:
    os.lseek(descriptor, 1, os.SEEK_SET)
    try:
        note = json.loads(os.read(descriptor, 1 << 16).partition(b"\n")[0])
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _holder(descriptor: int) -> str:
    note = _read_note(descriptor)
    if not note:
        return "another process has locked it"
    return f"process {note.get('process')} on {note.get('host')} is {note.get('purpose')} there"


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Adds the file's name to errors of the operating system that name none (`os.write`, `os.fsync`)."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
