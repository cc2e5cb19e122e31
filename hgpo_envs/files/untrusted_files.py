"""Safe reading of untrusted files, and paths from untrusted names.

Opening a named pipe blocks until another process writes to it, reading a device may never end, and a few kilobytes of
gzip can unpack to gigabytes. Every file that a user names is therefore opened with `open_regular` and read to a limit.

Archives, packs, catalogues and task ids contain names. `path_inside` joins one to a folder if the result is inside the
folder on every operating system. A name that is invalid on one system is rejected on all.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
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

LONGEST_PART: Final = 255
"""The maximum UTF-8 length in bytes of one part of a name, as in common file systems."""
LONGEST_NAME: Final = 1024
"""The maximum UTF-8 length in bytes of a name."""
_FORBIDDEN: Final = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\\ud800-\udfff]')
_RESERVED: Final = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE
)
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
    flags = (
        os.O_RDONLY
        | getattr(os, "O_BINARY", 0)
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_CLOEXEC", 0)
    )
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot read {path}: {reason}; expected a {what}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(
            f"cannot read {path}: expected a {what}, found a folder, pipe or device"
        )
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


def read_bytes(
    path: Path, limit: int, what: str = "file", *, unpack: bool = False
) -> bytes:
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
            raise InputError(
                f"cannot read {path}: {reason}; copy or create it again"
            ) from None
    if len(data) > limit:
        raise InputError(
            f"{path}: expected a {what} of at most {limit:,} bytes, received a larger file"
        )
    return data


def sha256(path: Path, what: str = "file") -> str:
    """Return the SHA-256 of a regular file as hexadecimal digits. Raises InputError as `open_regular`."""
    with open_regular(path, what) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        full = error.errno in {
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
        } or "requested and" in str(error)
        why = "no space left on the disk" if full else error.strerror or str(error)
        is_other = error.filename and error.filename != str(out.absolute())
        where = f" ({error.filename})" if is_other and not full else ""
        raise InputError(
            f"cannot write {out}: {why}{where}; no partial output was left"
        ) from None


def path_inside(folder: Path, name: object) -> Path:
    r"""Return the path of an untrusted name inside a folder.

    Args:
        folder: The folder.
        name: Parts joined by `/`. Empty parts and the part `.` are ignored, as in file systems.

    Raises:
        InputError: If the name is absolute, leads out of the folder, or is not a valid file name on every system:
            control characters, `\` and `: < > " | ? *`, Windows' device names, a dot or space at the end of a part, a
            part of more than 255 bytes. The message does not state where the name comes from.

    >>> from pathlib import PurePosixPath
    >>> path_inside(PurePosixPath("games"), "train/mug/./trial_1")
    PurePosixPath('games/train/mug/trial_1')
    >>> path_inside(PurePosixPath("games"), "train/../../secret")
    Traceback (most recent call last):
    ...
    hgpo_envs.errors.InputError: the name 'train/../../secret' leads out of the folder, or is not a portable file name
    """
    if isinstance(name, str):
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if (
            parts
            and name[0] != "/"
            and all(map(_portable, parts))
            and len(name.encode()) <= LONGEST_NAME
        ):
            return folder.joinpath(*parts)
    shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:80]}…"
    raise InputError(
        f"the name {shown} leads out of the folder, or is not a portable file name"
    )


def _portable(part: str) -> bool:
    """Return whether a part of a name is a valid file name on every system."""
    return not (
        _FORBIDDEN.search(part)
        or part.endswith((".", " "))
        or _RESERVED.fullmatch(part)
        or len(part.encode()) > LONGEST_PART
    )
