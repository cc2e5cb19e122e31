"""Extraction of zip and tar archives that may be damaged or malicious, with limits on their files and bytes."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Final, cast

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import open_regular, path_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST_FILES: Final = 100_000
"""The maximum number of files in an archive."""
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
    count = size = 0
    with open_regular(archive, "zip or tar archive") as file:
        try:
            for name, declared, content in _files_in(file):  # no more than the declared bytes can be read
                count, size = count + 1, size + declared
                if count > MOST_FILES or size > LARGEST:
                    raise InputError(f"expected at most {MOST_FILES:,} files and {LARGEST:,} bytes")  # noqa: TRY301
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


def _files_in(file: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, size and content of every file. Each must be read before the next is requested."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    yield info.filename, info.file_size, packed.open(info)
        return
    file.seek(0)
    try:
        archive = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115 (closed below)
    except tarfile.ReadError:
        raise InputError("expected a zip or tar archive, received another format or a truncated file") from None
    with archive as packed:
        for member in packed:
            if not member.isreg() and not member.isdir():
                raise InputError(f"{member.name!r} is a link or a device")
            if (content := packed.extractfile(member)) is not None:
                yield member.name, member.size, content
        file = cast("IO[bytes]", packed.fileobj)
        file.seek(packed.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile takes a damaged header for the end
            raise EOFError("it has no end")
