"""The variations of ScienceWorld's tasks."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from hgpo_envs.engine import Task
from hgpo_envs.errors import UnknownTask, check_known
from hgpo_scienceworld.engine import ScienceWorldEngine, description

if TYPE_CHECKING:
    from collections.abc import Mapping

SPLITS: Final = ("train", "dev", "test")

VARIATIONS: Final[Mapping[str, int]] = {
    "boil": 30,
    "change-the-state-of-matter-of": 30,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "chemistry-mix-paint-tertiary-color": 36,
    "find-animal": 300,
    "find-living-thing": 300,
    "find-non-living-thing": 300,
    "find-plant": 300,
    "freeze": 30,
    "grow-fruit": 126,
    "grow-plant": 126,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
    "inclined-plane-determine-angle": 168,
    "inclined-plane-friction-named-surfaces": 1386,
    "inclined-plane-friction-unnamed-surfaces": 162,
    "lifespan-longest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "lifespan-shortest-lived": 125,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "melt": 30,
    "mendelian-genetics-known-plant": 120,
    "mendelian-genetics-unknown-plant": 480,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    "use-thermometer": 540,
}
"""The tasks and their numbers of variations in ScienceWorld 1.2. They stand here so that a list needs no Java."""


class ScienceWorldSource:
    """The variations of some tasks (`hgpo_envs.engine.TaskSource`).

    Args:
        experiments: Names of tasks, separated by commas; empty for all.
        simplifications: The simulator's simplifications, separated by commas. ``easy`` is all of them, such as open
            doors and teleportation; empty is none.

    Raises:
        InputError: There is no such task.
    """

    name = "ScienceWorld"

    def __init__(self, experiments: str = "", simplifications: str = "easy") -> None:
        self._tasks = experiments.split(",") if experiments else list(VARIATIONS)
        for task in self._tasks:
            check_known("experiment", task, VARIATIONS)
        self._simplifications = simplifications

    def ids(self, split: str) -> list[str]:
        """Return the ids, ``TASK-VARIATION``, in the simulator's splits."""
        check_known("split", split, (*SPLITS, "all"))
        return [
            f"{task}-{variation}"
            for task in self._tasks
            for variation in range(VARIATIONS[task])
            if split in ("all", _split(task, variation))
        ]

    def task(self, task_id: str) -> Task:
        """Return a variation's description."""
        task, _, variation = task_id.rpartition("-")
        known = task in self._tasks and variation.isascii() and variation.isdecimal()
        if not known or int(variation) >= VARIATIONS[task]:
            raise UnknownTask(
                f"expected a task such as {self._tasks[0]}-0, received {task_id!r}"
            )
        versions = {
            "scienceworld": version("scienceworld"),
            "simplifications": self._simplifications,
        }
        return Task(
            task_id,
            _split(task, int(variation)),
            description(task_id, self._simplifications),
            task,
            versions,
        )

    def engine(self) -> ScienceWorldEngine:
        """Return a new engine."""
        return ScienceWorldEngine(self._simplifications)


def _split(task: str, variation: int) -> str:
    """Return a variation's split: half of them are for training, a quarter for development, the others for tests."""
    quarter = VARIATIONS[task] // 4
    return (
        "train"
        if variation < 2 * quarter
        else "dev"
        if variation < 3 * quarter
        else "test"
    )
