"""What a scenario is: a kind of task that is asked several times, of several people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from hgpo_appworld.generation.checks import Check
    from hgpo_appworld.generation.world import Person, Rows, World


@dataclass(frozen=True)
class Draft:
    """One task of a scenario.

    Attributes:
        instruction: The instruction.
        steps: The steps of the solution.
        answer: The expected answer; None if the task asks for none.
        private: What the evaluation needs to know.
    """

    instruction: str
    steps: Sequence[str]
    answer: str | int | float | None = None
    private: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """A kind of task.

    Attributes:
        name: What it is called in plans and tests.
        split: Its split: train, dev or test_normal.
        difficulty: 1 to 3.
        apps: The apps that a solution needs, without the supervisor's.
        make: Makes a task for a person. It may add rows that only this task has.
        checks: The checks of its evaluation.
    """

    name: str
    split: str
    difficulty: int
    apps: tuple[str, ...]
    make: Callable[[World, Person, random.Random, Rows], Draft]
    checks: tuple[Check, ...]
