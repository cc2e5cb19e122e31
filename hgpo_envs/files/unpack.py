"""Extraction of zip and tar archives that may be damaged or malicious.

The standard library reads the archives, and this module checks what it would trust. An archive may contain only regular
files and folders, under distinct names that `hgpo_envs.files.safe_paths.path_inside` accepts. All extracted bytes,
including a tar archive's headers, count towards a limit; the sizes that an archive declares are not used. `tarfile`'s
filters are not used either, because Python 3.11.0 to 3.11.3 lack them and because they accept links.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Final, Protocol, Self, cast

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.safe_paths import path_inside
from hgpo_envs.files.untrusted_files import open_regular, unpacked_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHUNK: Final = 1 << 18
MOST_FILES: Final = 100_000
"""The maximum number of files and folders in an archive."""
LARGEST: Final = 16 << 30
"""The maximum total size in bytes after extraction. Small archives have a lower limit
(`hgpo_envs.files.untrusted_files.unpacked_limit`)."""
PIECE: Final = 1 << 16
"""The number of bytes that are read from a tar archive at a time."""
LONGEST_HEADER: Final = 2 * PIECE
"""The maximum size in bytes of a tar member's header with its extensions (long names, PAX records)."""
DIRECTORY_BYTES: Final = 300
"""The maximum mean size in bytes of an entry in a zip archive's directory."""
XZ_MEMORY: Final = 128 << 20
"""The maximum memory in bytes for xz decompression. `xz -9` needs half of it."""

BROKEN: Final = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ArithmeticError,
    LookupError,
    RuntimeError,  # NotImplementedError: a compression that Python lacks; RecursionError: nested headers
    ValueError,
    struct.error,
)
"""The exceptions that the standard library raises for truncated or damaged archives."""


class CannotWrite(InputError):  # noqa: N818 (a public name)
    """The archive cannot be extracted for lack of disk space or permission. It may be intact."""


class _Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


Member = tuple[str, _Readable | None]
"""A member's name and content. The content of a folder is None."""


