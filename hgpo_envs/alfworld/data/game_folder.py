"""Reading and writing of official game folders: `<split>/<task folder>/<trial folder>/game.tw-pddl`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from hgpo_envs.alfworld.engine.game import LONGEST_FILE, read_file
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import SCRATCH, new_folder
from hgpo_envs.files.untrusted_files import (
    open_regular,
    parse_json,
    path_inside,
    read_bytes,
    writing,
)
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hgpo_envs.alfworld.data.source import ALFWorldSource

SPLITS: Final = ("train", "valid_seen", "valid_unseen")
"""The benchmark's splits. The split `all` contains the tasks of all of them."""
ROOT: Final = "json_2.1.1"
GAME_FILE: Final = "game.tw-pddl"
TRAJECTORY_FILE: Final = "traj_data.json"


class GameStore(Protocol):
    """A collection of game files.

    Attributes:
        ids: All task ids, sorted.
    """

    ids: Sequence[str]

    def read(self, task_id: str) -> dict[str, Any]:
        """Return the JSON object of a game file. Raises KeyError for an unknown id."""
        ...

    def trajectory(self, task_id: str) -> dict[str, Any] | None:
        """Return the JSON object of the `traj_data.json` beside it, or None if there is none."""
        ...


class FolderStore:
    """The playable games in a folder.

    As in the original, folders named after movable receptacles or sliced objects and games that are not marked solvable
    are skipped. Unlike in the original, `traj_data.json` is not required.

    Args:
        folder: `json_2.1.1`, a folder that contains it, one of its subfolders, or the folder of a single game.

    Attributes:
        ids: All task ids, sorted.

    Raises:
        InputError: If there is no playable game, a game file is truncated, or a game occurs twice.
    """

    def __init__(self, folder: Path) -> None:
        self._folders: dict[str, Path] = {}
        left_out = 0
        for place in _game_folders(folder):
            task_id = _task_id(place, alone=place == folder)
            if (
                task_id is None
                or "movable" in task_id
                or "Sliced" in task_id
                or not _solvable(place / GAME_FILE)
            ):
                left_out += 1
            elif task_id in self._folders:
                raise InputError(
                    f"{task_id} occurs twice: in {self._folders[task_id]} and in {place}"
                )
            else:
                self._folders[task_id] = place
        if not self._folders:
            found = counted(left_out, "other game") if left_out else "no game"
            raise InputError(
                f"no playable game in {folder}: expected {'|'.join(SPLITS)}/<task folder>/<trial folder>/{GAME_FILE} "
                f"marked solvable, received {found}"
            )
        self.ids: Sequence[str] = sorted(self._folders)

    def read(self, task_id: str) -> dict[str, Any]:
        """Return the JSON object of a game file. Raises KeyError for an unknown id."""
        return read_file(self._folders[task_id] / GAME_FILE)

    def trajectory(self, task_id: str) -> dict[str, Any] | None:
        """Return the JSON object of the `traj_data.json` beside it; None where there is none."""
        path = self._folders[task_id] / TRAJECTORY_FILE
        if not os.path.lexists(path):
            return None
        try:
            data = parse_json(read_bytes(path, LONGEST_FILE, "traj_data.json"))
        except InputError as error:
            raise InputError(f"{path}: {error}; copy or fetch it again") from None
        if not isinstance(data, dict):
            raise InputError(
                f"{path}: expected a JSON object, received {type(data).__name__}; copy or fetch it again"
            )
        return data


def _game_folders(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder, onerror=_unreadable):
        # incomplete folders
        folders[:] = [name for name in folders if not SCRATCH.fullmatch(name)]
        if GAME_FILE in files:
            yield Path(place)


def _unreadable(error: OSError) -> None:
    """Raise InputError for an unreadable folder, which `os.walk` would otherwise skip silently."""
    raise InputError(
        f"cannot read the folder {error.filename}: {error.strerror}"
    ) from None


def _task_id(place: Path, *, alone: bool) -> str | None:
    """Return the last three folder names. A single game outside any split belongs to train."""
    parts = ("", "", *place.absolute().parts)
    split, task, trial = parts[-3:]
    if split in SPLITS:
        return f"{split}/{task}/{trial}"
    return f"train/{task}/{trial}" if alone else None


_SOLVABLE = re.compile(rb'(?<!\\)"solvable"\s*:\s*(true|false)')
_TAIL: Final = 4096


def _solvable(path: Path) -> bool:
    """Return whether a game is marked solvable. The mark is usually at the end; otherwise the whole file is read."""
    with open_regular(path, "game file") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        tail = file.read(_TAIL)
    marks = _SOLVABLE.findall(tail)
    if marks and tail.rstrip().endswith(b"}"):
        return bool(marks[-1] == b"true")
    return read_file(path).get("solvable") is True


def write_folder(
    games: GameStore | ALFWorldSource, ids: Iterable[str], folder: Path
) -> int:
    """Write games in the original's layout: `<folder>/json_2.1.1/<task id>/` with both files.

    Args:
        games: The source of the games.
        ids: The task ids to write.
        folder: The parent folder. It is created if it does not exist and must not contain `json_2.1.1`, which is
            written atomically.

    Returns:
        The number of games written.

    Raises:
        InputError: If `json_2.1.1` exists, a task id is not a valid path, or the disk is full.
    """
    count = 0
    with writing(folder / ROOT), new_folder(folder / ROOT) as made:
        for task_id in ids:
            place = path_inside(made, task_id)
            place.mkdir(parents=True)
            _write(place / GAME_FILE, games.read(task_id))
            _write(
                place / TRAJECTORY_FILE,
                games.trajectory(task_id) or {"task_type": task_type(task_id)},
            )
            count += 1
    return count


def task_type(task_id: str) -> str:
    """Return the task type in a task id.

    >>> task_type("train/pick_and_place_simple-Mug-None-Shelf-1/trial_1")
    'pick_and_place_simple'
    """
    return (
        task_id.split("/")[-2].split("-", maxsplit=1)[0] if "/" in task_id else task_id
    )


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data), "utf-8")
