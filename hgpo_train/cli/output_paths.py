"""Checks of `--out` before a command begins, so that hours of work do not end at a path that cannot be written."""

from __future__ import annotations

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

    for path in (out.absolute(), *out.absolute().parents):
        try:
            path.lstat()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:  # a parent is a file; a name is too long, or has a null character
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"--out {str(out)[:100]!r}: {reason}; choose another path") from None
        if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
            raise InputError(f"--out {out}: {path} is read-only or without permission to write; choose another path")
        return


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
