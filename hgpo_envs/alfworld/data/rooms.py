"""The 120 rooms of ALFWorld and what lies about in them: the data that games are generated from.

`bundled/rooms.json.gz` is made by `tools/alfworld_survey.py` from ALFWorld's layouts and official games (MIT, NOTICE).
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

OFFICIAL_UNSEEN: Final = frozenset({10, 219, 308, 424})
"""The rooms of the official `valid_unseen`: no official training game plays there."""
UNUSED: Final = frozenset({9, 29, 215, 226, 315, 325, 404, 425})
"""Rooms where no official game plays at all."""
UNSEEN: Final = OFFICIAL_UNSEEN | UNUSED


def room_kind(scene: int) -> str:
    """Which of the four kinds of room a scene number stands for.

    >>> room_kind(7), room_kind(424)
    ('Kitchen', 'Bathroom')
    """
    return ("Kitchen", "", "LivingRoom", "Bedroom", "Bathroom")[scene // 100]


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A place for things.

    Attributes:
        kind: For example ``SinkBasin``.
        position: The coordinates of its identifier, for example ``-00.70|+00.93|-00.65|SinkBasin``.
        location: Where one stands to reach it: ``4x|4z|rotation/90|horizon``.
        openable: Whether it has to be opened.
    """

    kind: str
    position: str
    location: str
    openable: bool

    @property
    def name(self) -> str:
        """Its identifier, as in ALFRED: basins are named after what they are in."""
        return f"{self.kind.removesuffix('Basin')}|{self.position}"


@dataclass(frozen=True)
class Room:
    """One room as it always is; receptacles are known by their index.

    Attributes:
        scene: Its number.
        receptacles: All places for things.
        fixtures: What cannot be carried and stands on receptacles: kind, position, receptacles.
        overlaps: For a receptacle, others that things on it lie on as well, each with how often they do.
        objects: The kinds of things that lie about, each at least once in every game.
    """

    scene: int
    receptacles: tuple[Receptacle, ...]
    fixtures: tuple[tuple[str, str, tuple[int, ...]], ...]
    overlaps: Mapping[int, tuple[tuple[int, float], ...]]
    objects: tuple[str, ...]

    @cached_property
    def by_kind(self) -> dict[str, tuple[int, ...]]:
        """Kind of receptacle → indices."""
        kinds = dict.fromkeys(receptacle.kind for receptacle in self.receptacles)
        return {kind: tuple(i for i, r in enumerate(self.receptacles) if r.kind == kind) for kind in kinds}

    @property
    def has_lamp(self) -> bool:
        """Whether a desk lamp stands somewhere."""
        return any(kind == "DeskLamp" for kind, _, _ in self.fixtures)


@dataclass(frozen=True)
class Rooms:
    """All rooms, and what holds for each.

    Attributes:
        rooms: By scene number.
        attributes: Kind of thing → what can be done with it (``pickupable``, ``heatable`` …).
        holds: Kind of receptacle → the kinds of things that it accepts.
        copies: Kind of thing → number in a room → in how many official games.
        where: Kind of room → kind of thing → kind of receptacle ("" for the floor) → how often it lay there.
        goals: Task type → kind of thing → kind of receptacle (or lamp) → in how many official games.
    """

    rooms: Mapping[int, Room]
    attributes: Mapping[str, frozenset[str]]
    holds: Mapping[str, frozenset[str]]
    copies: Mapping[str, Mapping[int, int]]
    where: Mapping[str, Mapping[str, Mapping[str, int]]]
    goals: Mapping[str, Mapping[str, Mapping[str, int]]]


def _room(row: dict[str, Any]) -> Room:
    overlaps: dict[int, tuple[tuple[int, float], ...]] = {}
    for first, second, share in row["overlaps"]:
        overlaps[first] = (*overlaps.get(first, ()), (second, share))
    return Room(
        scene=row["scene"],
        receptacles=tuple(Receptacle(k, position, at, bool(opens)) for k, position, at, opens in row["receptacles"]),
        fixtures=tuple((kind, position, tuple(held)) for kind, position, held in row["fixtures"]),
        overlaps=overlaps,
        objects=tuple(row["objects"]),
    )


@lru_cache(maxsize=1)
def load_rooms() -> Rooms:
    """The bundled rooms, read once."""
    packed = files("hgpo_envs.alfworld").joinpath("bundled", "rooms.json.gz").read_bytes()
    data = json.loads(gzip.decompress(packed))
    return Rooms(
        rooms={row["scene"]: _room(row) for row in data["rooms"]},
        attributes={kind: frozenset(values) for kind, values in data["attributes"].items()},
        holds={kind: frozenset(values) for kind, values in data["holds"].items()},
        copies={kind: {int(n): games for n, games in counts.items()} for kind, counts in data["copies"].items()},
        where=data["where"],
        goals=data["goals"],
    )
