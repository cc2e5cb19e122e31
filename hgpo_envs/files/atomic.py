"""Atomic writes of files and folders, and locks that end with their process.

    write_file(path, data)              write a file atomically
    with new_file(path) as file: …      the same, written piece by piece
    with new_folder(path) as folder: …  write a folder and its content atomically
    remove_folder(path)                 remove a folder atomically
    with FolderLock(folder, "…"): …     at most one writer per folder
    make_folder(path)                   a folder that survives a power failure
    with making_folder(path): …         the same, removed again if the block fails
    remove_abandoned(folder)            remove the scratch folders of killed processes

New content is written to a *scratch folder* beside its target, flushed to disk (`fsync`), and renamed. If the process
is killed or the disk is full, the target is either absent or complete, in its old or new version. On Linux, a folder is
replaced by exchanging two names in one system call. Other systems need two renames; if the process dies between them,
the next `remove_abandoned` finishes the replacement.

A scratch folder has an unguessable name, `.hgpo-<16 hexadecimal digits>.tmp`, and a lock file that names its owner. It
is removed by its owner or, if the owner has died, by the next writer. Nothing else is deleted. A scratch folder of
another machine is kept for a week, because some network file systems do not share locks between machines.
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

LOCK: Final = ".lock"
"""The lock file in a locked folder. It is never removed, because then two processes could hold the lock at a time."""

_CONTENT: Final = "content"
_PREVIOUS: Final = "previous"
_SCRATCH: Final = re.compile(r"\.hgpo-[0-9a-f]{16}\.tmp")
_MADE_BY: Final = "hgpo"
_TRIES: Final = 20
_HERE: Final = -100
"""Linux's AT_FDCWD: paths are relative to the working folder."""
_EXCHANGE: Final = 2
"""Linux's RENAME_EXCHANGE."""
_ABANDONED_S: Final = 7 * 24 * 3600
_held: Final[weakref.WeakSet[FolderLock]] = weakref.WeakSet()


