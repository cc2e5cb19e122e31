"""Safe reading of untrusted files: regular files only, within a size limit, with one-line errors.

Opening a named pipe blocks until another process writes to it, reading a device may never end, and a few kilobytes of
gzip can unpack to gigabytes. Every file that a user names is therefore opened with `open_regular` and read to a limit.
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

_GZIP: Final = b"\x1f\x8b"
"""The first bytes of a gzip file."""


def open_regular(path: Path, what: str = "file") -> BufferedReader:
    """Open a regular file, or a link to one, for reading.

    Args:
        path: The file.
        what: The expected kind of file, for the error: `"pack"`, `"catalogue file"`.

    Raises:
        InputError: If it does not exist, cannot be read, or is a folder, a named pipe, a socket or a device.
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
    return open(descriptor, "rb")  # noqa: PTH123 (already open)


def open_unpacked(path: Path, what: str = "file") -> IO[bytes]:
    """Open a regular file that may be gzipped, as `open_regular`. Reading damaged data raises OSError or EOFError."""
    file = open_regular(path, what)
    packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    if not packed:
        return file
    unpacked = gzip.GzipFile(fileobj=file)
    unpacked.myfileobj = file  # type: ignore[assignment]  # which it then closes
    return unpacked  # type: ignore[return-value]  # it can be read


def read_bytes(path: Path, limit: int, what: str = "file", *, unpack: bool = False) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file.
        limit: The maximum size in bytes.
        what: See `open_regular`.
        unpack: Whether to decompress the file if it is gzipped. The limit is that of the decompressed size.

    Raises:
        InputError: As in `open_regular`, or if the file is damaged or larger than the limit.
    """
    with (open_unpacked if unpack else open_regular)(path, what) as file:
        try:
            data = file.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"cannot read {path}: {reason}; copy or create it again") from None
    if len(data) > limit:
        raise InputError(f"{path}: expected a {what} of at most {limit:,} bytes, received a larger file")
    return data


def decompress(packed: bytes, limit: int, dictionary: bytes = b"") -> bytes:
    """Decompress zlib data.

    Args:
        packed: The compressed data.
        limit: The maximum decompressed size in bytes.
        dictionary: The preset dictionary with which the data was compressed.

    Raises:
        InputError: If the data is damaged, truncated, or larger than the limit. The message does not name the file.
    """
    decompressor = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    try:
        data = decompressor.decompress(packed, limit + 1)
    except zlib.error as error:
        raise InputError(f"its compressed data is damaged ({error})") from None
    if len(data) > limit or not decompressor.eof:
        raise InputError(f"its compressed data is truncated, or unpacks to more than {limit:,} bytes")
    return data


def parse_json(data: bytes) -> Any:  # noqa: ANN401 - JSON
    """Return the value of a JSON text.

    Raises:
        InputError: If it is not valid JSON. The message does not name the file.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(f"not valid JSON ({error})") from None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn an OSError of the block into a one-line InputError.

    Args:
        out: The file or folder that the block writes.

    Raises:
        InputError: If the block raises OSError, for example because the disk is full or a folder is read-only.
    """
    try:
        yield
    except OSError as error:
        # NumPy reports a short write as an OSError without an errno
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} or "requested and" in str(error)
        why = "no space left on the disk" if full else error.strerror or str(error)
        where = f" ({error.filename})" if error.filename and not full else ""
        raise InputError(f"cannot write {out}: {why}{where}; no partial output was left") from None
