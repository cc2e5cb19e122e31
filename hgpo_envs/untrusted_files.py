"""Reads files that others made: regular files only, never more than is allowed, errors in one line.

Opening a named pipe waits until somebody writes to it, and reading a device may never end. A few kilobytes of gzip
unpack to gigabytes. So every file that a user names is opened by `open_regular`, and what is read whole is read by
`read_bytes` or `read_unpacked` with a limit that is checked before the bytes are held.
"""

from __future__ import annotations

import errno
import gzip
import os
import stat
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

import orjson

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

LEAST_UNPACKED: Final = 16 << 20
"""Bytes that any compressed file may unpack to."""

RATIO: Final = 200
"""Beyond that, how many times its own size a compressed file may unpack to; text reaches 30, a bomb 1,000."""

GZIP: Final = b"\x1f\x8b"
"""How a gzipped file begins."""


def open_regular(path: Path, what: str = "file") -> BufferedReader:
    """Opens a regular file, or a link to one, for reading.

    Args:
        path: The file.
        what: What the user should name, for the error: `"pack"`, `"catalogue file"`.

    Raises:
        InputError: It does not exist, cannot be read, or is a folder, a named pipe, a socket or a device.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot read {path}: {reason}; expected a {what}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"cannot read {path}: expected a {what}, found a folder, pipe or device")
    return open(descriptor, "rb")  # noqa: PTH123 (it is open already)


def read_bytes(path: Path, limit: int, what: str = "file") -> bytes:
    """The bytes of a regular file.

    Args:
        path: The file.
        limit: The most bytes that such a file can have.
        what: As for `open_regular`.

    Raises:
        InputError: As `open_regular`, or the file is longer.
    """
    with open_regular(path, what) as file:
        return _limited(file, path, limit, what)


def read_unpacked(path: Path, limit: int, what: str = "file") -> bytes:
    """The bytes of a regular file, unpacked if it is gzipped.

    Args:
        path: The file.
        limit: The most bytes that such a file can have, unpacked.
        what: As for `open_regular`.

    Raises:
        InputError: As `read_bytes`, or the compressed data is damaged or unpacks to far more than its size.
    """
    with open_regular(path, what) as file:
        packed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        if not packed:
            return _limited(file, path, limit, what)
        allowed = min(limit, unpacked_limit(os.fstat(file.fileno()).st_size))
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _limited(unpacked, path, allowed, what)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path} is damaged ({error}); copy or make it again") from None


def unpacked_limit(size: int) -> int:
    """The most bytes that a compressed file of `size` bytes may unpack to."""
    return max(LEAST_UNPACKED, RATIO * size)


def decompress(packed: bytes, limit: int, dictionary: bytes = b"") -> bytes:
    """Unpacks zlib data.

    Args:
        packed: The data.
        limit: The most bytes that may come out.
        dictionary: What it was packed with.

    Raises:
        InputError: The data is damaged, cut off, or unpacks to more. The message does not say where it comes from.
    """
    decompressor = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    try:
        data = decompressor.decompress(packed, limit + 1)
    except zlib.error as error:
        raise InputError(f"its compressed data is damaged ({error})") from None
    if len(data) > limit:
        raise InputError(f"it unpacks to more than {limit:,} bytes")
    if not decompressor.eof:
        raise InputError("its compressed data is cut off")
    return data


def parse_json(data: bytes) -> Any:  # noqa: ANN401 - JSON
    """The value of a JSON text.

    Raises:
        InputError: It is not JSON. The message does not say where it comes from.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(f"not whole JSON ({error})") from None


def _limited(file: IO[bytes] | gzip.GzipFile, path: Path, limit: int, what: str) -> bytes:
    try:
        data = file.read(limit + 1)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise InputError(f"{path} has more than {limit:,} bytes, which no {what} has")
    return data


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Says in one line why something could not be written.

    Args:
        out: What is being made.

    Raises:
        InputError: The block raised OSError: the disk is full, a folder is read-only.
    """
    try:
        yield
    except OSError as error:
        # NumPy's short writes carry no number, only a sentence
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} or "requested and" in str(error)
        why = "no space left on the disk" if full else error.strerror or str(error)
        where = f" ({error.filename})" if error.filename and not full else ""
        raise InputError(f"cannot make {out}: {why}{where}; nothing was left behind") from None
