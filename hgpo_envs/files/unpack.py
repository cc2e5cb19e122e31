"""Extraction of zip archives that may be damaged or malicious, with limits on their files and bytes."""

from __future__ import annotations

import errno
import io
import shutil
import stat
import unicodedata
import zipfile
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import open_regular, path_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MOST_FILES: Final = 100_000
"""The maximum number of files and folders in an archive."""
LARGEST: Final = 16 << 30
"""The maximum total size in bytes after extraction."""
LARGEST_LIST: Final = 16 << 20
"""The maximum size in bytes of an archive's list of files, which is read in one piece."""
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compressions that are read: the others can take gigabytes of memory."""
_ENCRYPTED: Final = 1
"""The flag of an encrypted file."""
BROKEN: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    ValueError,
)
"""The exceptions that the standard library raises for truncated or damaged archives."""


def unpack(
    archive: Path, folder: Path, progress: Callable[[int], object] | None = None
) -> int:
    """Extract an archive into a folder.

    Extraction is not atomic. For an atomic result, extract into a folder of `hgpo_envs.files.atomic.new_folder`.

    Args:
        archive: A zip file of regular files and folders, stored or deflated.
        folder: An existing folder.
        progress: Called after each file with the number of files so far.

    Returns:
        The number of files.

    Raises:
        InputError: If the archive is damaged, malicious or too large. Files that were already extracted stay there.
        OSError: If the disk is full or the folder cannot be written.
    """
    with open_regular(archive, "zip archive") as file:
        try:
            with open_zip(file) as packed:
                files = _files(packed.infolist(), folder)
                for count, (info, path) in enumerate(files, 1):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    # no more than the declared size can be read
                    with packed.open(info) as content, path.open("xb") as sink:
                        shutil.copyfileobj(content, sink)
                    if progress is not None:
                        progress(count)
        except InputError as error:
            raise InputError(f"{archive}: refused: {error}") from None
        except (*BROKEN, OSError) as error:
            # of reading a position that does not exist; others are of the disk
            if isinstance(error, OSError) and error.errno not in {None, errno.EINVAL}:
                raise
            raise InputError(
                f"{archive} is damaged: {one_line(error, 200)}; fetch it again"
            ) from None
    return len(files)


def open_zip(file: io.BufferedIOBase) -> zipfile.ZipFile:
    """Open a zip archive, whose list of members is checked before any of them is read.

    Names are not checked: see `hgpo_envs.files.untrusted_files.path_inside`.

    Raises:
        InputError: If it is no zip archive, or has too many members, more bytes than `LARGEST`, members that overlap
            in the file, links, devices, encrypted members, or unusual compressions.
        zipfile.BadZipFile: If it is damaged, or another exception of `BROKEN`.
    """
    reader = ListReader(file)
    if not zipfile.is_zipfile(reader):
        raise InputError(
            "expected a zip archive, received another format or a truncated file"
        )
    packed = zipfile.ZipFile(reader)
    members = packed.infolist()
    if len(members) > MOST_FILES:
        raise InputError(f"expected at most {MOST_FILES:,} files and folders")
    if sum(info.file_size for info in members) > LARGEST:
        raise InputError(f"expected at most {LARGEST:,} bytes")
    places = sorted((info.header_offset, info.compress_size) for info in members)
    if any(
        offset + size > following for (offset, size), (following, _) in pairwise(places)
    ):
        raise InputError("its files overlap")
    for info in members:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise InputError(
                f"{one_line(repr(info.filename), 80)} is a link or a device"
            )
        if info.flag_bits & _ENCRYPTED or info.compress_type not in _METHODS:
            raise InputError(
                f"{one_line(repr(info.filename), 80)} is encrypted, or compressed by an unusual method"
            )
    return packed


class ListReader(io.BufferedReader):
    """A file whose parts are limited, because `zipfile` reads the list of files in one piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes. Raises InputError if they are more than `LARGEST_LIST`."""
        whole = size is None or size < 0
        data = super().read(LARGEST_LIST + 1 if whole else min(size, LARGEST_LIST + 1))  # type: ignore[type-var]
        if len(data) > LARGEST_LIST:
            raise InputError(
                f"expected a list of files of at most {LARGEST_LIST:,} bytes, received a larger one"
            )
        return data


def _files(
    members: Sequence[zipfile.ZipInfo], folder: Path
) -> list[tuple[zipfile.ZipInfo, Path]]:
    """Return the files of an archive and their paths, all of which are checked before the first is extracted."""
    files = [
        (info, path_inside(folder, info.filename))
        for info in members
        if not info.is_dir()
    ]
    names = [_folded(path) for _, path in files]
    folders = {_folded(parent) for _, path in files for parent in path.parents}
    if len({*names}) < len(names) or not folders.isdisjoint(names):
        raise InputError(
            "two of its files have the same name, or names that some systems take for the same"
        )
    return files


def _folded(path: Path) -> str:
    """Return a path as systems compare it that ignore case and forms of Unicode."""
    return unicodedata.normalize("NFC", str(path).casefold())
