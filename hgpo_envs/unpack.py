"""Unpacks zip and tar archives that may be damaged or hostile.

The standard library reads the archives; what it would believe is checked here. An archive holds regular files and
folders only, under names that `hgpo_envs.safe_paths.path_inside` accepts, each name once. All bytes that come out are
counted as they come, a tar archive's headers too, and they may be no more than an archive of text games can hold: what
an archive announces of its sizes is not used. `tarfile`'s own filters are not used either, because Python 3.11.0 to
3.11.3 lack them and because they accept links.
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
from hgpo_envs.safe_paths import path_inside
from hgpo_envs.untrusted_files import open_regular, unpacked_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHUNK: Final = 1 << 18
MOST_FILES: Final = 100_000
"""Files and folders in an archive."""
LARGEST: Final = 16 << 30
"""Bytes of everything that comes out of an archive; for small archives less
(`hgpo_envs.untrusted_files.unpacked_limit`)."""
PIECE: Final = 1 << 16
"""Bytes that are read of a tar archive at a time."""
LONGEST_HEADER: Final = 2 * PIECE
"""Bytes that are read for a tar member's header with everything that extends it (long names, PAX records)."""
DIRECTORY_BYTES: Final = 300
"""Bytes of a zip archive's directory for each entry, on average, at most."""
XZ_MEMORY: Final = 128 << 20
"""Bytes that decompressing xz may need; `xz -9` needs half."""

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
"""What a truncated or damaged archive raises."""


class CannotWrite(InputError):  # noqa: N818 (named for what it says)
    """The archive may be good, but there is no space or no permission to unpack it."""


class _Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


Member = tuple[str, _Readable | None]
"""A name and what is stored under it; None for a folder."""


def unpack(
    archives: list[Path],
    folder: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Unpacks archives into an empty folder.

    To have all of them or nothing, unpack into a folder of `hgpo_envs.atomic.new_folder`.

    Args:
        archives: Zip or tar (plain, gz, bz2, xz); two must not hold the same file.
        folder: An existing folder.
        progress: Called after each file with the number of files so far.

    Returns:
        The number of files.

    Raises:
        InputError: An archive is broken or hostile. What has been unpacked stays in the folder.
        CannotWrite: The disk is full, or the folder cannot be written.
    """
    count = 0
    for archive in archives:
        for _ in _extract(archive, folder):
            count += 1
            if progress is not None:
                progress(count)
    return count


def _extract(archive: Path, folder: Path) -> Iterator[None]:
    """Writes an archive's files below a folder, one by one; errors name the archive."""
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
                    _path(folder, name)  # folders come with their files; this one only has to have a good name
        except InputError as error:
            raise InputError(f"{archive}: {error}") from None
        except (*BROKEN, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # a decompressor's errors have no number
                raise CannotWrite(f"cannot unpack {archive}: {one_line(error, 200)}") from None
            raise InputError(f"{archive} is broken: {one_line(error, 200)}; fetch it again") from None


def _too_many() -> InputError:
    return InputError(f"more than {MOST_FILES} entries; expected an archive of games")


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
        raise InputError(f"the name {name!r} comes twice") from None


def _members(file: IO[bytes]) -> Iterator[Member]:
    """The members of an archive of any kind, each to be read before the next."""
    allowed = min(LARGEST, unpacked_limit(file.seek(0, io.SEEK_END)))
    is_zip = zipfile.is_zipfile(file)
    file.seek(0)
    return _zip_members(file, allowed) if is_zip else _tar_members(file, allowed)


class _Counted:
    """Reads from a source, and raises when more bytes come out than are allowed.

    Args:
        allowed: The most bytes that may come out of all sources.

    Attributes:
        source: The source; it may be exchanged for another one.
        header_left: How many bytes more may belong to a tar member's header.
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
            raise InputError(f"unpacks to more than {self._allowed:,} bytes; expected an archive of games")
        if self.header_left < 0:
            raise InputError(f"a header of more than {LONGEST_HEADER:,} bytes; expected an archive of games")
        return data


class _Directory(io.BufferedReader):
    """A zip file whose directory is checked before `zipfile` makes an object for each of its entries."""

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
            # other methods unpack as much as they like at a time, or ask for gigabytes of memory
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise InputError(f"refused: {info.filename!r} is not deflated but compressed otherwise")
            if info.is_dir():
                yield info.filename, None
            else:
                with packed.open(info) as counted.source:
                    yield info.filename, counted


class _Header(tarfile.TarInfo):
    """A tar header that reports damage; `TarFile.next` takes a damaged header for the end of the archive."""

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
        packed = tarfile.open(  # noqa: SIM115 (it owns nothing)
            mode="r|", fileobj=cast("IO[bytes]", counted), bufsize=PIECE, tarinfo=_Header
        )
    except tarfile.ReadError:
        raise InputError("neither a zip nor a tar archive, or cut off; fetch it again") from None
    while (info := packed.next()) is not None:
        counted.header_left = math.inf
        if not (info.isreg() or info.isdir()) or info.issparse():
            raise InputError(f"refused: {info.name!r} is a link or a device")
        if info.size < 0:
            raise tarfile.ReadError("a file of negative size")
        yield info.name, packed.extractfile(info)
        # `packed` would keep every header that it has read
        packed.members.clear()  # type: ignore[attr-defined]
        packed.pax_headers = {}
        counted.header_left = LONGEST_HEADER
    counted.header_left = math.inf
    while counted.read(PIECE):  # to the end, where gzip, bzip2 and xz keep their checksums
        pass


def _decompressed(file: IO[bytes]) -> _Readable:
    """The bytes of a file, decompressed by what it begins with, piece by piece."""
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
    """Decompresses xz within a limit of memory, which `lzma.LZMAFile` does not have."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def read(self, size: int = -1, /) -> bytes:
        data = b""
        while not data:
            packed = b""
            if self._stream.eof:  # a file may hold several streams, with zeros between them
                packed = self._stream.unused_data.lstrip(b"\0")
                while not packed and (piece := self._file.read(CHUNK)):
                    packed = piece.lstrip(b"\0")
                if not packed:
                    return b""
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
            elif self._stream.needs_input:
                packed = self._file.read(CHUNK)
                if not packed:
                    raise EOFError("the archive is cut off")
            data = self._stream.decompress(packed, size)
        return data
