"""Unpacks zip and tar archives from anywhere: all of an archive or nothing, and nothing outside the folder.

Refused: names that `hgpo_envs.paths.inside` refuses, links, devices, the same name twice, more files or bytes than an
archive of text games can hold, and a compression ratio that only a bomb has. Every byte that is read counts, headers
and names too, and it is counted before it is held: what an archive says of its sizes is not believed.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, cast

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files import LEAST_UNPACKED, RATIO, open_regular
from hgpo_envs.paths import inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from _typeshed import WriteableBuffer

CHUNK: Final = 1 << 18
LONGEST_HEADER: Final = 1 << 16
"""Bytes of a tar member's header with everything that extends it (long names, PAX records)."""
DIRECTORY_BYTES: Final = 300
"""Bytes that an entry of a zip archive's directory has on average, at most."""
XZ_MEMORY: Final = 128 << 20
"""Bytes that decompressing xz may need; `xz -9` needs half."""

BROKEN: Final = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    EOFError,
    ArithmeticError,
    LookupError,
    RuntimeError,  # NotImplementedError: a compression that Python lacks; RecursionError: headers that nest
    ValueError,
    struct.error,
)
"""What an archive that is cut off or damaged raises."""


class CannotWrite(InputError):  # noqa: N818 (named for what it says)
    """The archive may be good, but there is no room or no right to unpack it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an archive may hold.

    Attributes:
        files: Number of files and folders.
        size: Bytes of everything that comes out.
        ratio: Bytes of everything that comes out to bytes of the archive (looked at beyond 16 MiB).
    """

    files: int = 100_000
    size: int = 16 << 30
    ratio: float = RATIO


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    open: Callable[[], IO[bytes]] | None
    """None for a folder."""


def unpack(
    archives: list[Path],
    folder: Path,
    *,
    limits: Limits = Limits(),
    progress: Callable[[int], None] | None = None,
) -> int:
    """Unpacks archives into an empty folder; one of `hgpo_envs.atomic.new_folder` appears complete or not at all.

    Args:
        archives: Zip or tar (plain, gz, bz2, xz); two must not hold the same file.
        folder: An existing folder.
        limits: Of each archive.
        progress: Is told the number of files unpacked so far.

    Returns:
        The number of files.

    Raises:
        InputError: An archive is broken or hostile. What has been unpacked stays in the folder.
        CannotWrite: The disk is full, or the folder cannot be written.
    """
    count = 0
    for archive in archives:
        for _ in _extract(archive, folder, limits):
            count += 1
            if progress is not None:
                progress(count)
    return count


