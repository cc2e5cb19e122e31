"""The tasks of AppWorld's data, and the engines that play them.

A task's id is AppWorld's: the scenario, ``_``, and the task's number in it. The data is a folder that `appworld` calls
its root: ``data/datasets/SPLIT.txt`` lists the tasks of a split, and ``data/tasks/ID`` holds each task.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from hgpo_appworld.engine.engine import AppWorldEngine
from hgpo_appworld.engine.process import Launch, Limits, Server, server
from hgpo_envs.engine import Task
from hgpo_envs.errors import InputError, UnknownTask, check_known, one_line, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

SPLITS: Final = ("train", "dev", "test_normal", "test_challenge")
"""The official splits. Data of one's own may have some of them, and others."""

SOLUTIONS: Final = ("compiled_solution.py", "solution.py")
"""The names of a task's solution program, the one that runs by itself first."""

Observation = Literal["output", "calls"]
RewardScale = Literal["success", "score"]
Isolation = Literal["auto", "bwrap", "none"]


@dataclass(frozen=True)
class Rules:
    """How engines play.

    Attributes:
        observation: The state text: ``output`` (of the last program) or ``calls`` (also the calls of APIs so far).
        reward_scale: ``success`` (1 if all tests pass, else 0) or ``score`` (the share of tests that pass).
        refuse: Whether programs with ``...`` or ``except`` are refused.
        max_steps: The step limit, at which the state is evaluated.
    """

    observation: Observation = "output"
    reward_scale: RewardScale = "success"
    refuse: bool = False
    max_steps: int = 50


class AppWorldSource:
    """The tasks of one root folder (`hgpo_envs.engine.TaskSource`).

    Args:
        data: AppWorld's root.
        python: The interpreter in which `appworld` is installed.
        rules: How engines play.
        limits: Limits of each world.
        isolation: ``auto``, ``bwrap`` or ``none``; see integrations/appworld/README.md.
        max_difficulty: The greatest difficulty of tasks, 1 to 3.
        concurrent: The maximum number of worlds that rollouts play at the same time.

    Raises:
        InputError: If there is no such interpreter or no such data.
    """

    name: str = "AppWorld"

    def __init__(
        self,
        data: str | Path,
        python: str | Path,
        rules: Rules,
        limits: Limits,
        isolation: Isolation = "auto",
        max_difficulty: int = 3,
        concurrent: int = 64,
    ) -> None:
        self._arguments = (
            data,
            python,
            rules,
            limits,
            isolation,
            max_difficulty,
            concurrent,
        )
        self.concurrent: Final = concurrent
        self.rules: Final = rules
        self.limits: Final = limits
        self._folder = Path(data).resolve() / "data"
        if (
            not (self._folder / "datasets").is_dir()
            or not (self._folder / "tasks").is_dir()
        ):
            raise InputError(
                f"data: expected AppWorld's root, a folder with data/datasets and data/tasks; received {str(data)!r}"
            )
        program = shutil.which(python)
        if program is None:
            raise InputError(
                f"python: expected the interpreter that has appworld, received {str(python)!r}, which cannot be run; "
                "hgpo data install appworld makes one"
            )
        self._launch = Launch(
            str(Path(program).absolute()), str(self._folder), isolation
        )
        self._server: Server | None = None
        listed = {
            path.stem: self._listed(path)
            for path in sorted((self._folder / "datasets").glob("*.txt"))
        }
        self._splits = {
            name: listed.get(name, ()) for name in dict.fromkeys((*SPLITS, *listed))
        }
        self._split_of: dict[str, str] = {}
        for name, ids in self._splits.items():
            for task_id in ids:
                self._split_of.setdefault(task_id, name)
        self._facts = lru_cache(4096)(self._read)
        if max_difficulty < 3:
            easy = {
                one for one in self._split_of if self._facts(one)[1] <= max_difficulty
            }
            self._splits = {
                name: tuple(one for one in ids if one in easy)
                for name, ids in self._splits.items()
            }
        self._versions = {
            "backend": "appworld",
            "state": f"{rules.observation}, at most {limits.longest} characters",
        }

    def __reduce__(self) -> tuple[type[AppWorldSource], tuple[Any, ...]]:
        """Open the data again in another process, which starts processes of its own."""
        return AppWorldSource, self._arguments

    def ids(self, split: str) -> Sequence[str]:
        """Return the split's task ids, in the order of its file; those of ``all`` split by split.

        An official split that the data lacks is empty.

        Raises:
            InputError: If there is no such split.
        """
        if split == "all":
            return list(
                dict.fromkeys(one for ids in self._splits.values() for one in ids)
            )
        check_known("split", split, (*self._splits, "all"))
        return list(self._splits[split])

    def task(self, task_id: str) -> Task:
        """Return a task. Its instruction ends with the supervisor's name, email address and phone number.

        Raises:
            UnknownTask: If there is none with this id.
            InputError: If its files cannot be read.
        """
        if task_id not in self._split_of:
            raise UnknownTask(
                unknown("AppWorld task", task_id, self._split_of, limit=3)
            )
        specs, difficulty = self._facts(task_id)
        person = specs["supervisor"]
        instruction = (
            f"{specs['instruction']}\n\nSupervisor: {person['first_name']} {person['last_name']}, "
            f"email {person['email']}, phone number {person['phone_number']}"
        )
        versions = {**self._versions, "data": str(specs.get("db_version", ""))}
        return Task(
            task_id,
            self._split_of[task_id],
            instruction,
            f"difficulty {difficulty}",
            versions,
        )

    def engine(self) -> AppWorldEngine:
        """Return a new engine. Its process starts with the first task."""
        return AppWorldEngine(self)

    def server(self, task_id: str) -> Server:
        """Return the process that forks worlds, started if it does not run."""
        self._server = server(self._launch, task_id)
        return self._server

    def solution(self, task_id: str) -> str:
        """Return a task's solution program.

        Raises:
            InputError: If the data has none, as for the official test splits.
        """
        folder = self._folder / "tasks" / task_id / "ground_truth"
        for name in SOLUTIONS:
            if (folder / name).is_file():
                return (folder / name).read_text(encoding="utf-8")
        raise InputError(
            f"AppWorld's task {task_id} has no solution program in {folder}; choose another split"
        )

    def _listed(self, path: Path) -> tuple[str, ...]:
        lines = (
            line.partition(":")[0].strip()
            for line in path.read_text(encoding="utf-8").splitlines()
        )
        return tuple(dict.fromkeys(line for line in lines if line))

    def _read(self, task_id: str) -> tuple[dict[str, Any], int]:
        """Return a task's specification and its difficulty."""
        folder = self._folder / "tasks" / task_id
        try:
            specs = json.loads((folder / "specs.json").read_text(encoding="utf-8"))
            metadata = json.loads(
                (folder / "ground_truth" / "metadata.json").read_text(encoding="utf-8")
            )
            return specs, int(metadata["difficulty"])
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"AppWorld's task {task_id} in {folder} cannot be read: {one_line(error, 200)}"
            ) from None