class FolderLock:
    """An exclusive lock on a folder, held until `release` or until the process ends or is killed.

    The lock is advisory: it affects only processes that also take it. It works between processes of one machine, and on
    network file systems (NFS) with lock support also between machines.

    Args:
        folder: An existing folder.
        purpose: What the process does there, for the error message of other processes, for example `"training"`.
        **details: Further JSON values to store in the lock file.

    Raises:
        InputError: If another process holds the lock, or if the file system does not support locks.
        OSError: If the folder cannot be written.

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

    @property
    def is_held(self) -> bool:
        """Whether the lock is held by this object."""
        return self._descriptor >= 0

    def sync(self) -> None:
        """Flush the lock file to disk."""
        os.fsync(self._descriptor)

    def release(self) -> None:
        """Release the lock. Further calls have no effect."""
        if self._descriptor >= 0:
            with suppress(OSError):
                # No process id or host, so that the bytes of a finished folder do not depend on the machine.
                _write_note(self._descriptor, {"made_by": _MADE_BY, "released": True, **self._details})
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _close_inherited() -> None:
    """Close the parent's locks in a forked child, which could outlive the parent."""
    for lock in list(_held):
        lock._close()  # noqa: SLF001 (`release` would mark the parent's lock as released)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def seems_locked(folder: Path) -> bool:
    """Return whether a living process of this machine holds the folder's lock.

    For readers that must not take the lock themselves. Returns False on Windows and for locks of other machines.
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
    """Create a folder and its missing parents, and flush their names to disk.

    Raises:
        FileExistsError: If `path` exists and is not a folder.
        OSError: If a parent cannot be written. Parents that were created are removed.
    """
    with making_folder(path):
        pass


@contextmanager
def making_folder(path: Path) -> Iterator[None]:
    """Create a folder and its missing parents. If the block fails, those that are new and empty are removed.

    Raises:
        FileExistsError: If `path` exists and is not a folder.
        OSError: If a parent cannot be written.
    """
    made: list[Path] = []
    try:
        _make_folders(path, made)
        yield
    except BaseException:
        for folder in reversed(made):
            with suppress(OSError):  # another process may have written into it
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


def write_file(path: Path, data: bytes, *, scratch_in: Path | None = None) -> None:
    """Write a file atomically. An existing file is replaced.

    Args:
        path: The file. Its folder must exist.
        data: The content.
        scratch_in: A folder of the same file system for the scratch folder; the file's folder by default. Use it if the
            file's folder must never contain other files.

    Raises:
        OSError: If the disk is full or the folder cannot be written. An existing file at `path` is unchanged.
    """
    with new_file(path, scratch_in=scratch_in) as file:
        file.write(data)


@contextmanager
def new_file(path: Path, *, scratch_in: Path | None = None) -> Iterator[IO[bytes]]:
    """Yield a binary file to write, which becomes `path` if the block ends without an error.

    Args:
        path: The file. Its folder must exist.
        scratch_in: See `write_file`.

    Raises:
        OSError: If the disk is full or the folder cannot be written. An existing file at `path` is unchanged.
    """
    with new_path(path, scratch_in=scratch_in) as content, content.open("wb") as file:
        yield file
        file.flush()


@contextmanager
def new_folder(path: Path, *, replace: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill, which becomes `path` if the block ends without an error.

    Args:
        path: The folder to create. It must not exist or must be empty. Missing parents are created.
        replace: A function that receives an existing folder and returns whether it may be replaced. It should return
            True only for folders that this program created. If None, no folder is replaced.

    Raises:
        InputError: If `path` exists and may not be replaced.
        OSError: If the disk is full or the parent cannot be written. An existing folder at `path` is unchanged.
    """
    path = path.absolute()
    _check_replaceable(path, replace)
    with making_folder(path.parent), new_path(path) as content:
        content.mkdir()
        yield content
        _check_replaceable(path, replace)
        if replace is None and path.exists():
            path.rmdir()  # fails, and so keeps the content, if another process has just written into it


@contextmanager
def new_path(path: Path, *, scratch_in: Path | None = None) -> Iterator[Path]:
    """Yield a path at which to create a file or folder, which becomes `path` if the block ends without an error.

    An existing `path` is replaced without a check. `new_file` and `new_folder` are safer.

    Args:
        path: The file or folder.
        scratch_in: See `write_file`. Only for files: an interrupted replacement of a folder could not be finished.
    """
    path = path.absolute()
    with _scratch_folder(path, path.parent if scratch_in is None else scratch_in.absolute()) as scratch:
        content = scratch / _CONTENT
        yield content
        sync_tree(content)
        sync_folder(scratch)
        _move_into_place(scratch, path)


def remove_folder(path: Path) -> None:
    """Remove a folder and its content atomically: it is renamed to a scratch folder and then deleted.

    There is no check whether the folder may be removed.

    Raises:
        OSError: If the parent cannot be written. The folder is unchanged.
    """
    path = path.absolute()
    with _scratch_folder(path, path.parent) as scratch:
        sync_folder(scratch)  # after a power failure, the scratch folder must still have its lock file
        path.rename(scratch / _CONTENT)
        sync_folder(path.parent)


def append(descriptor: int, data: bytes) -> None:
    """Append to an open file and flush it to disk.

    Raises:
        OSError: If the write fails. The file is truncated to its previous length.
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
    """Remove the scratch folders of dead processes in a folder, and finish their interrupted replacements."""
    try:
        found = scratch_folders(folder)
    except FileNotFoundError:
        return
    for scratch in found:
        with suppress(OSError, InputError):  # its owner is alive, or the disk is read-only
            _remove_one_abandoned(scratch)


def is_scratch(name: str) -> bool:
    """Return whether a folder's name is that of a scratch folder, which readers must skip when they walk a tree."""
    return _SCRATCH.fullmatch(name) is not None


