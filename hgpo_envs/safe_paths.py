"""Names that come from data become paths here and nowhere else.

Archives, packs, catalogues and task ids hold names that somebody else chose. `path_inside` joins such a name to a
folder, if the result is inside the folder on every system: a name that only one system can hold is refused on all of
them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_PART: Final = 255
"""Bytes of UTF-8 in one part of a name: what common file systems allow."""

LONGEST_NAME: Final = 1024
"""Bytes of UTF-8 in a whole name."""

_FORBIDDEN: Final = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\\ud800-\udfff]')
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE)


def path_inside(folder: Path, name: object) -> Path:
    r"""The path of a name from data, below a folder.

    Args:
        folder: The folder.
        name: Parts joined by `/`. Empty parts and parts of one dot are left out, as file systems do.

    Raises:
        InputError: The name is absolute, leads out of the folder, or cannot be a file's name on every system: control
            characters, `\` and `: < > " | ? *`, Windows' device names, a dot or space at the end of a part, a part of
            more than 255 bytes. The message does not say where the name comes from.

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
    """Whether a part of a name can be a file's name on every system."""
    return not (
        _FORBIDDEN.search(part)
        or part.endswith((".", " "))
        or _RESERVED.fullmatch(part)
        or len(part.encode()) > LONGEST_PART
    )
