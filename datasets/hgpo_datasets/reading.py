"""Opens files that somebody else may have made, and says what is wrong with them in one line."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.untrusted_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POLARS_ERRORS: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What Polars raises for a damaged file; a PanicException is no Exception."""

_WHAT: Final = "file of a step table"


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


def status(path: Path) -> os.stat_result:
    """The status of a regular file; symlinks are followed.

    Raises:
        InputError: There is no file, or it is not a regular one.
    """
    with open_regular(path, _WHAT) as file:
        return os.fstat(file.fileno())


def read(path: Path, most: int) -> bytes:
    """The bytes of a regular file.

    Args:
        path: The file.
        most: The largest size accepted, in bytes; a larger file is not read.

    Raises:
        InputError: There is no such file, or it is larger.
    """
    with errors(path), open_regular(path, _WHAT) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise InputError(f"{path} has {size:,} bytes; expected at most {most:,}")
        return file.read(most)  # a file may grow while it is read


@contextmanager
def errors(what: object) -> Iterator[None]:
    """Turns what reading a damaged file raises into one line.

    Raises:
        InputError: The block raised.
    """
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, *POLARS_ERRORS) as error:
        raise InputError(f"{what} cannot be read: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where there is none."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