def scratch_folders(folder: Path) -> list[Path]:
    """Return the scratch folders in a folder, of dead and living processes."""
    return sorted(path for path in folder.iterdir() if _SCRATCH.fullmatch(path.name))


def sync_tree(path: Path) -> None:
    """Flush a file, or a folder and its content, to disk."""
    if path.is_dir() and not path.is_symlink():
        for inside in path.iterdir():
            sync_tree(inside)
        sync_folder(path)
    elif not path.is_symlink():
        _sync(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # Windows flushes only files open for writing


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names to disk. Has no effect on Windows, which cannot open folders."""
    if os.name != "nt":
        _sync(folder, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
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
    raise InputError(f"{path} was not created by this command and cannot be replaced; choose another name")


@contextmanager
def _scratch_folder(path: Path, place: Path) -> Iterator[Path]:
    """Yield a locked scratch folder for `path` in the folder `place`. It is removed after the block."""
    try:
        remove_abandoned(place)
        scratch, lock = _make_scratch(path, place)
        try:
            yield scratch
        finally:
            _remove_scratch(scratch, lock, path)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # from `os.write` and `os.fsync`
            error.filename = str(path)
        raise


def _make_scratch(path: Path, place: Path) -> tuple[Path, FolderLock]:
    for _ in range(_TRIES):
        scratch = place / f".hgpo-{secrets.token_hex(8)}.tmp"
        scratch.mkdir(mode=0o700)
        # Another process may remove the folder before it is locked. Then try again with a new one.
        try:
            lock = FolderLock(scratch, f"writing {path.name}", target=path.name)
        except (FileNotFoundError, InputError):
            with suppress(OSError):
                scratch.rmdir()
            continue
        except OSError:  # for example, no disk space for the lock's note
            with suppress(OSError):
                (scratch / LOCK).unlink()
                scratch.rmdir()
            raise
        try:
            lock.sync()  # `remove_abandoned` needs the note to remove the folder after a power failure
        except BaseException:
            _remove_scratch(scratch, lock, path)
            raise
        return scratch, lock
    raise InputError(f"cannot lock a new folder in {place}: does its file system support locks?")


def _move_into_place(scratch: Path, path: Path) -> None:
    """Rename the content to its target. An existing folder is exchanged with it, or renamed first."""
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
    """Exchange two folders in one step, so that both names always exist.

    Returns:
        Whether the system and file system support this.
    """
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}:  # not supported by the file system
        return False
    raise OSError(code, os.strerror(code), str(other))


def _remove_one_abandoned(scratch: Path) -> None:
    if scratch.is_symlink() or not scratch.is_dir():
        return
    names = {path.name for path in scratch.iterdir()}
    if not names:
        scratch.rmdir()  # its owner was killed before it locked the folder, or will create another one
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
    """Return whether taking the lock proves that the owner is dead: on the owner's machine, or after a week."""
    here = note.get("released") or note.get("host") == socket.gethostname()
    return bool(here) or time.time() - (scratch / LOCK).stat().st_mtime > _ABANDONED_S


def _remove_scratch(scratch: Path, lock: FolderLock, target: Path) -> None:
    """Remove the content first and the lock last, so that an interrupted removal can be continued."""
    unfinished = (scratch / _PREVIOUS).exists() and not target.exists()
    if not unfinished:  # otherwise keep the only copy of the target; the next `remove_abandoned` finishes
        for name in (_CONTENT, _PREVIOUS):
            _remove(scratch / name)
    lock.release()  # Windows cannot remove an open file
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
    if os.fstat(descriptor).st_nlink == 0:  # the folder was removed before it was locked
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / LOCK))


# Windows' lock on the first byte also blocks readers, so the note starts at the second byte.
def _write_note(descriptor: int, note: dict[str, object]) -> None:
    line = b" " + json.dumps(note).encode() + b"\n"
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, line)  # in one call, so that a killed process leaves the old note or the new one
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
