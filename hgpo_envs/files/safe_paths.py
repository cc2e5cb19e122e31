"""Conversion of untrusted names to paths.

Archives, packs, catalogues and task ids contain names from untrusted data. `path_inside` joins such a name to a folder
if the result is inside the folder on every operating system. A name that is invalid on one system is rejected on all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_PART: Final = 255
"""The maximum UTF-8 length in bytes of one part of a name, as in common file systems."""

LONGEST_NAME: Final = 1024
"""The maximum UTF-8 length in bytes of a name."""

_FORBIDDEN: Final = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\\ud800-\udfff]')
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE)


def path_inside(folder: Path, name: object) -> Path:
    r"""Return the path of an untrusted name inside a folder.

    Args:
        folder: The folder.
        name: Parts joined by `/`. Empty parts and the part `.` are ignored, as in file systems.

    Raises:
        InputError: If the name is absolute, leads out of the folder, or is not a valid file name on every system:
            control characters, `\` and `: < > " | ? *`, Windows' device names, a dot or space at the end of a part, a
            part of more than 255 bytes. The message does not state where the name comes from.

    >>> from pathlib import PurePosixPath
    >>> path_inside(PurePosixPath("games"), "train/mug/./trial_1")
    PurePosixPath('games/train/mug/trial_1')
    >>> path_inside(PurePosixPath("games"), "train/../../secret")
    Traceback (most recent call last):
    ...
    hgpo_envs.errors.InputError: the name 'train/../../secret' leads out of the folder, or is not a portable file name
    """
    if isinstance(name, str):
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if parts and name[0] != "/" and all(map(_portable, parts)) and len(name.encode()) <= LONGEST_NAME:
            return folder.joinpath(*parts)
    shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:80]}…"
    raise InputError(f"the name {shown} leads out of the folder, or is not a portable file name")


def _portable(part: str) -> bool:
    """Return whether a part of a name is a valid file name on every system."""
    return not (
        _FORBIDDEN.search(part)
        or part.endswith((".", " "))
        or _RESERVED.fullmatch(part)
        or len(part.encode()) > LONGEST_PART
    )
