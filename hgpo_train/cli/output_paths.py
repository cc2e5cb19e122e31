"""Checks of `--out` before a command begins, so that hours of work do not end at a path that cannot be written."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def check_output_path(out: Path) -> None:
    """Check that a path can be created or written: its nearest existing parent is a folder with write permission.

    Nothing is created. Whether an existing `out` is of the right kind is for the command to decide.

    Raises:
        InputError: A parent is a file or not writable, or the path is not a valid one.
    """
    from hgpo_envs.errors import InputError

    try:
        place = out.absolute()
        while not _exists(place):
            place = place.parent
        if place != out.absolute() and not place.is_dir():
            raise InputError(f"--out {out}: expected a path in a folder, but {place} is a file; choose another path")
        if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
            refused = os.strerror(errno.EROFS) if _is_read_only(place) else "no permission to write"
            raise InputError(f"--out {out}: {refused} in {place}; choose another path")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"--out {str(out)[:100]!r}: {reason}; choose another path") from None


def _is_read_only(folder: Path) -> bool:
    """Return whether the folder's file system is mounted read-only; False where the system cannot tell (Windows)."""
    return hasattr(os, "statvfs") and bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _exists(path: Path) -> bool:
    """Return whether there is something at a path. Raises OSError for a name that is too long, unlike `os.path`."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_folder(option: str, path: Path) -> None:
    """Check that a path is a folder or can become one. `check_output_path` has checked its parents.

    Raises:
        InputError: The path is a file.
    """
    from hgpo_envs.errors import InputError

    if path.exists() and not path.is_dir():
        raise InputError(f"{option} {path}: expected a folder, received a file; use another path")


def url_of(path: Path) -> str | None:
    """Return the URL that a path was, which has lost one of its slashes; None for a local path."""
    schemes = ("http:", "https:", "s3:", "gs:", "az:", "abfs:", "abfss:", "hf:")
    is_url = path.parts and path.parts[0] in schemes
    return path.as_posix().replace(":/", "://", 1) if is_url else None
