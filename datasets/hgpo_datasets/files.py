"""Opens files that somebody else may have made: regular files only, up to a size, and errors in one line.

A run's folder may come from anywhere. A FIFO in it would block whoever opens it, a device would never end, a symlink
may lead nowhere. Every file of a step table is checked here before it is read, by us or by Polars.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
)


def check_text(path: Path) -> None:
    """Checks that a path is a text, because Polars cannot open another one.

    Raises:
        InputError: It holds bytes that are not UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode("utf-8", "replace")
        raise InputError(f"{shown}: the path is not UTF-8; rename it") from error


def regular(path: Path) -> os.stat_result:
    """The status of a regular file; symlinks are followed.

    Raises:
        InputError: There is no file, or it is not a regular one.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path} {_reason(error, dangling=path.is_symlink())}") from error
    _check_kind(path, status)
    return status


@contextmanager
def descriptor_of(path: Path) -> Iterator[int]:
    """Opens a regular file for reading and gives its descriptor.

    Raises:
        InputError: There is no file, it is not a regular one, or it cannot be opened.
    """
    regular(path)  # opening a device may already have an effect
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags)  # does not block where a FIFO has just taken the file's place
    except OSError as error:
        raise InputError(f"{path} {_reason(error)}") from error
    try:
        _check_kind(path, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def read(path: Path, most: int) -> bytes:
    """The bytes of a regular file.

    Args:
        path: The file.
        most: The largest size accepted, in bytes; a larger file is not read.

    Raises:
        InputError: There is no such file, or it is larger.
    """
    with descriptor_of(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise InputError(f"{path} has {size:,} bytes; expected at most {most:,}")
        try:
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(most)  # a file may grow while it is read
        except OSError as error:
            raise InputError(f"{path} {_reason(error)}") from error


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Turns what Polars and the operating system raise for a damaged file into one line.

    Polars panics on some damaged files: its PanicException is no Exception.

    Raises:
        InputError: The block raised.
    """
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InputError(f"{what} cannot be read: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where there is none."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _check_kind(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "a special file")
        raise InputError(f"{path} is {kind}; expected a regular file")


def _reason(error: OSError, *, dangling: bool = False) -> str:
    if error.errno == errno.ENOENT:
        return "is a symlink to a file that does not exist" if dangling else "is missing"
    return f"cannot be read: {error.strerror or error}"
