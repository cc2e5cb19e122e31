"""The official raw files: where they come from, and getting them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hgpo_envs.atomic import making_folder, new_file, sync_folder
from hgpo_envs.errors import InputError
from hgpo_envs.fetch import complete_download, open_partial
from hgpo_envs.partial_download import forget
from hgpo_envs.untrusted_files import open_regular, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hgpo_envs.fetch import Progress

DRIVE: Final = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
"""Google Drive as the original's setup.sh uses it; `confirm` passes its page about files too large to scan."""

MIRROR: Final = "https://huggingface.co/datasets/YWZBrandon/webshop-data/resolve/main/"
"""A copy on Hugging Face, tried where Google Drive refuses, as it does after too many downloads by others."""


@dataclass(frozen=True, slots=True)
class OfficialFile:
    """One raw file.

    Attributes:
        name: Its name in the original's `data` folder.
        drive: Its identifier on Google Drive.
        begins: Its first byte: a page in its place, as Google Drive likes to send, begins otherwise.
    """

    name: str
    drive: str
    begins: bytes


_HUMAN: Final = OfficialFile("items_human_ins.json", "14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O", b"{")

FILES: Final[dict[str, tuple[OfficialFile, ...]]] = {
    "small": (
        OfficialFile("items_shuffle_1000.json", "1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib", b"["),
        OfficialFile("items_ins_v2_1000.json", "1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu", b"{"),
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
    sources: tuple[str, ...] = (DRIVE, MIRROR),
    tries: int = 8,
    progress: Callable[[str], Progress] | None = None,
) -> list[Path]:
    """Gets the official files; files that exist already stay, and an interrupted download is resumed.

    Args:
        size: `small` or `full`.
        out: The folder to put them into.
        local: A folder that has them: they are copied from there, and nothing is downloaded.
        sources: URLs to which a Google Drive identifier (where they end in `id=`) or a file's name is added, in order.
        tries: Tries of each source without a byte gained.
        progress: Makes the progress callback of a file, by its name.

    Returns:
        Their paths: items, attributes, human instructions.

    Raises:
        InputError: A file is not in the folder, no source has it, or a download fails its checksum and is removed.
    """
    if size not in FILES:
        raise InputError(f"size must be small or full, not {size!r}")
    paths = []
    for file in FILES[size]:
        path = out / file.name
        if os.path.lexists(path):
            _check(file, path, path)
            for url in _urls(file, sources):  # an earlier call may have been killed before it removed its download
                forget(path.parent, url)
        elif local is not None:
            _copy(file, local / file.name, path)
        else:
            _download(file, path, sources, tries, progress(file.name) if progress else None)
        paths.append(path)
    return paths


def _copy(file: OfficialFile, source: Path, path: Path) -> None:
    if not source.exists():
        raise InputError(f"no {source.name} in {source.parent}; --from names the folder that holds the official files")
    _check(file, source, source)
    with writing(path), open_regular(source) as opened, making_folder(path.absolute().parent), new_file(path) as copy:
        shutil.copyfileobj(opened, copy)


def _download(file: OfficialFile, path: Path, sources: tuple[str, ...], tries: int, progress: Progress | None) -> None:
    with writing(path), making_folder(path.absolute().parent):
        refusals = []
        for url in _urls(file, sources):
            try:
                _download_from(url, file, path, tries, progress)
            except InputError as error:
                refusals.append(str(error))
            else:
                return
        raise _refused(file, refusals)


def _urls(file: OfficialFile, sources: Sequence[str]) -> list[str]:
    return [source + (file.drive if source.endswith("id=") else file.name) for source in sources]


def _download_from(url: str, file: OfficialFile, path: Path, tries: int, progress: Progress | None) -> None:
    with open_partial(path.parent, url) as part:
        complete_download(part, url, tries=tries, progress=progress)
        try:
            _check(file, part.path, path)
        except InputError:
            part.remove()
            raise
        with writing(path):
            part.path.replace(path)
            sync_folder(path.parent)
        part.remove()


def _refused(file: OfficialFile, refusals: Sequence[str]) -> InputError:
    return InputError(
        f"no source has {file.name} just now; download it by hand (https://drive.google.com/uc?id={file.drive}) "
        f"and use --from FOLDER. What they said: {'; '.join(refusals)}"
    )


def _check(file: OfficialFile, path: Path, named: Path) -> None:
    """Raises InputError unless a file begins and ends as JSON of its kind."""
    with open_regular(path, "file of WebShop's official data") as opened:
        first = opened.read(64).lstrip()[:1]
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - 64))
        last = opened.read(64).rstrip()[-1:]
    if (first, last) != (file.begins, {b"[": b"]", b"{": b"}"}[file.begins]):
        raise InputError(f"{named} is not the official file (a web page, or cut off?); remove it and try again")
