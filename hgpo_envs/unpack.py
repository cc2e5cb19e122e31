"""Unpacks zip and tar archives from anywhere: all of it or nothing, and nothing outside the folder.

Refused: names that are absolute or lead upwards, links, devices, the same name twice, more files or bytes than an
archive of text games can hold, and a compression ratio that only a bomb has. Bytes are counted as they come out, not as
the archive announces them.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK: Final = 1 << 20
BROKEN: Final = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    EOFError,
    ArithmeticError,
    LookupError,
    RuntimeError,  # NotImplementedError: a compression that Python lacks
    ValueError,
    struct.error,
)
"""What an archive that is cut or damaged raises."""


class CannotWrite(InputError):  # noqa: N818 (named for what it says)
    """The archive may be good, but there is no room or no right to unpack it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an archive may hold.

    Attributes:
        files: Number of files and folders.
        size: Bytes of all files.
        ratio: Bytes of all files to bytes of the archive (looked at beyond 16 MiB).
    """

    files: int = 100_000
    size: int = 16 << 30
    ratio: float = 200.0


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    open: Callable[[], IO[bytes]] | None
    """None for a folder."""


def require_free(folder: Path) -> None:
    """Raises InputError unless a folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; name a new folder with --out, or remove it first")


def unpack(
    archives: list[Path],
    folder: Path,
    *,
    limits: Limits = Limits(),
    progress: Callable[[int], None] | None = None,
) -> int:
    """Unpacks archives into a new folder. It appears when everything is in it, or not at all.

    Args:
        archives: Zip or tar (plain, gz, bz2, xz); two must not hold the same file.
        folder: Must not exist, or be empty.
        limits: Of each archive.
        progress: Is told the number of files unpacked so far.

    Returns:
        The number of files.

    Raises:
        InputError: The folder is taken, or an archive is broken or hostile.
    """
    require_free(folder)
    for archive in archives:
        if not archive.is_file():
            raise InputError(f"no archive at {archive}; fetch it first, or name where it is")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".unpacking", dir=folder.parent))
    try:
        count = 0
        for archive in archives:
            for _ in _extract(archive, staging, limits):
                count += 1
                if progress is not None:
                    progress(count)
        staging.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return count


def _extract(archive: Path, folder: Path, limits: Limits) -> Iterator[Path]:
    """Writes an archive's files below a folder, one by one."""
    allowed = min(limits.size, max(16 << 20, int(limits.ratio * archive.stat().st_size)))
    left = allowed
    with _members(archive) as members:
        for number, member in enumerate(members):
            if number >= limits.files:
                raise InputError(f"{archive}: more than {limits.files} entries; this is no archive of games")
            path = folder / _safe(archive, member.name)
            if member.open is None:
                continue  # folders come with their files
            with member.open() as source, _new(archive, path, member.name) as sink:
                while chunk := source.read(min(CHUNK, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        raise InputError(f"{archive}: unpacks to more than {allowed:,} bytes; this is no data of ours")
                    sink.write(chunk)
            yield path


def _new(archive: Path, path: Path, name: str) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{archive}: the name {name!r} comes twice") from None


def _safe(archive: Path, name: str) -> PurePosixPath:
    """A member's path, if it stays inside."""
    path = PurePosixPath(name)
    odd = path.is_absolute() or ".." in path.parts
    if odd or "\\" in name or ":" in name or any(ord(sign) < 32 for sign in name):
        raise InputError(f"{archive}: refused: {name!r} leads out of the folder, or is no plain name")
    return path


def _kind(archive: Path) -> str:
    try:
        return "zip" if zipfile.is_zipfile(archive) else "tar" if tarfile.is_tarfile(archive) else ""
    except BROKEN:
        return ""


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    """An archive's members, whatever its kind; its own errors in one line."""
    kind = _kind(archive)
    if not kind:
        raise InputError(f"{archive} is neither a zip nor a tar archive, or is cut off; fetch it again")
    try:
        if kind == "zip":
            with zipfile.ZipFile(archive) as packed:
                yield _zip_members(archive, packed)
        else:
            with tarfile.open(archive) as packed_tar:
                yield _tar_members(archive, packed_tar)
    except InputError:
        raise
    except BROKEN as error:
        raise InputError(f"{archive} is broken: {_one_line(error)}; fetch it again") from None
    except OSError as error:
        raise CannotWrite(f"cannot unpack {archive}: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _zip_members(archive: Path, packed: zipfile.ZipFile) -> Iterator[_Member]:
    for info in packed.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise InputError(f"{archive}: refused: {info.filename!r} is a link or a device")
        if info.flag_bits & 1:
            raise InputError(f"{archive}: refused: {info.filename!r} is encrypted")
        yield _Member(info.filename, None if info.is_dir() else lambda info=info: packed.open(info))  # type: ignore[misc]


def _tar_members(archive: Path, packed: tarfile.TarFile) -> Iterator[_Member]:
    for info in packed:
        if not (info.isreg() or info.isdir()):
            raise InputError(f"{archive}: refused: {info.name!r} is a link or a device")
        yield _Member(info.name, None if info.isdir() else lambda info=info: _content(packed, info))  # type: ignore[misc]


def _content(packed: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    content = packed.extractfile(info)
    assert content is not None, "a regular file has content"
    return content
