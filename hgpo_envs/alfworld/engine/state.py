"""The world of one game at one moment: where everything is, and what has become of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Final

NOTHING: Final = -1
"""Stands for no object in the hand, and for the place of a receptacle that is nowhere."""


class Ability(IntFlag):
    """What can be done with an object."""

    PICKUPABLE = 1
    CLEANABLE = 2
    HEATABLE = 4
    COOLABLE = 8
    TOGGLEABLE = 16
    SLICEABLE = 32
    CONTAINER = 64
    """It can hold others: a box, a plate."""


class Trait(IntFlag):
    """What has become of an object."""

    CLEAN = 1
    HOT = 2
    COOL = 4
    SLICED = 8
    TOGGLED = 16


@dataclass(slots=True)
class GameState:
    """Everything that changes while a game is played. Indices are those of the `Game`.

    Attributes:
        location: Where the agent is.
        held: The object in its hand, or `NOTHING`.
        contents: For each receptacle the objects in it, ascending. An object can be in two at once (stove burners),
            and stays in the second when it is taken from the first.
        opened: For each receptacle, whether it is open.
        spots: For each object, the locations that it counts as being at.
        traits: For each object, a `Trait` as int.
        emptied: (object, receptacle) for every object that was taken out of a receptacle and not put back. A look
            around names those that lie, by now, elsewhere at the same location.
    """

    location: int
    held: int
    contents: list[tuple[int, ...]]
    opened: list[bool]
    spots: list[frozenset[int]]
    traits: list[int]
    emptied: set[tuple[int, int]]

    def copy(self) -> GameState:
        """A world of its own, equal to this one."""
        return GameState(
            self.location,
            self.held,
            self.contents.copy(),
            self.opened.copy(),
            self.spots.copy(),
            self.traits.copy(),
            self.emptied.copy(),
        )
