"""Where a download waits until it is complete, so that the next call of the same command can resume it.

Beside the target lies a folder that belongs to this program alone:

    .hgpo-downloads/
      <16 hexadecimal digits>/    one download, named after the SHA-256 of its address
        .lock                     held by the process that downloads (`hgpo_envs.atomic.FolderLock`)
        note.json                 the address, and what identifies the remote file
        data                      the bytes so far

A download that is finished, or turns out to be the wrong file, is removed, and with the last one the folder. A user's
files are never there, and nothing outside it is ever removed.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from hgpo_envs.atomic import LOCK, FolderLock, remove_abandoned, scratch_folders, write_file
from hgpo_envs.errors import InputError
from hgpo_envs.untrusted_files import parse_json, read_bytes

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

FOLDER: Final = ".hgpo-downloads"
_DATA: Final = "data"
_NOTE: Final = "note.json"
_LONGEST_NOTE: Final = 1 << 16
_TRIES: Final = 20


def forget(beside: Path, url: str) -> None:
    """Removes the download of an address that is no longer needed, if there is one and nobody is downloading it."""
    if _place(beside, url).parent.is_dir():
        with suppress(InputError, OSError), Partial(beside, url) as part:
            part.remove()


def _place(beside: Path, url: str) -> Path:
    return beside / FOLDER / hashlib.sha256(url.encode("utf-8", "replace")).hexdigest()[:16]


class Partial:
    """The bytes of one download so far, locked against other processes.

    Args:
        beside: The folder in which the target will be; it is made if it does not exist.
        url: The address, which identifies the download.

    Raises:
        InputError: Another process is downloading the same file there, or something else has its place.
        OSError: The folder cannot be written.
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
        raise InputError(f"cannot lock {self.folder}: it disappears again and again")

    def _check(self) -> None:
        """Refuses a folder that holds anything but a download."""
        found = {path.name for path in self.folder.iterdir()} - {path.name for path in scratch_folders(self.folder)}
        if any(path.is_symlink() for path in (self.folder.parent, self.folder, self.path)) or found - {
            LOCK,
            _DATA,
            _NOTE,
        }:
            raise InputError(f"{self.folder} holds something other than a download; remove it, or choose another name")

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self.path.stat().st_size

    @property
    def note(self) -> dict[str, Any]:
        """What was saved with the bytes; empty if there is none, or it is damaged."""
        try:
            note = parse_json(read_bytes(self.folder / _NOTE, _LONGEST_NOTE))
        except InputError:
            return {}
        return note if isinstance(note, dict) else {}

    def save(self, **note: object) -> None:
        """Replaces the note."""
        write_file(self.folder / _NOTE, orjson.dumps(note))

    def clear(self) -> None:
        """Forgets the bytes so far."""
        (self.folder / _NOTE).unlink(missing_ok=True)
        self.path.write_bytes(b"")

    def remove(self) -> None:
        """Removes the download, and the folder of downloads if it was the last."""
        for name in (_NOTE, _DATA):
            (self.folder / name).unlink(missing_ok=True)
        self.close()  # Windows removes no open file
        try:
            (self.folder / LOCK).unlink()
            self.folder.rmdir()
            self.folder.parent.rmdir()
        except OSError:  # another process has already begun the next download there
            return

    def close(self) -> None:
        """Lets other processes have it; the bytes stay."""
        self._lock.release()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed and not self.size:
            self.remove()
        self.close()
