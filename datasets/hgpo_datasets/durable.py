"""Files that are there or not: temporary file, fsync, rename, fsync of the folder.

A process may be killed and a disk may fill at any moment: under its name a file is then absent or whole. Costs about
10 ms a file on a disk. What the disk itself loses afterwards is found by `hgpo verify`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

PART: Final = ".part"


def write_file(path: Path, data: bytes) -> None:
    """Writes a file that appears whole or not at all. On an OSError nothing is left under `path`."""
    part = path.with_name(path.name + PART)
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def append(descriptor: int, data: bytes) -> None:
    """Appends to an open file and waits until the disk has it. On an OSError the file is as long as it was."""
    size = os.fstat(descriptor).st_size
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, size)
        raise


def sync_folder(folder: Path) -> None:
    """Waits until the disk has a folder's list of names; where folders cannot be opened (Windows), does nothing."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_locked(path: Path) -> int:
    """Opens a file for appending and locks it; the lock ends with the process, however that ends.

    Raises:
        InputError: Another writer holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 1 << 40, os.SEEK_SET)  # a byte that no reader asks for
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise InputError(
            f"{path.parent} is being written by another writer; wait for it, or give another folder"
        ) from error
    return descriptor
