"""Extraction of zip and tar archives that may be damaged or malicious, with limits on their files and bytes."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Final, cast

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.safe_paths import path_inside
from hgpo_envs.files.untrusted_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST_FILES: Final = 100_000
"""The maximum number of files and folders in an archive."""
LARGEST: Final = 16 << 30
"""The maximum total size in bytes after extraction."""
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
    count = 0
    with open_regular(archive, "zip or tar archive") as file:
        try:
            for name, content in _members(file, LARGEST):
                if content is None:  # a folder is created with its first file
                    continue
                path = path_inside(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with content, path.open("xb") as sink:
                    shutil.copyfileobj(content, sink)
                count += 1
                if progress is not None:
                    progress(count)
        except InputError as error:
            raise InputError(f"{archive}: refused: {error}") from None
        except (*_BROKEN, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # a decompressor's errors have none
                raise
            raise InputError(f"{archive} is damaged: {one_line(error, 200)}; fetch it again") from None
    return count


def _members(file: IO[bytes], limit: int) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Return name and content of every member; a folder has no content. Each must be read before the next is requested.

    No more than a member's declared size can be read, so the declared sizes count towards the limit.
    """
    members = _zip_members(file) if zipfile.is_zipfile(file) else _tar_members(file)
    file.seek(0)
    for number, (name, size, content) in enumerate(members, 1):
        limit -= size
        if limit < 0 or number > MOST_FILES:
            raise InputError("expected an archive of games, received one with too many files or bytes")
        yield name, content


def _zip_members(file: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    with zipfile.ZipFile(file) as packed:
        for info in packed.infolist():
            yield info.filename, info.file_size, None if info.is_dir() else packed.open(info)


def _tar_members(file: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    try:
        archive = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115 (closed below)
    except tarfile.ReadError:
        raise InputError("expected a zip or tar archive, received another format or a truncated file") from None
    with archive as packed:
        for member in packed:
            if not member.isreg() and not member.isdir():
                raise InputError(f"{member.name!r} is a link or a device")
            yield member.name, member.size, packed.extractfile(member)
        file = cast("IO[bytes]", packed.fileobj)
        file.seek(packed.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile takes a damaged header for the end
            raise EOFError("it has no end")
