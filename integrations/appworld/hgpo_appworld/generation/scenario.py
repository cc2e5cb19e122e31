"""What a scenario is: a kind of task that is asked several times, of several people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from hgpo_appworld.generation.checks import Check
    from hgpo_appworld.generation.world import Person, Rows, World

    Make: TypeAlias = "Callable[[World, Person, random.Random, Rows], Draft]"


@dataclass(frozen=True)
class Draft:
    """One task of a scenario.

    Attributes:
        instruction: The instruction.
        steps: The steps of the solution, between the logins to the scenario's apps and the end.
        answer: The expected answer; None if the task asks for none.
        private: What the evaluation needs to know.
        answer_code: What the solution answers, as an expression of the steps' variables; empty if it does not.
    """

    instruction: str
    steps: Sequence[str]
    answer: str | int | float | None = None
    private: dict[str, Any] = field(default_factory=dict)
    answer_code: str = ""


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
    make: Make
    checks: tuple[Check, ...]


def scenario(
    split: str, difficulty: int, *apps: str, checks: tuple[Check, ...]
) -> Callable[[Make], Scenario]:
    """Make a scenario of the function that drafts its tasks, whose name it has. The arguments are `Scenario`'s."""

    def of(make: Make) -> Scenario:
        return Scenario(make.__name__, split, difficulty, apps, make, checks)

    return of
