"""Folders that a program of an agent has filled. Used in both interpreters."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def has_more_files(folder: Path, most: int) -> bool:
    """Return whether a folder has more files and folders in it than `most`, or some that cannot be listed."""
    waiting = [str(folder)]
    for top in waiting:
        try:
            with os.scandir(top) as entries:
                for entry in entries:
                    most -= 1
                    if most < 0:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:  # it was removed meanwhile
            continue
        except OSError:
            return True
    return False


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, however deep it is. What cannot be removed is left; nothing is raised.

    Folders within folders are moved to the top, so that neither recursion, the length of a path nor open files limit
    the depth. Links are not followed.
    """
    name = str(folder / secrets.token_hex(8))
    numbers = count()
    waiting = [str(folder)]
    while waiting:
        top = waiting.pop()
        with suppress(OSError):
            os.chmod(top, 0o700)  # noqa: PTH101 - it may have been made without permissions
            with os.scandir(top) as entries:
                for entry in entries:
                    with suppress(OSError):
                        if not entry.is_dir(follow_symlinks=False):
                            os.unlink(entry.path)  # noqa: PTH108 - there may be millions
                            continue
                        path = entry.path
                        if top != str(folder):
                            os.chmod(path, 0o700)  # noqa: PTH101
                            path = f"{name}{next(numbers)}"
                            os.rename(entry.path, path)  # noqa: PTH104
                        waiting.append(path)
        if top != str(folder):
            with suppress(OSError):
                os.rmdir(top)  # noqa: PTH106
    with suppress(OSError):
        folder.rmdir()
