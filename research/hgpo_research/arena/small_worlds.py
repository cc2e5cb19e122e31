"""Small games with a structure that the benchmarks do not have: chance, misleading states, and graded rewards.

--env hgpo_research.arena.small_worlds:ICE       what an action does is decided by chance
--env hgpo_research.arena.small_worlds:SIGNS     a long corridor whose signs promise progress on the wrong way
--env hgpo_research.arena.small_worlds:FORM      a form whose score is the share of right answers
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final

import numpy as np

from hgpo_envs.engine import State
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_research.levers import Game
from hgpo_research.tabular.graphs import CHANCE

if TYPE_CHECKING:
    from collections.abc import Hashable

    from hgpo_research.arrays import Array


class _Engine:
    """What the three engines share. Their attributes are never changed in place, so a copy is independent."""

    def fork(self) -> _Engine:
        """Return an independent engine in the same state."""
        return copy(self)

    def key(self) -> Hashable:
        """Return the hidden state."""
        return tuple(sorted(vars(self).items()))


def _random(task_id: str) -> np.random.Generator:
    split, _, number = task_id.rpartition("-")
    return np.random.default_rng([int(number), split == "train"])


def _ended(text: str, score: float) -> State:
    return State(text, (), True, True, score >= 1.0, score, score)


# -------------------------------------------------------------------------------------------------------------- the ice

FLOES: Final = 5
OUTCOMES: Final = 3
"""The number of equally likely outcomes of an action on the ice."""


class IceEngine(_Engine):
    """Plays one task of the ice at a time: at each floe, jumping is fast and climbing is slow.

    A jump fails with probability 1/3 on firm floes and 2/3 on slippery ones, and then leads one floe back. Which floes
    are slippery depends on the task, and no text says it. The step limit is too short to climb everywhere.
    """

    _slippery: tuple[bool, ...] = ()
    _floe = 0
    _climbs = False

    def start(self, task_id: str) -> State:
        """Start a task."""
        self._slippery = tuple(
            bool(each) for each in _random(task_id).integers(0, 2, FLOES)
        )
        self._floe = 0
        self._climbs = False
        return self._state()

    def act(self, command: str) -> State:
        """Execute a command; the number at its end is what chance decides."""
        if command not in self._state().actions:
            return self._state(valid=False)
        action, _, outcome = command.removesuffix(")").partition(CHANCE)
        if action == "jump":
            failures = 2 if self._slippery[self._floe] else 1
            self._floe = (
                max(0, self._floe - 1) if int(outcome) <= failures else self._floe + 1
            )
        elif self._climbs:
            self._floe += 1
            self._climbs = False
        else:
            self._climbs = True
        return self._state()

    def _state(self, valid: bool = True) -> State:
        if self._floe == FLOES:
            return _ended("The other shore.", 1.0)
        actions = ["climb"] if self._climbs else ["jump", "climb"]
        place = "Half over the edge of" if self._climbs else "On"
        # Climbing has as many outcomes, all alike: with fewer, it would be less likely at first.
        choices = [
            f"{action}{CHANCE}{number + 1})"
            for action in actions
            for number in range(OUTCOMES)
        ]
        return State(
            f"{place} floe {self._floe + 1} of {FLOES}.", tuple(choices), valid
        )


class Ice(Game):
    """The tasks."""

    name = "Ice"
    kind = "ice"
    instruction = "Reach the other shore."

    def engine(self) -> IceEngine:
        """Return a new engine."""
        return IceEngine()


# ------------------------------------------------------------------------------------------------------------ the signs

LENGTH: Final = 6
JUMP: Final = 2
"""How many rooms nearer the signs of a wrong way are."""


class SignsEngine(_Engine):
    """Plays one task of the signs at a time: in each room one of two doors is right, which depends on the task.

    Behind a wrong door, signs say that the exit is nearer than it was, as in rooms of the right way, and the way ends
    at a wall. So a state that is often near success is worth nothing where it follows a wrong door.
    """

    _doors: tuple[int, ...] = ()
    _room = 0
    _lost = False

    def start(self, task_id: str) -> State:
        """Start a task."""
        self._doors = tuple(_random(task_id).integers(0, 2, LENGTH).tolist())
        self._room = 0
        self._lost = False
        return self._state()

    def act(self, command: str) -> State:
        """Execute a command."""
        actions = self._state().actions
        if command not in actions:
            return self._state(valid=False)
        right = self._lost or actions.index(command) == self._doors[self._room]
        self._room += 1 if right else 1 + JUMP
        self._lost = self._lost or not right
        return self._state()

    def _state(self, valid: bool = True) -> State:
        if self._room >= LENGTH:
            return _ended(
                "A wall." if self._lost else "The exit.", float(not self._lost)
            )
        text = f"Two doors, and a sign: the exit is {LENGTH - self._room} rooms away."
        return State(text, ("open left door", "open right door"), valid)


class Signs(Game):
    """The tasks."""

    name = "Signs"
    kind = "signs"
    instruction = "Find the exit."

    def engine(self) -> SignsEngine:
        """Return a new engine."""
        return SignsEngine()


# ------------------------------------------------------------------------------------------------------------- the form

FIELDS: Final = 5
ANSWERS: Final = ("yes", "no", "unknown")


class FormEngine(_Engine):
    """Plays one task of the form at a time: a field after the other, and the score is the share of right answers.

    A page shows the number of the field and nothing of the answers before it.
    """

    _right: tuple[int, ...] = ()
    _field = 0
    _score = 0.0

    def start(self, task_id: str) -> State:
        """Start a task."""
        answers: Array = _random(task_id).integers(0, len(ANSWERS), FIELDS)
        self._right = tuple(answers.tolist())
        self._field = 0
        self._score = 0.0
        return self._state()

    def act(self, command: str) -> State:
        """Execute a command."""
        if command not in self._state().actions:
            return self._state(valid=False)
        answer = ANSWERS.index(command.removeprefix("write "))
        self._score += (answer == self._right[self._field]) / FIELDS
        self._field += 1
        return self._state()

    def _state(self, valid: bool = True) -> State:
        if self._field == FIELDS:
            return _ended("The form is sent.", round(self._score, 12))
        text = f"Field {self._field + 1} of {FIELDS}."
        return State(text, tuple(f"write {answer}" for answer in ANSWERS), valid)


class Form(Game):
    """The tasks."""

    name = "Form"
    kind = "form"
    instruction = "Fill in the form."

    def engine(self) -> FormEngine:
        """Return a new engine."""
        return FormEngine()


ICE = EnvironmentSpec(
    id="HGPO/Ice-v0", source=Ice, max_steps=10, evaluation_split="test"
)
"""The game of chance for `gymnasium.make`, commands and training."""
SIGNS = EnvironmentSpec(
    id="HGPO/Signs-v0", source=Signs, max_steps=10, evaluation_split="test"
)
"""The game of misleading states."""
FORM = EnvironmentSpec(
    id="HGPO/Form-v0", source=Form, max_steps=8, evaluation_split="test"
)
"""The game of graded rewards."""
