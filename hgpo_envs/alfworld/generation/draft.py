"""New games for all six task types, in ALFWorld's rooms and in its official file format.

A game is drawn in two steps: a task (object, place, room) from those that the official games set, then the things that
lie about, from how many there are and where they lie in official games. `synthesis` writes it down, with the
walkthrough by which the expert won it.
Every draw comes from `random.Random.random`, whose stream Python guarantees: one seed gives the same bytes everywhere.

Splits are disjoint by rule, whatever the seed and the number of games:

- ``valid_unseen`` plays in rooms where neither these nor the official training games play (`rooms.UNSEEN`);
- ``train`` and ``valid_seen`` share the other rooms but no task: one task in `SEEN_SHARE` (by the hash of type, object,
  place and room) belongs to ``valid_seen``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from hgpo_envs.alfworld.data.rooms import UNSEEN, Room, Rooms, load_rooms, room_kind
from hgpo_envs.alfworld.data.source import SPLITS
from hgpo_envs.alfworld.engine.game import TASK_TYPES
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.hashing import text_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T")

SEEN_SHARE: Final = 8
STATION: Final = {
    "pick_clean_then_place_in_recep": "SinkBasin",
    "pick_heat_then_place_in_recep": "Microwave",
    "pick_cool_then_place_in_recep": "Fridge",
}
"""The receptacle that a task type cannot do without."""
LIGHT: Final = "look_at_obj_in_light"
TARGET_COPIES: Final = 4
"""At most so many of what the task asks for, as in ALFRED."""
THERE_SHARE: Final = 0.2
"""How often one more of two asked for is in place already."""
COLD_SHARE: Final = 0.05
"""How many things in a fridge are cold from the start (5% in official games)."""
NESTED_SHARE: Final = 0.1
"""How many things beside a container lie in it."""
SENTENCES: Final = {
    "pick_and_place_simple": ("put a {object} in {place}.", "put some {object} on {place}."),
    "look_at_obj_in_light": ("look at {object} under the {place}.", "examine the {object} with the {place}."),
    "pick_clean_then_place_in_recep": (
        "put a clean {object} in {place}.",
        "clean some {object} and put it in {place}.",
    ),
    "pick_heat_then_place_in_recep": ("put a hot {object} in {place}.", "heat some {object} and put it in {place}."),
    "pick_cool_then_place_in_recep": ("put a cool {object} in {place}.", "cool some {object} and put it in {place}."),
    "pick_two_obj_and_place": ("put two {object} in {place}.", "find two {object} and put them in {place}."),
}
"""The two task sentences of each type, as the official games word them."""


@dataclass(frozen=True, slots=True, order=True)
class TaskTemplate:
    """What a game asks for, and where.

    Attributes:
        task_type: One of `TASK_TYPES`.
        object: The kind of thing.
        place: The kind of receptacle, or of lamp.
        scene: The room's number.
    """

    task_type: str
    object: str
    place: str
    scene: int

    @property
    def folder(self) -> str:
        """The official name of its folder."""
        return f"{self.task_type}-{self.object}-None-{self.place}-{self.scene}"

    @property
    def split(self) -> str:
        """The split that it belongs to."""
        if self.scene in UNSEEN:
            return "valid_unseen"
        return "valid_seen" if text_hash(self.folder) % SEEN_SHARE == 0 else "train"


@dataclass(frozen=True, slots=True)
class PlacedObject:
    """Something that lies about.

    Attributes:
        kind: For example ``Mug``.
        name: Its identifier, ``Mug|+00.10|+00.90|-01.20``.
        lies_on: Indices of receptacles; none for what lies on the floor.
    """

    kind: str
    name: str
    lies_on: tuple[int, ...]


@dataclass(frozen=True)
class GameDraft:
    """A game before it is written down.

    Attributes:
        task: What is asked.
        trial: The name of its folder within the task's.
        sentence: The task in words.
        room: Where it plays.
        things: What can be carried.
        start: The location where the agent stands at first.
        cold: Identifiers of what is cold from the start.
        nested: Inner and outer identifiers.
    """

    task: TaskTemplate
    trial: str
    sentence: str
    room: Room
    things: tuple[PlacedObject, ...]
    start: str
    cold: frozenset[str] = frozenset()
    nested: tuple[tuple[str, str], ...] = field(default=())

    @property
    def id(self) -> str:
        """Split, task folder and trial folder."""
        return f"{self.task.split}/{self.task.folder}/{self.trial}"


@lru_cache
def possible_tasks(split: str, task_type: str) -> tuple[TaskTemplate, ...]:
    """Every task of a type that a split can set, sorted."""
    rooms = load_rooms()
    tasks = (
        TaskTemplate(task_type, kind, place, scene)
        for kind, places in rooms.goals[task_type].items()
        for place in places
        for scene in rooms.rooms
    )
    return tuple(sorted(task for task in tasks if task.split == split and _possible(task, rooms)))


def _possible(task: TaskTemplate, rooms: Rooms) -> bool:
    """Whether the room has what the task needs, and a place where the object can lie that does not solve it."""
    room = rooms.rooms[task.scene]
    if task.object not in room.objects or STATION.get(task.task_type, "") not in ("", *room.by_kind):
        return False
    if task.task_type == LIGHT:
        return room.has_lamp and bool(_places_of(task.object, room, rooms))
    return task.place in room.by_kind and bool(_places_of(task.object, room, rooms, avoid=_avoided(task)))


def _avoided(task: TaskTemplate) -> str:
    """The kind of receptacle where the object must not lie at first; "" for none."""
    return task.place if task.task_type in ("pick_and_place_simple", "pick_two_obj_and_place") else ""


def _places_of(kind: str, room: Room, rooms: Rooms, avoid: str = "") -> dict[str, int]:
    """The kinds of receptacles in a room where a thing lies, each with how often, or else where it could."""
    seen = rooms.where[room_kind(room.scene)].get(kind, {})
    weights = {place: games for place, games in seen.items() if place in room.by_kind and place != avoid}
    could = {place: 1 for place in sorted(room.by_kind) if kind in rooms.holds.get(place, ()) and place != avoid}
    return weights or could


class _RandomChoices:
    """Choices from one guaranteed stream of random numbers."""

    def __init__(self, seed: str) -> None:
        self._next = random.Random(seed).random

    def chance(self, share: float) -> bool:
        return self._next() < share

    def number(self, low: int, high: int) -> int:
        return low + int(self._next() * (high - low + 1))

    def choice(self, items: Sequence[T]) -> T:
        return items[int(self._next() * len(items))]

    def weighted(self, weights: Mapping[T, int]) -> T:
        left = int(self._next() * sum(weights.values()))
        for item, weight in weights.items():
            left -= weight
            if left < 0:
                return item
        raise ValueError(f"nothing to choose from: {weights}")


def draft_game(split: str, index: int, seed: int) -> GameDraft:
    """The game with this number in a split: types take turns.

    Args:
        split: One of `SPLITS`.
        index: From 0.
        seed: Any integer; each gives other games.

    Raises:
        InputError: for a split that is not known.
    """
    if split not in SPLITS:
        raise InputError(unknown("split", split, SPLITS))
    rooms = load_rooms()
    draws = _RandomChoices(f"hgpo/{seed}/{split}/{index}")
    tasks: Sequence[TaskTemplate] = possible_tasks(split, TASK_TYPES[index % len(TASK_TYPES)])
    kind = draws.choice(sorted({task.object for task in tasks}))
    tasks = [task for task in tasks if task.object == kind]
    place = draws.choice(sorted({task.place for task in tasks}))
    task = draws.choice([task for task in tasks if task.place == place])
    return _furnish(task, _trial(index, draws), draws, rooms)


def _trial(index: int, draws: _RandomChoices) -> str:
    when = datetime(2026, 1, 1) + timedelta(seconds=index)  # noqa: DTZ001 (a name, not a moment)
    return f"trial_T{when:%Y%m%d_%H%M%S}_{draws.number(0, 999_999):06d}"


def _furnish(task: TaskTemplate, trial: str, draws: _RandomChoices, rooms: Rooms) -> GameDraft:
    room = rooms.rooms[task.scene]
    names: set[str] = set()
    things: list[PlacedObject] = []
    for kind in room.objects:
        spots = _target_spots(task, draws, rooms) if kind == task.object else _spots(kind, room, draws, rooms)
        for lies_on in spots:
            name = _name(kind, lies_on, room, names, draws)
            things.append(PlacedObject(kind, name, lies_on))
    return GameDraft(
        task=task,
        trial=trial,
        sentence=_sentence(task, draws),
        room=room,
        things=tuple(things),
        start=_start(room, draws),
        cold=frozenset(
            thing.name
            for thing in things
            if "coolable" in rooms.attributes[thing.kind]
            and any(room.receptacles[i].kind == "Fridge" for i in thing.lies_on)
            and thing.kind != task.object
            and draws.chance(COLD_SHARE)
        ),
        nested=tuple(_nested(things, draws, rooms)),
    )


def _sentence(task: TaskTemplate, draws: _RandomChoices) -> str:
    return draws.choice(SENTENCES[task.task_type]).format(object=task.object.lower(), place=task.place.lower())


def _spots(kind: str, room: Room, draws: _RandomChoices, rooms: Rooms) -> list[tuple[int, ...]]:
    """As many places for a kind as there are copies of it."""
    return [_spot(kind, room, draws, rooms) for _ in range(draws.weighted(rooms.copies[kind]))]


def _spot(
    kind: str, room: Room, draws: _RandomChoices, rooms: Rooms, avoid: str = "", *, floor: bool = True
) -> tuple[int, ...]:
    """The receptacles that one thing lies on.

    Args:
        kind: Of the thing.
        room: Where.
        draws: Source of choices.
        rooms: Frequencies.
        avoid: A kind of receptacle that it must not lie on; "" for none.
        floor: Whether it may lie on the floor, out of reach.
    """
    weights = _places_of(kind, room, rooms, avoid)
    if floor:
        weights[""] = rooms.where[room_kind(room.scene)].get(kind, {}).get("", 0 if weights else 1)
    place = draws.weighted(weights)
    if not place:
        return ()
    first = draws.choice(room.by_kind[place])
    others = [i for i, share in room.overlaps.get(first, ()) if draws.chance(share)]
    return tuple(sorted({first, *(i for i in others if room.receptacles[i].kind != avoid)}))


def _target_spots(task: TaskTemplate, draws: _RandomChoices, rooms: Rooms) -> list[tuple[int, ...]]:
    """Places for what the task asks for: enough within reach, and not yet where they should go."""
    room, avoid = rooms.rooms[task.scene], _avoided(task)
    two = task.task_type == "pick_two_obj_and_place"
    needed = 2 if two else 1
    spots = [_spot(task.object, room, draws, rooms, avoid, floor=False) for _ in range(needed)]
    for extra in range(draws.number(0, TARGET_COPIES - needed)):
        there = two and not extra and draws.chance(THERE_SHARE)
        spots.append(_spot(task.object, room, draws, rooms, "" if there else avoid))
    return spots


def _nested(things: Sequence[PlacedObject], draws: _RandomChoices, rooms: Rooms) -> Iterator[tuple[str, str]]:
    containers = [thing for thing in things if "isReceptacleObject" in rooms.attributes[thing.kind]]
    for thing in things:
        beside = [outer for outer in containers if outer.lies_on and outer.lies_on == thing.lies_on and outer != thing]
        if beside and thing not in containers and draws.chance(NESTED_SHARE):
            yield thing.name, draws.choice(beside).name


def _name(kind: str, lies_on: tuple[int, ...], room: Room, names: set[str], draws: _RandomChoices) -> str:
    """A new identifier: the kind and coordinates near the place."""
    place = room.receptacles[lies_on[0]] if lies_on else draws.choice(room.receptacles)
    x, y, z = (float(part) for part in place.position.split("|")[:3])
    while True:
        shifts = (draws.number(-30, 30), draws.number(0, 20), draws.number(-30, 30))
        at = (_coordinate(round(100 * value) + shift) for value, shift in zip((x, y, z), shifts, strict=True))
        name = "|".join((kind, *at))
        if name.lower() not in names:
            names.add(name.lower())
            return name


def _coordinate(hundredths: int) -> str:
    """As ALFRED writes it.

    >>> _coordinate(-75), _coordinate(1204), _coordinate(0)
    ('-00.75', '+12.04', '00.00')
    """
    return f"{hundredths / 100:+06.2f}" if hundredths else "00.00"


def _start(room: Room, draws: _RandomChoices) -> str:
    """A location from which no receptacle is reached."""
    taken = {receptacle.location for receptacle in room.receptacles}
    at = [[int(part) for part in location.split("|")] for location in sorted(taken)]
    low, high = [min(column) for column in zip(*at, strict=True)], [max(column) for column in zip(*at, strict=True)]
    while True:
        x, z = draws.number(low[0] - 1, high[0] + 1), draws.number(low[1] - 1, high[1] + 1)
        start = f"{x}|{z}|{draws.number(0, 3)}|30"
        if start not in taken:
            return start
