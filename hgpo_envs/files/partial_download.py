"""Storage of incomplete downloads, so that the same command can resume them.

The target's parent folder contains a folder that only this program uses:

    .hgpo-downloads/
      <16 hexadecimal digits>/    one download, named after the SHA-256 of its address
        .lock                     locked by the downloading process (`hgpo_envs.files.atomic.FolderLock`)
        note.json                 the address and the remote file's validator
        data                      the bytes so far

A download is removed when it is finished or turns out to be the wrong file. The folder is removed with the last
download. It contains no files of the user, and nothing outside it is removed.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import LOCK, FolderLock, remove_abandoned, scratch_folders, write_file
from hgpo_envs.files.untrusted_files import parse_json, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

FOLDER: Final = ".hgpo-downloads"
_DATA: Final = "data"
_NOTE: Final = "note.json"
_LONGEST_NOTE: Final = 1 << 16
_TRIES: Final = 20


def forget(beside: Path, url: str) -> None:
    """Remove the incomplete download of an address, if there is one and no process is downloading it."""
    if _place(beside, url).parent.is_dir():
        with suppress(InputError, OSError), Partial(beside, url) as part:
            part.remove()


def _place(beside: Path, url: str) -> Path:
    return beside / FOLDER / hashlib.sha256(url.encode("utf-8", "replace")).hexdigest()[:16]


class Partial:
    """An incomplete download, locked against other processes.

    Args:
        beside: The target's parent folder. It is created if it does not exist.
        url: The address, which identifies the download.

    Raises:
        InputError: If another process is downloading the same file there, or its path contains something else.
        OSError: If the folder cannot be written.
    """

    def __init__(self, beside: Path, url: str) -> None:
        self.folder: Final = _place(beside, url)
        self.path: Final = self.folder / _DATA
        self._closed = False
        self._lock = self._make()
        remove_abandoned(self.folder)
        if not self.path.exists():
            self.path.touch()

    def _make(self) -> FolderLock:
        for _ in range(_TRIES):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._check()
                return FolderLock(self.folder, "downloading")
            except FileNotFoundError:  # another process has just finished and removed the folder
                continue
        raise InputError(f"cannot lock {self.folder}: another process keeps removing it; try again")

    def _check(self) -> None:
        """Raise InputError if the folder contains anything except a download."""
        found = {path.name for path in self.folder.iterdir()} - {path.name for path in scratch_folders(self.folder)}
        if any(path.is_symlink() for path in (self.folder.parent, self.folder, self.path)) or found - {
            LOCK,
            _DATA,
            _NOTE,
        }:
            raise InputError(f"{self.folder} contains something other than a download; remove it or use another folder")

    @property
    def size(self) -> int:
        """The number of bytes downloaded so far."""
        return self.path.stat().st_size

    @property
    def note(self) -> dict[str, Any]:
        """The note saved with the bytes. Empty if it is missing or damaged."""
        try:
            note = parse_json(read_bytes(self.folder / _NOTE, _LONGEST_NOTE))
        except InputError:
            return {}
        return note if isinstance(note, dict) else {}

    def save(self, **note: object) -> None:
        """Replace the note."""
        write_file(self.folder / _NOTE, orjson.dumps(note))

    def clear(self) -> None:
        """Delete the bytes so far and the note."""
        (self.folder / _NOTE).unlink(missing_ok=True)
        self.path.write_bytes(b"")

    def remove(self) -> None:
        """Remove the download, and the folder of downloads if this was the last."""
        for name in (_NOTE, _DATA):
            (self.folder / name).unlink(missing_ok=True)
        self.close()  # Windows cannot remove an open file
        try:
            (self.folder / LOCK).unlink()
            self.folder.rmdir()
            self.folder.parent.rmdir()
        except OSError:  # another process has already started the next download there
            return

    def close(self) -> None:
        """Release the lock. The bytes stay."""
        self._lock.release()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._closed and not self.size:
            self.remove()
        self.close()
