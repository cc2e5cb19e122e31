"""Open files from untrusted sources, with one-line errors."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POLARS_ERRORS: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Exceptions that Polars raises for a damaged file. PanicException is not a subclass of Exception."""

_WHAT: Final = "file of a step table"


def check_text(path: Path) -> None:
    """Check that a path is valid UTF-8, because Polars cannot open other paths.

    Raises:
        InputError: The path contains bytes that are not UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode("utf-8", "replace")
        raise InputError(f"{shown}: expected a UTF-8 path; rename it") from error


def status(path: Path) -> os.stat_result:
    """Return the status of a regular file. Symlinks are followed.

    Raises:
        InputError: The file is missing or is not a regular file.
    """
    with open_regular(path, _WHAT) as file:
        return os.fstat(file.fileno())


def read(path: Path, most: int) -> bytes:
    """Read the bytes of a regular file.

    Args:
        path: The file.
        most: Largest accepted size in bytes; a larger file is not read.

    Raises:
        InputError: The file is missing, is not a regular file, or is larger.
    """
    with errors(path), open_regular(path, _WHAT) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise InputError(f"{path}: expected at most {most:,} bytes, received {size:,}")
        return file.read(most)  # with a limit, because the file may grow during the read


@contextmanager
def errors(what: object) -> Iterator[None]:
    """Convert the exceptions of reading a damaged file to a one-line error.

    Raises:
        InputError: The block raised an OSError, a ValueError or an error of Polars.
    """
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, *POLARS_ERRORS) as error:
        raise InputError(f"{what} cannot be read: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
