"""ALFWorld's 120 rooms and the frequencies of objects in them, from which games are generated.

`tools/alfworld_survey.py` creates `bundled/rooms.json.gz` from ALFWorld's layouts and official games (MIT, NOTICE).
"""

from __future__ import annotations

import gzip
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Final

import msgspec

OFFICIAL_UNSEEN: Final = frozenset({10, 219, 308, 424})
"""The rooms of the official `valid_unseen`, which no official training game uses."""
UNUSED: Final = frozenset({9, 29, 215, 226, 315, 325, 404, 425})
"""The rooms that no official game uses."""
UNSEEN: Final = OFFICIAL_UNSEEN | UNUSED


def room_kind(scene: int) -> str:
    """Return the kind of room of a scene number.

    >>> room_kind(7), room_kind(424)
    ('Kitchen', 'Bathroom')
    """
    return ("Kitchen", "", "LivingRoom", "Bedroom", "Bathroom")[scene // 100]


class Receptacle(msgspec.Struct, frozen=True, array_like=True):
    """A receptacle of a room.

    Attributes:
        kind: The kind, for example ``SinkBasin``.
        position: The coordinates in its identifier, for example ``-00.70|+00.93|-00.65|SinkBasin``.
        location: The agent's location at the receptacle: ``4x|4z|rotation/90|horizon``.
        openable: Whether it can be opened and closed.
    """

    kind: str
    position: str
    location: str
    openable: bool

    @property
    def name(self) -> str:
        """The identifier as in ALFRED, where a basin has the name of its sink or bathtub."""
        return f"{self.kind.removesuffix('Basin')}|{self.position}"


class Room(msgspec.Struct, frozen=True, dict=True):
    """The fixed part of a room. Receptacles are identified by their index.

    Attributes:
        scene: The scene number.
        receptacles: The receptacles.
        fixtures: The objects on receptacles that cannot be carried: kind, position, receptacles.
        overlaps: A receptacle, another one on which its objects lie as well, and the fraction of such objects.
        objects: The kinds of movable objects. Every game contains at least one of each.
    """

    scene: int
    receptacles: tuple[Receptacle, ...]
    fixtures: tuple[tuple[str, str, tuple[int, ...]], ...]
    overlaps: tuple[tuple[int, int, float], ...]
    objects: tuple[str, ...]

    @cached_property
    def by_kind(self) -> dict[str, tuple[int, ...]]:
        """The indices of the receptacles of each kind."""
        found: dict[str, tuple[int, ...]] = {}
        for index, receptacle in enumerate(self.receptacles):
            found[receptacle.kind] = (*found.get(receptacle.kind, ()), index)
        return found

    @property
    def has_lamp(self) -> bool:
        """Whether the room has a desk lamp."""
        return any(kind == "DeskLamp" for kind, _, _ in self.fixtures)


class Rooms(msgspec.Struct, frozen=True):
    """All rooms and the statistics of the official games.

    Attributes:
        rooms: The rooms by scene number.
        attributes: Kind of object → its PDDL attributes (``pickupable``, ``heatable`` …).
        holds: Kind of receptacle → the kinds of objects that it accepts.
        copies: Kind of object → number in a room → number of official games.
        where: Kind of room → kind of object → kind of receptacle ("" for the floor) → frequency.
        goals: Task type → kind of object → kind of receptacle (or lamp) → number of official games.
    """

    rooms: dict[int, Room]
    attributes: dict[str, frozenset[str]]
    holds: dict[str, frozenset[str]]
    copies: dict[str, dict[int, int]]
    where: dict[str, dict[str, dict[str, int]]]
    goals: dict[str, dict[str, dict[str, int]]]


@lru_cache(maxsize=1)
def load_rooms() -> Rooms:
    """Return the bundled rooms, which are read once."""
    packed = files("hgpo_envs.alfworld") / "bundled" / "rooms.json.gz"
    content = gzip.decompress(packed.read_bytes())
    # Not strict: the file has 0 and 1 for `Receptacle.openable`.
    return msgspec.json.decode(content, type=Rooms, strict=False)
