"""The tasks of an ALFWorld data set: the bundled pack, a pack file, or official game folders."""

from __future__ import annotations

import re
from collections import OrderedDict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.games import Game, compile_game, read_file
from hgpo_envs.alfworld.grammar import GRAMMARS, convert
from hgpo_envs.engine import Task
from hgpo_envs.errors import InputError, UnknownTask, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPLITS: Final = ("train", "valid_seen", "valid_unseen")
"""The benchmark's splits; `all` is every task of them."""
GAME_FILE: Final = "game.tw-pddl"


class Store(Protocol):
    """Holds games by task id."""

    def ids(self) -> Sequence[str]:
        """All task ids, sorted."""
        ...

    def read(self, task_id: str) -> Mapping[str, Any]:
        """The JSON object of a game file. Raises KeyError for an unknown id."""
        ...


class FolderStore:
    """Official game folders: `<split>/<task folder>/<trial folder>/game.tw-pddl`.

    Like the original it leaves out folders named after movable receptacles or sliced objects, and games that are not
    marked solvable. `traj_data.json` is not needed.
    """

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Path] = {}
        skipped = 0
        for path in folder.rglob(GAME_FILE):
            task_id = _task_id(path, alone=path.parent == folder)
            if task_id is None or "movable" in str(path.parent) or "Sliced" in str(path.parent) or not _solvable(path):
                skipped += 1
            else:
                self._files[task_id] = path
        if not self._files:
            raise InputError(
                f"no playable game in {folder}: expected {'|'.join(SPLITS)}/<task folder>/<trial folder>/{GAME_FILE}, "
                f"marked solvable; found {skipped} others"
            )
        self._ids = sorted(self._files)

    def ids(self) -> Sequence[str]:
        """All task ids, sorted."""
        return self._ids

    def read(self, task_id: str) -> Mapping[str, Any]:
        """The JSON object of a game file."""
        return read_file(self._files[task_id])


def _task_id(path: Path, *, alone: bool) -> str | None:
    """The last three folders; a folder outside any split counts as train if it is all the data."""
    *_, split, task, trial, _ = path.resolve().parts
    if split in SPLITS:
        return f"{split}/{task}/{trial}"
    return f"train/{task}/{trial}" if alone else None


_SOLVABLE = re.compile(rb'(?<!\\)"solvable"\s*:\s*(true|false)')
_TAIL: Final = 4096


def _solvable(path: Path) -> bool:
    """Whether a game file is marked solvable: read from its end, where the mark is, else from all of it."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        tail = file.read()
    marks = _SOLVABLE.findall(tail)
    if marks and tail.rstrip().endswith(b"}"):
        return bool(marks[-1] == b"true")
    return read_file(path).get("solvable") is True


class ALFWorldSource:
    """The tasks of one ALFWorld data set (`hgpo_envs.engine.TaskSource`).

    Args:
        data: None for the bundled games, a pack file, a folder with official games (`json_2.1.1`, or one that holds
            it), or the folder of a single game.
        grammar: None plays every game as its file words it; `move` or `put` converts them all.
        keep: How many compiled games to keep for engines to come.
    """

    name = "ALFWorld"

    def __init__(self, data: str | Path | None = None, *, grammar: str | None = None, keep: int = 256) -> None:
        self._store = open_store(data)
        self._games: OrderedDict[str, Game] = OrderedDict()
        self._keep = keep
        self._grammar = grammar
        if grammar is not None and grammar not in GRAMMARS:
            raise InputError(unknown("grammar", grammar, GRAMMARS))

    def ids(self, split: str) -> Sequence[str]:
        """The split's task ids, sorted; `all` is every task."""
        if split != "all" and split not in SPLITS:
            raise InputError(unknown("split", split, [*SPLITS, "all"]))
        return [task_id for task_id in self._store.ids() if split in ("all", task_id.split("/", 1)[0])]

    def task(self, task_id: str) -> Task:
        """What is known of a task without starting it."""
        game = self.game(task_id)
        return Task(
            id=task_id,
            split=task_id.split("/", 1)[0],
            instruction=game.task,
            task_type=game.goal.task_type,
            versions={"grammar": game.grammar.name},
        )

    def game(self, task_id: str) -> Game:
        """The compiled game; the last `keep` are kept."""
        game = self._games.get(task_id)
        if game is None:
            game = self._games[task_id] = compile_game(self.file(task_id), task_id)
            if len(self._games) > self._keep:
                self._games.popitem(last=False)
        return game

    def file(self, task_id: str) -> Mapping[str, Any]:
        """The JSON object of the game file, as the original reads it."""
        try:
            file = self._store.read(task_id)
        except KeyError:
            raise UnknownTask(unknown("ALFWorld task", task_id, self._store.ids(), shown=2)) from None
        return file if self._grammar is None else convert(file, self._grammar)

    def engine(self) -> ALFWorldEngine:
        """A new engine over these games."""
        return ALFWorldEngine(self)


def open_store(data: str | Path | None) -> Store:
    """Opens what `ALFWorldSource` takes as its data."""
    if data is None:
        bundled = Path(str(resources.files("hgpo_envs.alfworld") / "bundled" / "games.pack"))
        if not bundled.exists():
            raise InputError("the bundled ALFWorld games are not installed; name a folder of official games or a pack")
        data = bundled
    path = Path(data).expanduser()
    if path.is_dir():
        return FolderStore(path)
    if not path.exists():
        raise InputError(f"no ALFWorld data at {path}: expected a folder of official games or a pack file")
    raise InputError(f"{path} is no folder; packs come soon")