def unpack(
    archives: list[Path],
    folder: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Extract archives into an empty folder.

    Extraction is not atomic. For an atomic result, extract into a folder of `hgpo_envs.files.atomic.new_folder`.

    Args:
        archives: Zip or tar files (plain, gz, bz2, xz). No two may contain the same file.
        folder: An existing folder.
        progress: Called after each file with the number of files so far.

    Returns:
        The number of files.

    Raises:
        InputError: If an archive is damaged or malicious. Files that were already extracted stay in the folder.
        CannotWrite: If the disk is full or the folder cannot be written.
    """
    count = 0
    for archive in archives:
        for _ in _extract(archive, folder):
            count += 1
            if progress is not None:
                progress(count)
    return count


def _extract(archive: Path, folder: Path) -> Iterator[None]:
    """Write an archive's files into a folder and yield after each. Errors name the archive."""
    with open_regular(archive, "zip or tar archive") as file:
        try:
            for number, (name, content) in enumerate(_members(file)):
                if number >= MOST_FILES:
                    raise _too_many()
                if content is not None:
                    with _new(folder, name) as sink:
                        shutil.copyfileobj(content, sink, CHUNK)
                    yield
                elif name.strip("./"):
                    _path(folder, name)  # check the name only: a folder is created with its first file
        except InputError as error:
            raise InputError(f"{archive}: {error}") from None
        except (*BROKEN, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # a decompressor's errors have no errno
                raise CannotWrite(f"cannot unpack {archive}: {one_line(error, 200)}") from None
            raise InputError(f"{archive} is damaged: {one_line(error, 200)}; fetch it again") from None


def _too_many() -> InputError:
    return InputError(f"expected an archive of games, received an archive of more than {MOST_FILES} entries")


def _path(folder: Path, name: str) -> Path:
    try:
        return path_inside(folder, name)
    except InputError as error:
        raise InputError(f"refused: {error}") from None


def _new(folder: Path, name: str) -> IO[bytes]:
    path = _path(folder, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"the name {name!r} occurs twice") from None


def _members(file: IO[bytes]) -> Iterator[Member]:
    """Return the members of a zip or tar archive. Each must be read before the next is requested."""
    allowed = min(LARGEST, unpacked_limit(file.seek(0, io.SEEK_END)))
    is_zip = zipfile.is_zipfile(file)
    file.seek(0)
    return _zip_members(file, allowed) if is_zip else _tar_members(file, allowed)


class _Counted:
    """A reader that raises an error when the total number of bytes read exceeds a limit.

    Args:
        allowed: The maximum number of bytes from all sources together.

    Attributes:
        source: The current source. It may be replaced.
        header_left: How many more bytes the header of the current tar member may have.
    """

    def __init__(self, allowed: int) -> None:
        self.source: _Readable = io.BytesIO()
        self.header_left = math.inf
        self._allowed = self._left = allowed

    def read(self, size: int = -1, /) -> bytes:
        data = self.source.read(size)
        self._left -= len(data)
        self.header_left -= len(data)
        if self._left < 0:
            raise InputError(f"expected an archive of games, but it unpacks to more than {self._allowed:,} bytes")
        if self.header_left < 0:
            raise InputError(f"expected an archive of games, but a header has more than {LONGEST_HEADER:,} bytes")
        return data


class _Directory(io.BufferedReader):
    """A zip file whose directory is checked before `zipfile` creates an object for each of its entries."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > max(CHUNK, DIRECTORY_BYTES * MOST_FILES):
            raise _too_many()
        data = super().read(size)
        if data.startswith(b"PK\x01\x02") and data.count(b"PK\x01\x02") > MOST_FILES:
            raise _too_many()
        return data


def _zip_members(file: IO[bytes], allowed: int) -> Iterator[Member]:
    counted = _Counted(allowed)
    with zipfile.ZipFile(_Directory(cast("io.RawIOBase", file))) as packed:
        for info in packed.infolist():
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise InputError(f"refused: {info.filename!r} is a link or a device")
            if info.flag_bits & 1:
                raise InputError(f"refused: {info.filename!r} is encrypted")
            # for other methods, the output per read and the memory have no limit
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise InputError(f"refused: {info.filename!r} uses a compression method other than deflate")
            if info.is_dir():
                yield info.filename, None
            else:
                with packed.open(info) as counted.source:
                    yield info.filename, counted


class _Header(tarfile.TarInfo):
    """A tar header that reports damage. `TarFile.next` would treat a damaged header as the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError:
            if buf.strip(b"\0"):
                raise tarfile.ReadError("a damaged header") from None
            raise


def _tar_members(file: IO[bytes], allowed: int) -> Iterator[Member]:
    counted = _Counted(allowed)
    counted.source, counted.header_left = _decompressed(file), LONGEST_HEADER
    try:
        packed = tarfile.open(  # noqa: SIM115 (the caller closes the file)
            mode="r|", fileobj=cast("IO[bytes]", counted), bufsize=PIECE, tarinfo=_Header
        )
    except tarfile.ReadError:
        raise InputError("expected a zip or tar archive, received another format or a truncated file") from None
    while (info := packed.next()) is not None:
        counted.header_left = math.inf
        if not (info.isreg() or info.isdir()) or info.issparse():
            raise InputError(f"refused: {info.name!r} is a link or a device")
        if info.size < 0:
            raise tarfile.ReadError("a file of negative size")
        yield info.name, packed.extractfile(info)
        # otherwise the memory use of `packed` grows with every header
        packed.members.clear()  # type: ignore[attr-defined]
        packed.pax_headers = {}
        counted.header_left = LONGEST_HEADER
    counted.header_left = math.inf
    while counted.read(PIECE):  # read to the end, where gzip, bzip2 and xz store their checksums
        pass


def _decompressed(file: IO[bytes]) -> _Readable:
    """Return a reader that decompresses a file according to its first bytes."""
    head = file.read(6)
    file.seek(0)
    if head[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file)
    if head[:3] == b"BZh":
        return bz2.BZ2File(file)
    if head == b"\xfd7zXZ\0":
        return _Xz(file)
    return file


class _Xz:
    """An xz reader with a memory limit, which `lzma.LZMAFile` lacks."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def read(self, size: int = -1, /) -> bytes:
        data = b""
        while not data:
            packed = b""
            if self._stream.eof:  # a file may contain several streams with zeros between them
                packed = self._stream.unused_data.lstrip(b"\0")
                while not packed and (piece := self._file.read(CHUNK)):
                    packed = piece.lstrip(b"\0")
                if not packed:
                    return b""
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
            elif self._stream.needs_input:
                packed = self._file.read(CHUNK)
                if not packed:
                    raise EOFError("the archive is truncated")
            data = self._stream.decompress(packed, size)
        return data
