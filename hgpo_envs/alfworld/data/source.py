"""The tasks of an ALFWorld data set: the bundled pack, a pack file, or official game folders."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.alfworld.data.game_folder import SPLITS, FolderStore, GameStore
from hgpo_envs.alfworld.data.pack import PackStore
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import Game, compile_game
from hgpo_envs.alfworld.engine.grammar import GRAMMARS, convert, recognise, split_task
from hgpo_envs.engine import Task
from hgpo_envs.errors import InputError, UnknownTask, check_known, unknown

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

    def __init__(
        self,
        data: str | Path | None = None,
        grammar: str | None = None,
        keep: int = 256,
    ) -> None:
        check_known("grammar", grammar, (*GRAMMARS, None))
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
        self.game: Callable[[str], Game] = lru_cache(keep)(
            lambda task_id: compile_game(self.read(task_id), task_id)
        )
        """The compiled game of a task. Engines that play the same game share it."""

    def __reduce__(self) -> tuple[type[ALFWorldSource], tuple[object, ...]]:
        return type(self), self._arguments

    def ids(self, split: str) -> Sequence[str]:
        """Return the sorted task ids of a split. The split `all` contains every task."""
        check_known("split", split, [*SPLITS, "all"])
        return [
            task_id
            for task_id in self.store.ids
            if split == "all" or task_id.startswith(f"{split}/")
        ]

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
            raise UnknownTask(
                unknown("ALFWorld task", task_id, self.store.ids, limit=2)
            ) from None
        return file if self._grammar is None else convert(file, self._grammar)

    def trajectory(self, task_id: str) -> dict[str, Any] | None:
        """Return the stored part of the game's `traj_data.json`, or None."""
        return self.store.trajectory(task_id)

    def contents(self, task_id: str) -> dict[str, str]:
        """Return what must be equal for a game to be the same: task sentence, wording, initial state and goal.

        The walkthrough is not part of it, nor the layout of the problem. The lines of the initial state are declared
        names with their kinds, and facts.

        Raises:
            InputError: The game cannot be read, or its rules or wording are unknown.
        """
        file = self.read(task_id)
        try:
            grammar, sentence = split_task(file["grammar"])
            wording = recognise(file["pddl_domain"], grammar)
        except InputError as error:
            raise InputError(f"{task_id}: {error}") from None
        start, goal = _parts(file["pddl_problem"])
        arrival = "location" if wording.arrives_at_location else "receptacle"
        words = [
            wording.words,
            wording.puts,
            f"arrival names the {arrival}",
            "help" if wording.help else "no help",
        ]
        return {
            "sentence": sentence,
            "wording": "\n".join(words),
            "initial state": start,
            "goal": goal,
        }

    def engine(self) -> ALFWorldEngine:
        """Return a new engine over these games."""
        return ALFWorldEngine(self.game)


_ENDS: Final = re.compile(r"(\)|- \w+|:init) ")
"""The ends of facts and declarations."""


@lru_cache(1)  # data sets that are compared often have the same problem
def _parts(problem: str) -> tuple[str, str]:
    """Return the initial state, a declaration or a fact a line, and the goal of a planning problem."""
    text = " ".join(problem.lower().split())
    text = text.replace("( ", "(").replace(" )", ")").replace(")(", ") (")
    start, _, goal = text.partition("(:goal")
    start = start.partition("(:objects")[2] or start
    facts = start.rstrip(" )") + ")"  # without the bracket that closes all of them
    return _ENDS.sub(r"\1\n", facts), goal.strip()
