"""The official raw files: where they come from, and getting them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError
from hgpo_envs.fetch import download

if TYPE_CHECKING:
    from collections.abc import Callable
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


def fetch(
    size: str,
    out: Path,
    *,
    local: Path | None = None,
    sources: tuple[str, ...] = (DRIVE, MIRROR),
    tries: int = 8,
    progress: Callable[[str], Progress] | None = None,
) -> list[Path]:
    """Gets the official files; what is there already stays, and what was interrupted goes on.

    Args:
        size: `small` or `full`.
        out: The folder to put them into.
        local: A folder that has them: they are copied from there, and nothing is downloaded.
        sources: URLs to which a Google Drive identifier (where they end in `id=`) or a file's name is added, in order.
        tries: Tries of each source without a byte gained.
        progress: Gives what is told of a file's progress, by its name.

    Returns:
        Their paths: items, attributes, human instructions.

    Raises:
        InputError: A file is not in the folder, no source has it, or what came is not the file.
    """
    if size not in FILES:
        raise InputError(f"size must be small or full, not {size!r}")
    paths = []
    for file in FILES[size]:
        path = out / file.name
        if not path.exists() and local is not None:
            _copy(local / file.name, path)
        elif not path.exists():
            _download(file, path, sources, tries, progress(file.name) if progress else None)
        _check(file, path)
        paths.append(path)
    return paths


def _copy(source: Path, path: Path) -> None:
    if not source.is_file():
        raise InputError(f"no {source.name} in {source.parent}; --from names the folder that holds the official files")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        shutil.copyfile(source, part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot copy {source} to {path}: {error.strerror}") from None


def _download(file: OfficialFile, path: Path, sources: tuple[str, ...], tries: int, progress: Progress | None) -> None:
    refusals = []
    for source in sources:
        url = source + (file.drive if source.endswith("id=") else file.name)
        try:
            download(url, path, tries=tries, progress=progress)
            _check(file, path)
        except InputError as error:
            refusals.append(str(error))
        else:
            return
    raise InputError(
        f"no source has {file.name} just now; download it by hand (https://drive.google.com/uc?id={file.drive}) "
        f"and use --from FOLDER. What they said: {'; '.join(refusals)}"
    )


def _check(file: OfficialFile, path: Path) -> None:
    """Whether a file begins and ends as JSON of its kind; one that does not is put aside."""
    with path.open("rb") as opened:
        first = opened.read(64).lstrip()[:1]
        opened.seek(max(0, path.stat().st_size - 64))
        last = opened.read().rstrip()[-1:]
    if (first, last) != (file.begins, {b"[": b"]", b"{": b"}"}[file.begins]):
        aside = path.with_name(path.name + ".refused")
        path.replace(aside)
        raise InputError(f"{path.name} is not the official file (a page, or cut short?); it was put aside as {aside}")
