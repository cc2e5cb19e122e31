"""Atomic writes of files and folders, and locks that end with their process.

New content is written into a *scratch folder* beside its target, flushed to disk (`fsync`), and renamed. If the process
is killed or the disk is full, the target is either absent or complete, in its old or its new version. A folder is
replaced by two renames; if the process dies between them, the next `remove_abandoned` restores the old version.

A scratch folder has an unguessable name, `.hgpo-<16 hexadecimal digits>.tmp`, and is locked by its owner. It is removed
by its owner or, if the owner has died, by the next writer in the same folder.

A folder of others can contain links, also under the names of our files. A path that the user gives may be a link or
lead through one; links inside it are replaced or refused, and never followed to write or remove (`open_inside`,
`refuse_link`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import socket
import stat
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from filelock import lock_descriptor

from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

LOCK: Final = ".lock"
"""The lock file in a locked folder. It is never removed, because then two processes could hold the lock at a time."""

_CONTENT: Final = ".content"
"""New content in a scratch folder. Any other name there is that of a folder that is being replaced."""

SCRATCH: Final = re.compile(r"\.hgpo-[0-9a-f]{16}\.tmp")
"""The names of scratch folders, which readers must skip when they walk a tree."""

_TRIES: Final = 20
_LONGEST_NOTE: Final = 1 << 12


class FolderLock(AbstractContextManager["FolderLock"]):
    """An exclusive lock on a folder, held until `release` or until the process ends or is killed.

    The lock is advisory: it affects only processes that also take it. It works between processes of one machine, and on
    network file systems (NFS) with lock support also between machines.

    Args:
        folder: An existing folder.
        purpose: What the process does there, for the error message of other processes, for example `"training"`.

    Raises:
        InputError: If another process holds the lock, the file system does not support locks, or `.lock` is a link or
            no regular file.
        OSError: If the folder cannot be written.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder, FolderLock(Path(folder), "training"):
    ...     FolderLock(Path(folder), "training")
    Traceback (most recent call last):
    ...
    hgpo_envs.errors.InputError: ... is in use: process ... on ... is training there; wait for it, or ...
    """

    def __init__(self, folder: Path, purpose: str) -> None:
        self._descriptor = open_inside(folder / LOCK, os.O_CREAT)
        with ExitStack() as on_failure:
            on_failure.callback(os.close, self._descriptor)
            try:
                locked = lock_descriptor(self._descriptor, blocking=False)
            except OSError as error:
                raise InputError(
                    f"cannot lock {folder}: its file system does not support locks ({error.strerror}); use a local "
                    "disk, or mount the network file system with locks"
                ) from error
            if not locked:
                note = _note_of(folder)
                holder = f"process {note.get('process')} on {note.get('host')} is {note.get('purpose')} there"
                known = holder if note else "another process has locked it"
                raise InputError(
                    f"{folder} is in use: {known}; wait for it, or use another folder"
                )
            # the folder was removed before it was locked
            if os.fstat(self._descriptor).st_nlink == 0:
                raise FileNotFoundError(
                    errno.ENOENT, os.strerror(errno.ENOENT), str(folder / LOCK)
                )
            note = {
                "purpose": purpose,
                "process": os.getpid(),
                "host": socket.gethostname(),
            }
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, json.dumps(note).encode())
            on_failure.pop_all()

    def release(self) -> None:
        """Release the lock and empty its file. Further calls have no effect."""
        descriptor = self._descriptor
        self._descriptor = -1
        if descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def __exit__(self, *_: object) -> None:
        self.release()


def _note_of(folder: Path) -> dict[str, object]:
    """Return who holds a folder's lock: purpose, process and host. Empty if nobody does, or it cannot be read."""
    try:
        note = json.loads(read_bytes(folder / LOCK, _LONGEST_NOTE))
    except (InputError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def seems_locked(folder: Path) -> bool:
    """Return whether a living process of this machine holds the folder's lock.

    For readers that must not take the lock themselves. Returns False on Windows and for locks of other machines.
    """
    note = _note_of(folder)
    process = note.get("process")
    if (
        note.get("host") != socket.gethostname()
        or type(process) is not int
        or os.name == "nt"
    ):
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def open_inside(path: Path, flags: int = 0) -> int:
    """Open a regular file of ours for reading and writing, and return its descriptor.

    Args:
        path: The file, inside a folder that can be from others.
        flags: Further flags of `os.open`, such as `os.O_CREAT`.

    Raises:
        InputError: If it is a link, has another name too (a hard link), or is a folder, pipe, socket or device.
        OSError: If it cannot be opened.
    """
    for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(path, os.O_RDWR | flags, 0o644)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            raise
    else:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink < 2:
            return descriptor
        os.close(descriptor)
    raise InputError(
        f"{path}: expected a file with one name, found a link, folder, pipe or device; remove it"
    )


def refuse_link(path: Path) -> None:
    """Raise InputError if a folder of ours is a link: its files would be written and removed elsewhere."""
    if path.is_symlink():
        raise InputError(
            f"{path} is a link: expected a folder, in which files are replaced; move the folder there"
        )


def make_folder(path: Path) -> list[Path]:
    """Create a folder and its missing parents, and flush their names to disk.

    Returns:
        What was created, the innermost first.

    Raises:
        OSError: If `path` exists and is not a folder, or a parent cannot be written. What was created is removed.
    """
    new = missing_folders(path)
    try:
        for folder in reversed(new):
            folder.mkdir(exist_ok=True)  # another process may have made it
            _sync(folder.parent)
        path.mkdir(exist_ok=True)  # an error if it is a file
    except BaseException:
        remove_unused(new)
        raise
    return new


@contextmanager
def making_folder(path: Path) -> Iterator[None]:
    """Create a folder as `make_folder`. If the block fails, those that are new and empty are removed."""
    new = make_folder(path)
    try:
        yield
    except BaseException:
        remove_unused(new)
        raise


def missing_folders(path: Path) -> list[Path]:
    """Return a folder and its parents as far as they do not exist, the innermost first."""
    return [
        folder
        for folder in (path.absolute(), *path.absolute().parents)
        if not folder.exists()
    ]


def remove_unused(new: Sequence[Path], worthless: Collection[str] = ()) -> None:
    """Remove folders that this process created, if nothing was stored in them.

    Args:
        new: The folders, the innermost first. Nothing is removed unless all files in the first are worthless; the
            others are removed if they are empty.
        worthless: The names of files that are removed with them.
    """
    with suppress(OSError):  # another process has just written into one
        inside = [path for folder in new[:1] for path in folder.rglob("*")]
        if all(path.is_dir() or path.name in worthless for path in inside):
            for path in sorted(inside, reverse=True):  # contents before their folder
                path.rmdir() if path.is_dir() else path.unlink()
            for folder in new:
                if folder.exists():
                    folder.rmdir()


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
    with new_path(path, scratch_in=scratch_in) as content:
        content.write_bytes(data)


@contextmanager
def new_folder(
    path: Path, *, replace: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
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
            # fails, and so keeps the content, if another process has just written into it
            path.rmdir()


@contextmanager
def new_path(path: Path, *, scratch_in: Path | None = None) -> Iterator[Path]:
    """Yield a path at which to create a file or folder, which becomes `path` if the block ends without an error.

    An existing `path` is replaced without a check. For folders, `new_folder` is safer.

    Args:
        path: The file or folder.
        scratch_in: See `write_file`. Only for files: an interrupted replacement of a folder could not be undone.
    """
    path = path.absolute()
    with _scratch_folder(
        path, path.parent if scratch_in is None else scratch_in.absolute()
    ) as scratch:
        content = scratch / _CONTENT
        yield content
        for item in (content, *content.rglob("*")):
            _sync(item)
        if content.is_dir() and path.is_dir():
            _replace_folder(scratch, path)
        else:
            content.replace(path)
        _sync(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder and its content atomically: it is renamed into a scratch folder and then deleted.

    There is no check whether the folder may be removed.

    Raises:
        OSError: If the parent cannot be written. The folder is unchanged.
    """
    path = path.absolute()
    with _scratch_folder(path, path.parent) as scratch:
        path.rename(scratch / _CONTENT)
        _sync(path.parent)


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
    """Remove the scratch folders of dead processes in a folder, and undo their interrupted replacements."""
    for scratch in scratch_folders(folder) if folder.is_dir() else []:
        # its owner is alive, or the disk is read-only
        with suppress(OSError, InputError):
            _remove_scratch(scratch, FolderLock(scratch, "removing"))


def check_writable(folder: Path) -> None:
    """Create a scratch folder in a folder and remove it. The next write there removes one that a kill has left.

    Raises:
        OSError: The folder cannot be written, as those of the kernel's own file systems, which permit it.
    """
    scratch = folder / f".hgpo-{secrets.token_hex(8)}.tmp"
    scratch.mkdir(mode=0o700)
    scratch.rmdir()


def scratch_folders(folder: Path) -> list[Path]:
    """Return the scratch folders in a folder, of dead and living processes. Links are none."""
    named = (path for path in folder.iterdir() if SCRATCH.fullmatch(path.name))
    return sorted(path for path in named if path.is_dir() and not path.is_symlink())


def _sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to disk."""
    # Windows cannot open folders, and flushes only files open for writing
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_replaceable(path: Path, replace: Callable[[Path], bool] | None) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if (
        path.is_dir()
        and not path.is_symlink()
        and (not any(path.iterdir()) or (replace is not None and replace(path)))
    ):
        return
    if replace is None:
        raise InputError(
            f"{path} already exists; choose another name, or remove it first"
        )
    raise InputError(
        f"{path} was not created by this command and cannot be replaced; choose another name"
    )


@contextmanager
def _scratch_folder(path: Path, parent: Path) -> Iterator[Path]:
    """Yield a locked scratch folder for `path` in the folder `parent`. It is removed after the block."""
    try:
        remove_abandoned(parent)
        for _ in range(_TRIES):
            scratch = parent / f".hgpo-{secrets.token_hex(8)}.tmp"
            scratch.mkdir(mode=0o700)
            try:
                lock = FolderLock(scratch, f"writing {path.name}")
            except BaseException as error:
                shutil.rmtree(scratch, ignore_errors=True)
                # for example, no disk space for the lock
                if not isinstance(error, FileNotFoundError | InputError):
                    raise
            else:
                # otherwise another process took it for abandoned before it was locked
                break
        else:
            raise InputError(
                f"cannot lock a new folder in {parent}: does its file system support locks?"
            )
        try:
            yield scratch
        finally:
            _remove_scratch(scratch, lock)
    except OSError as error:
        # `os.write` and `os.fsync` name no file, other functions the scratch folder, which is none of the user's.
        named = str(error.filename or "")
        if error.errno is not None and (not named or SCRATCH.search(named)):
            error.filename = str(path)
        raise


def _replace_folder(scratch: Path, path: Path) -> None:
    """Rename an existing folder into the scratch folder, and the new one to its place."""
    # after a power failure, the scratch folder must be there with the old version in it
    _sync(scratch.parent)
    path.rename(scratch / path.name)
    _sync(scratch)
    # if this fails, `_remove_scratch` restores the old version
    (scratch / _CONTENT).rename(path)


def _remove_scratch(scratch: Path, lock: FolderLock) -> None:
    """Remove a scratch folder. A folder whose replacement was interrupted returns to its place."""
    try:
        for previous in scratch.iterdir():
            target = scratch.parent / previous.name
            if previous.name not in {LOCK, _CONTENT} and not os.path.lexists(target):
                previous.rename(target)
                _sync(scratch.parent)
    finally:
        lock.release()  # Windows cannot remove an open file
    shutil.rmtree(scratch, ignore_errors=True)