def _extract(archive: Path, folder: Path, limits: Limits) -> Iterator[None]:
    """Writes an archive's files below a folder, one by one."""
    with _members(archive, limits) as (members, allowed):
        left = allowed
        for number, member in enumerate(members):
            if number >= limits.files:
                raise InputError(f"{archive}: more than {limits.files} entries; this is no archive of games")
            if member.open is None:  # folders come with their files
                if member.name.strip("./"):
                    _place(archive, folder, member.name)
                continue
            with member.open() as source, _new(archive, folder, member.name) as sink:
                while chunk := source.read(min(CHUNK, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        raise _too_large(archive, allowed)
                    sink.write(chunk)
            yield


def _too_large(archive: Path, allowed: int) -> InputError:
    return InputError(f"{archive}: unpacks to more than {allowed:,} bytes; this is no data of ours")


def _place(archive: Path, folder: Path, name: str) -> Path:
    try:
        return inside(folder, name)
    except InputError as error:
        raise InputError(f"{archive}: refused: {error}") from None


def _new(archive: Path, folder: Path, name: str) -> IO[bytes]:
    path = _place(archive, folder, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{archive}: the name {name!r} comes twice") from None


@contextmanager
def _members(archive: Path, limits: Limits) -> Iterator[tuple[Iterator[_Member], int]]:
    """An archive's members, whatever its kind, and the bytes that may come out; its own errors in one line."""
    with open_regular(archive, "zip or tar archive") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        allowed = min(limits.size, max(LEAST_UNPACKED, int(limits.ratio * size)))
        try:
            is_zip = zipfile.is_zipfile(file)
            file.seek(0)
            if is_zip:
                yield _zip_members(archive, file, limits), allowed
            else:
                yield _tar_members(archive, file, allowed), allowed
        except InputError:
            raise
        except BROKEN as error:
            raise InputError(f"{archive} is broken: {one_line(error, 200)}; fetch it again") from None
        except OSError as error:
            raise CannotWrite(f"cannot unpack {archive}: {one_line(error, 200)}") from None


class _Directory(io.BufferedReader):
    """A zip file whose directory is looked at before `zipfile` makes objects of its entries."""

    def __init__(self, archive: Path, file: IO[bytes], limits: Limits) -> None:
        super().__init__(cast("io.RawIOBase", file))
        self._archive, self._files = archive, limits.files

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > max(CHUNK, DIRECTORY_BYTES * self._files):
            raise InputError(f"{self._archive}: its directory has {size:,} bytes; this is no archive of games")
        data = super().read(size)
        if data[:4] == b"PK\x01\x02" and data.count(b"PK\x01\x02") > self._files:
            raise InputError(f"{self._archive}: more than {self._files} entries; this is no archive of games")
        return data


def _zip_members(archive: Path, file: IO[bytes], limits: Limits) -> Iterator[_Member]:
    with zipfile.ZipFile(_Directory(archive, file, limits)) as packed:
        for info in packed.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise InputError(f"{archive}: refused: {info.filename!r} is a link or a device")
            if info.flag_bits & 1:
                raise InputError(f"{archive}: refused: {info.filename!r} is encrypted")
            # other methods unpack as much as they like at a time, or ask for gigabytes of memory
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise InputError(f"{archive}: refused: {info.filename!r} is not deflated but compressed otherwise")
            opener = None if info.is_dir() else lambda info=info: packed.open(info)
            yield _Member(info.filename, opener)


def _tar_members(archive: Path, file: IO[bytes], allowed: int) -> Iterator[_Member]:
    stream = _Stream(archive, _decompressed(file), allowed)
    try:
        packed = tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:")  # noqa: SIM115 (it owns nothing)
    except tarfile.ReadError:
        raise InputError(f"{archive} is neither a zip nor a tar archive, or is cut off; fetch it again") from None
    info = packed.next()
    while info is not None:
        if not (info.isreg() or info.isdir()) or info.issparse():
            raise InputError(f"{archive}: refused: {info.name!r} is a link or a device")
        place, size = info.offset_data, info.size
        if size < 0:
            raise tarfile.ReadError("a file of negative size")
        opener = None if info.isdir() else lambda place=place, size=size: stream.content(place, size)
        yield _Member(info.name, opener)
        # `packed` would keep every header that it has read
        packed.members.clear()  # type: ignore[attr-defined]
        packed.pax_headers = {}
        stream.header_left = LONGEST_HEADER
        info = packed.next()
    # `next` takes a damaged header for the end
    if stream.last.strip(b"\0"):
        raise tarfile.ReadError("a damaged header")


class _Stream(io.RawIOBase):
    """The bytes of a tar archive, read once from front to back; raises before more is read than is allowed.

    Args:
        archive: The archive, for errors.
        source: Its bytes, decompressed.
        allowed: The most bytes that may come out.

    Attributes:
        header_left: Bytes that may be read until it is set anew, content aside: the size of one member's header.
        last: What was read last of a header.
    """

    def __init__(self, archive: Path, source: IO[bytes], allowed: int) -> None:
        self.header_left = LONGEST_HEADER
        self._archive, self._source = archive, source
        self._allowed, self._at = allowed, 0
        self.last = b""

    def read(self, size: int | None = -1) -> bytes:
        """Bytes of a header."""
        wanted = self._allowed if size is None or size < 0 else size
        if wanted > self.header_left:
            raise InputError(f"{self._archive}: a header of more than {LONGEST_HEADER:,} bytes; no archive of games")
        self.header_left -= wanted
        self.last = self._take(wanted)
        return self.last

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > self._allowed + tarfile.RECORDSIZE:
            raise _too_large(self._archive, self._allowed)
        data = self._source.read(size)
        self._at += len(data)
        return data

    def tell(self) -> int:
        return self._at

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or place < self._at:
            raise tarfile.ReadError("its headers lead backwards")
        while self._at < place and self._take(min(CHUNK, place - self._at)):
            pass
        return self._at

    def content(self, place: int, size: int) -> IO[bytes]:
        """The content of a member."""
        self.seek(place)
        return cast("IO[bytes]", _Content(self._take, size))


class _Content(io.RawIOBase):
    def __init__(self, take: Callable[[int], bytes], size: int) -> None:
        self._take, self._left = take, size

    def read(self, size: int = -1) -> bytes:
        data = self._take(min(size, self._left))
        if not data and self._left:
            raise EOFError("the archive is cut off")
        self._left -= len(data)
        return data


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    """The bytes of a file, decompressed by what it begins with."""
    head = file.read(6)
    file.seek(0)
    if head[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    if head[:3] == b"BZh":
        return bz2.BZ2File(file)
    if head == b"\xfd7zXZ\0":
        return cast("IO[bytes]", io.BufferedReader(_Xz(file)))
    return file


class _Xz(io.RawIOBase):
    """Decompresses xz within a limit of memory, which `lzma.LZMAFile` cannot."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = _xz_stream()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        into = memoryview(buffer).cast("B")
        while True:
            packed = self._packed()
            if packed is None:
                return 0
            data = self._stream.decompress(packed, len(into))
            if data:
                into[: len(data)] = data
                return len(data)

    def _packed(self) -> bytes | None:
        """What the decompressor gets next; None at the end. A file may hold several streams, padded with zeros."""
        if not self._stream.eof:
            packed = self._file.read(CHUNK) if self._stream.needs_input else b""
            if not packed and self._stream.needs_input:
                raise EOFError("the archive is cut off")
            return packed
        rest = self._stream.unused_data.lstrip(b"\0")
        while not rest:
            piece = self._file.read(CHUNK)
            if not piece:
                return None
            rest = piece.lstrip(b"\0")
        self._stream = _xz_stream()
        return rest


def _xz_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
