"""The games of one family and level, or of a folder, as tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from hgpo_envs.engine import Task
from hgpo_envs.errors import InputError, UnknownTask, check_known, unknown
from hgpo_textworld.engine import TextWorldEngine
from hgpo_textworld.games import VERSION, check_family, compiled

SPLITS: Final = {
    "train": range(10_000),
    "valid": range(10_000, 10_100),
    "test": range(10_100, 10_200),
}
"""The seeds of generated games, by split."""


class TextWorldSource:
    """TextWorld's games (`hgpo_envs.engine.TaskSource`).

    Args:
        data: A folder of compiled games: ``NAME.z8`` with ``NAME.json`` beside it, in the folder itself or in one
            folder per split. None generates games (`hgpo_textworld.games`) when they are first played.
        family: The kind of generated games.
        level: Their size; see `FAMILIES`.

    Raises:
        InputError: The family or level is unknown, or the folder has no games.
    """

    name = "TextWorld"

    def __init__(
        self, data: str | None = None, family: str = "treasure-hunter", level: int = 5
    ) -> None:
        check_family(family, level)
        self._family = family
        self._level = level
        self._files = None if data is None else _games(Path(data))

    def ids(self, split: str) -> list[str]:
        """Return the ids: ``FAMILY-LEVEL-SEED``, or names of files, sorted."""
        if self._files is not None:
            found = [
                name
                for name in self._files
                if split == "all" or name.startswith(f"{split}/")
            ]
            if not found:
                raise InputError(
                    unknown(
                        "split",
                        split,
                        sorted({name.partition("/")[0] for name in self._files}),
                    )
                )
            return found
        check_known("split", split, (*SPLITS, "all"))
        seeds = [
            seed
            for name, numbers in SPLITS.items()
            if split in (name, "all")
            for seed in numbers
        ]
        return [f"{self._family}-{self._level}-{seed}" for seed in seeds]

    def file(self, task_id: str) -> Path:
        """Return the compiled game of a task, generated if necessary.

        Raises:
            UnknownTask: There is no such task.
        """
        if self._files is not None:
            if task_id not in self._files:
                raise UnknownTask(unknown("task", task_id, self._files))
            return self._files[task_id]
        return compiled(self._family, self._level, self._seed(task_id))

    def task(self, task_id: str) -> Task:
        """Return a task's description, which generates its game if necessary."""
        file = self.file(task_id)
        game: dict[str, Any] = json.loads(
            file.with_suffix(".json").read_text(encoding="utf-8")
        )
        split = task_id.partition("/")[0]
        kind = "game"
        if self._files is None:
            split = next(
                name for name, seeds in SPLITS.items() if self._seed(task_id) in seeds
            )
            kind = self._family
        return Task(task_id, split, game["objective"], kind, {"textworld": VERSION})

    def engine(self) -> TextWorldEngine:
        """Return a new engine."""
        return TextWorldEngine(self)

    def _seed(self, task_id: str) -> int:
        prefix, _, seed = task_id.rpartition("-")
        known = (
            seed.isascii()
            and seed.isdecimal()
            and any(int(seed) in seeds for seeds in SPLITS.values())
        )
        if prefix != f"{self._family}-{self._level}" or not known:
            raise UnknownTask(
                f"expected a task such as {self._family}-{self._level}-0, received {task_id!r}"
            )
        return int(seed)


def _games(folder: Path) -> dict[str, Path]:
    """Return the games of a folder by task id: ``SPLIT/NAME``; those of the folder itself are the split ``train``."""
    games = {
        f"{file.parent.name if file.parent != folder else 'train'}/{file.stem}": file
        for file in sorted([*folder.glob("*.z8"), *folder.glob("*/*.z8")])
        if file.with_suffix(".json").exists()
    }
    if not games:
        raise InputError(
            f"{folder}: expected TextWorld's games (NAME.z8 with NAME.json), received none"
        )
    return games
