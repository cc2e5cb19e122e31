"""Extraction of zip and tar archives that may be damaged or malicious, with limits on their files and bytes."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, Final, cast

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import open_regular, path_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST_FILES: Final = 100_000
"""The maximum number of files and folders in an archive."""
LARGEST: Final = 16 << 30
"""The maximum total size in bytes after extraction."""
LONGEST_HEADER: Final = 1 << 14
"""The maximum size in bytes of a tar archive's header of a long name, or of further fields of its files."""
_HEADERS: Final = (*(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
                   *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK))  # fmt: skip
_BROKEN: Final = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
"""The exceptions that the standard library raises for truncated or damaged archives."""


def unpack(archive: Path, folder: Path, progress: Callable[[int], object] | None = None) -> int:
    """Extract an archive into a folder.

    Extraction is not atomic. For an atomic result, extract into a folder of `hgpo_envs.files.atomic.new_folder`.

    Args:
        archive: A zip or tar file (plain, gz, bz2, xz) of regular files and folders.
        folder: An existing folder.
        progress: Called after each file with the number of files so far.

    Returns:
        The number of files.

    Raises:
        InputError: If the archive is damaged, malicious or too large. Files that were already extracted stay there.
        OSError: If the disk is full or the folder cannot be written.
    """
    count = size = 0
    with open_regular(archive, "zip or tar archive") as file:
        try:
            for name, declared, content in _files_in(file):  # no more than the declared bytes can be read
                count, size = count + 1, size + declared
                if size > LARGEST:
                    raise InputError(f"expected at most {LARGEST:,} bytes")  # noqa: TRY301
                path = path_inside(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with content, path.open("xb") as sink:
                    shutil.copyfileobj(content, sink)
                if progress is not None:
                    progress(count)
        except InputError as error:
            raise InputError(f"{archive}: refused: {error}") from None
        except (*_BROKEN, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # a decompressor's errors have none
                raise
            raise InputError(f"{archive} is damaged: {one_line(error, 200)}; fetch it again") from None
    return count


class _Member(tarfile.TarInfo):
    """A member of a tar archive whose headers are limited before `tarfile` reads each of them in one piece."""

    def _proc_member(self, archive: Any) -> Any:  # noqa: ANN401 (the method that `tarfile` leaves to subclasses)
        fields = sum(map(len, archive.pax_headers))  # of all files, which later headers add to
        if self.type in _HEADERS and max(self.size, fields) > LONGEST_HEADER:
            raise InputError(f"expected headers of at most {LONGEST_HEADER:,} bytes, received one of {self.size:,}")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise InputError(f"{self.name!r} is a sparse file")
        return super()._proc_member(archive)  # type: ignore[misc]  # typeshed does not have it

    def _proc_gnusparse_10(self, *_: object) -> None:  # whose map has no limit
        raise InputError(f"{self.name!r} is a sparse file")


def _files_in(file: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, size and content of every file. Each must be read before the next is requested."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as packed:
            for number, info in enumerate(packed.infolist()):
                _check_number(number)
                if not info.is_dir():
                    yield info.filename, info.file_size, packed.open(info)
        return
    file.seek(0)
    try:
        archive = tarfile.open(fileobj=file, mode="r:*", tarinfo=_Member)  # noqa: SIM115 (closed below)
    except tarfile.ReadError:
        raise InputError("expected a zip or tar archive, received another format or a truncated file") from None
    with archive as packed:
        for number, member in enumerate(packed):
            _check_number(number)
            if not member.isreg() and not member.isdir():
                raise InputError(f"{member.name!r} is a link or a device")
            if (content := packed.extractfile(member)) is not None:
                yield member.name, member.size, content
            packed.members = []  # type: ignore[attr-defined]  # it keeps the fields of all files
        file = cast("IO[bytes]", packed.fileobj)
        file.seek(packed.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile takes a damaged header for the end
            raise EOFError("it has no end")


def _check_number(number: int) -> None:
    if number >= MOST_FILES:
        raise InputError(f"expected at most {MOST_FILES:,} files and folders")
