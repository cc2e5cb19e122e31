"""The state of a game: the places and traits of all objects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Final

NOTHING: Final = -1
"""The index for no held object, and for the location of a receptacle without one."""


class Ability(IntFlag):
    """An action that is possible with an object."""

    PICKUPABLE = 1
    CLEANABLE = 2
    HEATABLE = 4
    COOLABLE = 8
    TOGGLEABLE = 16
    SLICEABLE = 32
    CONTAINER = 64
    """The object can contain others, such as a box or a plate."""


class Trait(IntFlag):
    """A property that actions give to an object."""

    CLEAN = 1
    HOT = 2
    COOL = 4
    SLICED = 8
    TOGGLED = 16


@dataclass(slots=True)
class GameState:
    """The variable part of a game. Indices refer to the `Game`.

    Attributes:
        location: The agent's location.
        held: The held object, or `NOTHING`.
        contents: For each receptacle, the objects in it, ascending. An object can be in two receptacles (stove
            burners) and stays in the second when it is taken from the first.
        opened: For each receptacle, whether it is open.
        spots: For each object, its locations by the original's rules.
        traits: For each object, a `Trait` as int.
        emptied: (object, receptacle) for every object that was taken out of a receptacle and not put back. `look`
            names those that now lie elsewhere at the same location.
    """

    location: int
    held: int
    contents: list[tuple[int, ...]]
    opened: list[bool]
    spots: list[frozenset[int]]
    traits: list[int]
    emptied: set[tuple[int, int]]

    def copy(self) -> GameState:
        """Return an independent copy."""
        return GameState(
            self.location,
            self.held,
            self.contents.copy(),
            self.opened.copy(),
            self.spots.copy(),
            self.traits.copy(),
            self.emptied.copy(),
        )
