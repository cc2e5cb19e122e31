"""Levers: a game whose hidden state only the past shows, `--env hgpo_research.levers:LEVERS`.

A player in a hall pulls one of several levers, reads which one it was, walks through corridors that all look alike, and
opens a door. Every lever unlocks another door, which the task decides. At the doors, everything depends on the lever,
and nothing shows it but the past: `corridors` + 1 steps back is the state that names it, and a step further the action.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from hgpo_envs.engine import State, Task
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Hashable

TASKS = 1000
"""The number of tasks of each split."""


class Game:
    """A task source of `TASKS` numbered tasks in each of two splits.

    Attributes:
        name: Its name.
        kind: The type of its tasks.
        instruction: The instruction of the task.
    """

    name: str
    kind: str
    instruction: str

    def ids(self, split: str) -> list[str]:
        """Return the ids of a split: ``train``, ``test`` or ``all``."""
        splits = ("train", "test") if split == "all" else (split,)
        return [f"{name}-{number}" for name in splits for number in range(TASKS)]

    def task(self, task_id: str) -> Task:
        """Return a task's description."""
        return Task(task_id, task_id.partition("-")[0], self.instruction, self.kind)


class LeversEngine:
    """Plays one task at a time.

    Args:
        levers: Number of levers and doors.
        corridors: Number of corridors between them.
    """

    _doors: tuple[int, ...] = ()
    _lever = -1
    _place = -1
    _won = False

    def __init__(self, levers: int, corridors: int) -> None:
        self._levers = levers
        self._corridors = corridors

    def start(self, task_id: str) -> State:
        """Start a task."""
        seed = int(task_id.rpartition("-")[2])
        rng = np.random.default_rng([seed, task_id.startswith("train")])
        # Which door a lever unlocks, another order in each task.
        self._doors = tuple(rng.permutation(self._levers).tolist())
        self._lever = -1
        self._place = -1
        self._won = False
        return self._state()

    def act(self, command: str) -> State:
        """Execute a command."""
        if command not in self._actions():
            return self._state(valid=False)
        number = int(command.rpartition(" ")[2]) - 1 if command != "walk on" else 0
        # The first action pulls the lever, the last one opens a door, and those between walk on.
        if self._place < 0:
            self._lever = number
        if self._place == self._corridors + 1:
            self._won = self._doors[self._lever] == number
        self._place += 1
        return self._state()

    def fork(self) -> LeversEngine:
        """Return an independent engine in the same state."""
        return copy(self)  # of values that are never changed

    def key(self) -> Hashable:
        """Return the hidden state."""
        return self._lever, self._place, self._won

    def _actions(self) -> list[str]:
        kind = "pull lever" if self._place < 0 else "open door"
        if 0 <= self._place <= self._corridors:
            return ["walk on"]
        return [f"{kind} {number + 1}" for number in range(self._levers)]

    def _state(self, valid: bool = True) -> State:
        after = self._corridors + 1
        texts = {
            -1: f"A hall with {self._levers} levers.",
            0: f"Lever {self._lever + 1} clicks. A corridor opens.",
        }
        texts |= {
            after: f"A room with {self._levers} doors.",
            after + 1: "The door opens." if self._won else "It is locked.",
        }
        ended = self._place > after
        score = float(self._won)
        text = texts.get(self._place, "A corridor.")
        return State(
            text,
            () if ended else self._actions(),
            valid,
            ended,
            self._won,
            score,
            score,
        )


class Levers(Game):
    """The tasks.

    Args:
        levers: Number of levers and doors, at least 2.
        corridors: Number of corridors that look alike, at least 0.
    """

    name = "Levers"
    kind = "levers"
    instruction = "Open the door that your lever unlocks."

    def __init__(self, levers: int = 4, corridors: int = 1) -> None:
        if levers < 2 or corridors < 0:
            raise InputError(
                f"expected at least 2 levers and 0 corridors, received {levers} and {corridors}"
            )
        self._levers = levers
        self._corridors = corridors

    def engine(self) -> LeversEngine:
        """Return a new engine."""
        return LeversEngine(self._levers, self._corridors)


LEVERS = EnvironmentSpec(
    id="HGPO/Levers-v0",
    source=Levers,
    max_steps=20,
    evaluation_split="test",
)
"""The game for `gymnasium.make`, commands and training."""
