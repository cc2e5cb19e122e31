"""Download of the official raw files."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import making_folder, new_path
from hgpo_envs.files.download import NoConnection, download
from hgpo_envs.files.untrusted_files import open_regular, writing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hgpo_envs.files.download import Progress

DRIVE: Final = (
    "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
)
"""Google Drive, as in the original's setup.sh. `confirm` skips its page about files that are too large to scan."""

MIRROR: Final = "https://huggingface.co/datasets/YWZBrandon/webshop-data/resolve/main/"
"""A copy on Hugging Face, used if Google Drive refuses the download because its quota is exceeded."""

SOURCES: Final = (DRIVE, MIRROR)
"""In this order. A file's identifier is appended to those that end in `id=`, and its name to others."""


@dataclass(frozen=True, slots=True)
class OfficialFile:
    """One raw file.

    Attributes:
        name: The name in the original's `data` folder.
        drive: The identifier on Google Drive.
        begins: The first byte. It detects the web pages that Google Drive sometimes sends instead of the file.
    """

    name: str
    drive: str
    begins: bytes


_HUMAN: Final = OfficialFile(
    "items_human_ins.json", "14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O", b"{"
)

FILES: Final[dict[str, tuple[OfficialFile, ...]]] = {
    "small": (
        OfficialFile(
            "items_shuffle_1000.json", "1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib", b"["
        ),
        OfficialFile(
            "items_ins_v2_1000.json", "1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu", b"{"
        ),
        _HUMAN,
    ),
    "full": (
        OfficialFile("items_shuffle.json", "1A2whVgOO0euk5O13n2iYDM0bQRkkRduB", b"["),
        OfficialFile("items_ins_v2.json", "1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi", b"{"),
        _HUMAN,
    ),
}
"""Items, attributes, human instructions. `small` is the original's 1,000 products, `full` its 1.18 million."""


def fetch_release(
    size: str,
    out: Path,
    *,
    local: Path | None = None,
    progress: Callable[[str], Progress] | None = None,
) -> list[Path]:
    """Download the official files. Existing files are kept.

    Args:
        size: `small` or `full`.
        out: The folder for the files.
        local: A folder that contains the files. They are copied from there, and nothing is downloaded.
        progress: Returns the progress callback for a file's name.

    Returns:
        The paths of the items, attributes and human instructions.

    Raises:
        InputError: If a file is missing in `local`, no source provides it, or it is not the official file.
    """
    if size not in FILES:
        raise InputError(f"size: expected 'small' or 'full', received {size!r}")
    if local is not None:
        _check_local(size, local, out)
    for file in FILES[size]:
        path = out / file.name
        if os.path.lexists(path):
            _check(file, path, path)
            continue
        with writing(path), making_folder(out.absolute()), new_path(path) as content:
            if local is not None:
                _copy(file, local / file.name, content)
            else:
                _download(file, content, progress(file.name) if progress else None)
    return [out / file.name for file in FILES[size]]


def _check_local(size: str, local: Path, out: Path) -> None:
    """Raise InputError unless a folder has the files that are not in `out`."""
    if not local.is_dir():
        raise InputError(
            f"--from {local}: there is no such folder; expected that of the official files"
        )
    wanted = [file.name for file in FILES[size] if not (out / file.name).exists()]
    missing = [name for name in wanted if not (local / name).exists()]
    if not missing:
        return
    others = [
        name
        for name, files in FILES.items()
        if name != size and (local / files[0].name).exists()
    ]
    hint = f"; it has those of --size {others[0]}" if others else ""
    raise InputError(
        f"--from {local}: no {missing[0]} in this folder of official files{hint}"
    )


def _copy(file: OfficialFile, source: Path, path: Path) -> None:
    _check(file, source, source)
    with open_regular(source) as opened, path.open("wb") as copy:
        shutil.copyfileobj(opened, copy)


def _download(file: OfficialFile, path: Path, progress: Progress | None) -> None:
    """Download a file from the first source that has it."""
    refusals: list[InputError] = []
    for source in SOURCES:
        url = source + (file.drive if source.endswith("id=") else file.name)
        try:
            download(url, path, progress)
            return _check(file, path, file.name)
        except InputError as error:
            refusals.append(error)
    reasons = "; ".join(map(str, refusals))
    drive = f"https://drive.google.com/uc?id={file.drive}"
    if all(isinstance(error, NoConnection) for error in refusals):
        raise NoConnection(
            f"{reasons}. Without a network, copy the official files ({drive} for {file.name}, …) from elsewhere and "
            "use --from FOLDER; the bundled catalogue needs no download"
        )
    raise InputError(
        f"no source provides {file.name}; download it manually ({drive}) and use --from FOLDER. Errors: {reasons}"
    )


def _check(file: OfficialFile, path: Path, name: object) -> None:
    """Raise InputError unless a file starts and ends like the official JSON file."""
    with open_regular(path, "file of WebShop's official data") as opened:
        first = opened.read(64).lstrip()[:1]
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - 64))
        last = opened.read(64).rstrip()[-1:]
    if (first, last) != (file.begins, {b"[": b"]", b"{": b"}"}[file.begins]):
        raise InputError(
            f"{name} is not the official file (a web page or truncated?); remove it and try again"
        )
