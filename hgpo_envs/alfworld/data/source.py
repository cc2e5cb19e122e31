"""The tasks of an ALFWorld data set: the bundled pack, a pack file, or official game folders."""

from __future__ import annotations

import json
from dataclasses import astuple
from functools import lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.alfworld.data.game_folder import SPLITS, FolderStore, GameStore
from hgpo_envs.alfworld.data.pack import PackStore
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import Game, compile_game
from hgpo_envs.alfworld.engine.grammar import GRAMMARS, convert
from hgpo_envs.engine import Task
from hgpo_envs.errors import InputError, UnknownTask, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BUNDLED: Final = "games.pack"
"""The pack in `hgpo_envs/alfworld/bundled`."""


class ALFWorldSource:
    """The tasks of one ALFWorld data set (`hgpo_envs.engine.TaskSource`).

    Args:
        data: None for the bundled games, a pack file, a folder with official games (`json_2.1.1`, or a folder that
            contains it), or the folder of a single game.
        grammar: `move` or `put` converts the commands of all games; None uses the grammar of each game's file.
        keep: Number of compiled games in the cache.

    Raises:
        InputError: There is no such data, or it cannot be used.
    """

    name = "ALFWorld"

    def __init__(self, data: str | Path | None = None, *, grammar: str | None = None, keep: int = 256) -> None:
        if grammar is not None and grammar not in GRAMMARS:
            raise InputError(unknown("grammar", grammar, GRAMMARS))
        bundled = resources.files("hgpo_envs.alfworld") / "bundled" / BUNDLED
        path = Path(str(bundled)) if data is None else Path(data).expanduser()
        if not path.exists():
            raise InputError(
                "the bundled ALFWorld games are not installed; name a folder of official games or a pack"
                if data is None
                else f"no ALFWorld data at {path}: expected a folder of official games or a pack file"
            )
        self.store: GameStore = FolderStore(path) if path.is_dir() else PackStore(path)
        self._arguments = (data, grammar, keep)
        self._grammar = grammar
        self.game: Callable[[str], Game] = lru_cache(keep)(lambda task_id: compile_game(self.read(task_id), task_id))
        """The compiled game of a task. Engines that play the same game share it."""

    def __reduce__(self) -> tuple[Callable[..., ALFWorldSource], tuple[object, ...]]:
        data, grammar, keep = self._arguments
        return partial(ALFWorldSource, grammar=grammar, keep=keep), (data,)

    def ids(self, split: str) -> Sequence[str]:
        """Return the sorted task ids of a split. The split `all` contains every task."""
        if split != "all" and split not in SPLITS:
            raise InputError(unknown("split", split, [*SPLITS, "all"]))
        return [task_id for task_id in self.store.ids() if split == "all" or task_id.startswith(f"{split}/")]

    def task(self, task_id: str) -> Task:
        """Return a task's description without starting it."""
        game = self.game(task_id)
        return Task(
            id=task_id,
            split=task_id.split("/", 1)[0],
            instruction=game.task,
            task_type=game.goal.task_type,
            versions={"grammar": game.grammar.name},
        )

    def read(self, task_id: str) -> dict[str, Any]:
        """Return the JSON object of the game file, with the commands of the selected grammar.

        Raises:
            UnknownTask: There is no such task.
        """
        try:
            file = self.store.read(task_id)
        except KeyError:
            raise UnknownTask(unknown("ALFWorld task", task_id, self.store.ids(), limit=2)) from None
        return file if self._grammar is None else convert(file, self._grammar)

    def content(self, task_id: str) -> str:
        """Return the planning problem and the wording of a task (`hgpo_envs.engine.TaskSource`)."""
        problem = " ".join(self.read(task_id)["pddl_problem"].split())
        return json.dumps([problem, *astuple(self.game(task_id).grammar)])

    def trajectory(self, task_id: str) -> dict[str, Any] | None:
        """Return the stored part of the game's `traj_data.json`, or None."""
        return self.store.trajectory(task_id)

    def engine(self) -> ALFWorldEngine:
        """Return a new engine over these games."""
        return ALFWorldEngine(self.game)
