"""Random drafts of new games for all six task types in ALFWorld's rooms.

A game is drawn in two steps: first a task (object, place, room) from those of the official games, then the objects in
the room, with the numbers and places of the official games. `hgpo_envs.alfworld.generation.problem` converts the draft
to the official file format, and `hgpo_envs.alfworld.generation.store` adds the expert's walkthrough.

All draws use `random.Random.random`, whose stream Python guarantees, so a seed gives the same bytes on every platform.

The splits are disjoint for every seed and number of games:

- ``valid_unseen`` uses rooms that neither the generated nor the official training games use (`rooms.UNSEEN`).
- ``train`` and ``valid_seen`` use the other rooms but have no common task. One in `SEEN_SHARE` tasks, selected by the
  hash of type, object, place and room, belongs to ``valid_seen``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from hgpo_envs.alfworld.data.game_folder import SPLITS
from hgpo_envs.alfworld.data.rooms import UNSEEN, Room, load_rooms, room_kind
from hgpo_envs.alfworld.engine.goals import TASK_TYPES
from hgpo_envs.errors import check_known
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
"""The receptacle that a task type requires."""
LIGHT: Final = "look_at_obj_in_light"
TARGET_COPIES: Final = 4
"""The maximum number of copies of the task's object, as in ALFRED."""
THERE_SHARE: Final = 0.2
"""The probability that an additional copy is already in the target place, for tasks with two objects."""
COLD_SHARE: Final = 0.05
"""The fraction of objects in a fridge that are cold at the start, as in the official games."""
NESTED_SHARE: Final = 0.1
"""The fraction of objects beside a container that are inside it."""
SENTENCES: Final = {
    "pick_and_place_simple": (
        "put a {object} in {place}.",
        "put some {object} on {place}.",
    ),
    "look_at_obj_in_light": (
        "look at {object} under the {place}.",
        "examine the {object} with the {place}.",
    ),
    "pick_clean_then_place_in_recep": (
        "put a clean {object} in {place}.",
        "clean some {object} and put it in {place}.",
    ),
    "pick_heat_then_place_in_recep": (
        "put a hot {object} in {place}.",
        "heat some {object} and put it in {place}.",
    ),
    "pick_cool_then_place_in_recep": (
        "put a cool {object} in {place}.",
        "cool some {object} and put it in {place}.",
    ),
    "pick_two_obj_and_place": (
        "put two {object} in {place}.",
        "find two {object} and put them in {place}.",
    ),
}
"""The two task sentences of each type in the official games."""


@dataclass(frozen=True, slots=True, order=True)
class TaskTemplate:
    """The task of a game.

    Attributes:
        task_type: One of `TASK_TYPES`.
        object: The kind of object.
        place: The kind of receptacle or lamp.
        scene: The room's number.
    """

    task_type: str
    object: str
    place: str
    scene: int

    @property
    def folder(self) -> str:
        """The official name of the task's folder."""
        return f"{self.task_type}-{self.object}-None-{self.place}-{self.scene}"

    @property
    def split(self) -> str:
        """The split of the task."""
        if self.scene in UNSEEN:
            return "valid_unseen"
        return "valid_seen" if text_hash(self.folder) % SEEN_SHARE == 0 else "train"


@dataclass(frozen=True, slots=True)
class PlacedObject:
    """An object with a place.

    Attributes:
        kind: The kind, for example ``Mug``.
        name: The identifier, for example ``Mug|+00.10|+00.90|-01.20``.
        lies_on: The indices of its receptacles. Empty for objects on the floor.
    """

    kind: str
    name: str
    lies_on: tuple[int, ...]


@dataclass(frozen=True)
class GameDraft:
    """A game before conversion to the official format.

    Attributes:
        task: The task.
        trial: The name of the game's folder in the task's folder.
        sentence: The task sentence.
        room: The room.
        things: The movable objects.
        start: The agent's initial location.
        cold: The identifiers of objects that are cold at the start.
        nested: Pairs of the identifiers of an object and of the container object in which it lies.
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
        """The task id: split, task folder and trial folder."""
        return f"{self.task.split}/{self.task.folder}/{self.trial}"


@lru_cache
def possible_tasks(split: str, task_type: str) -> tuple[TaskTemplate, ...]:
    """Return all possible tasks of a type in a split, sorted."""
    rooms = load_rooms()
    tasks = [
        TaskTemplate(task_type, kind, place, scene)
        for kind, places in rooms.goals[task_type].items()
        for place in places
        for scene in rooms.rooms
    ]
    return tuple(
        sorted([task for task in tasks if task.split == split and _possible(task)])
    )


def _possible(task: TaskTemplate) -> bool:
    """Return whether a room has what a task needs, and a place for its object that does not solve the task."""
    room = load_rooms().rooms[task.scene]
    station = STATION.get(task.task_type)
    if task.object not in room.objects or (station and station not in room.by_kind):
        return False
    there = room.has_lamp if task.task_type == LIGHT else task.place in room.by_kind
    return there and bool(_places_of(task.object, room, _avoided(task)))


def _avoided(task: TaskTemplate) -> str:
    """Return the kind of receptacle where the object must not lie at the start, or ""."""
    return (
        task.place
        if task.task_type in ("pick_and_place_simple", "pick_two_obj_and_place")
        else ""
    )


def _places_of(kind: str, room: Room, avoid: str = "") -> dict[str, int]:
    """Return the kinds of receptacles that contain a kind of object in official games, with their frequencies.

    If there are none, return those that accept the object, with frequency 1.
    """
    places = [place for place in sorted(room.by_kind) if place != avoid]
    seen = _frequencies(kind, room)
    weights = {place: games for place, games in seen.items() if place in places}
    holds = load_rooms().holds
    return weights or {place: 1 for place in places if kind in holds.get(place, ())}


def _frequencies(kind: str, room: Room) -> Mapping[str, int]:
    """Return where a kind of object lies in official games, in rooms of this kind; "" is the floor."""
    return load_rooms().where[room_kind(room.scene)].get(kind, {})


class _RandomChoices:
    """Random choices from one seeded stream."""

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
    """Draft the game with a number in a split. Successive numbers cycle through the task types.

    Args:
        split: One of `SPLITS`.
        index: The number, from 0.
        seed: Any integer. Different seeds give different games.

    Raises:
        InputError: If the split is unknown.
    """
    check_known("split", split, SPLITS)
    draws = _RandomChoices(f"hgpo/{seed}/{split}/{index}")
    tasks: Sequence[TaskTemplate] = possible_tasks(
        split, TASK_TYPES[index % len(TASK_TYPES)]
    )
    kind = draws.choice(sorted({task.object for task in tasks}))
    tasks = [task for task in tasks if task.object == kind]
    place = draws.choice(sorted({task.place for task in tasks}))
    task = draws.choice([task for task in tasks if task.place == place])
    when = datetime(2026, 1, 1) + timedelta(seconds=index)  # noqa: DTZ001 (used for a name only)
    return _furnish(
        task, f"trial_T{when:%Y%m%d_%H%M%S}_{draws.number(0, 999_999):06d}", draws
    )


def _furnish(task: TaskTemplate, trial: str, draws: _RandomChoices) -> GameDraft:
    rooms = load_rooms()
    room = rooms.rooms[task.scene]
    names: set[str] = set()
    things: list[PlacedObject] = []
    for kind in room.objects:
        if kind == task.object:
            spots = _target_spots(task, draws)
        else:
            copies = draws.weighted(rooms.copies[kind])
            spots = [_spot(kind, room, draws) for _ in range(copies)]
        for lies_on in spots:
            name = _name(kind, lies_on, room, names, draws)
            things.append(PlacedObject(kind, name, lies_on))
    # The draws follow in this order: the sentence, the start, cold things, nested things.
    sentence = draws.choice(SENTENCES[task.task_type])
    start = _start(room, draws)
    cold = [
        thing.name
        for thing in things
        if _may_be_cold(thing, task, room) and draws.chance(COLD_SHARE)
    ]
    return GameDraft(
        task=task,
        trial=trial,
        sentence=sentence.format(object=task.object.lower(), place=task.place.lower()),
        room=room,
        things=tuple(things),
        start=start,
        cold=frozenset(cold),
        nested=tuple(_nested(things, draws)),
    )


def _may_be_cold(thing: PlacedObject, task: TaskTemplate, room: Room) -> bool:
    in_fridge = any(room.receptacles[i].kind == "Fridge" for i in thing.lies_on)
    return (
        in_fridge
        and thing.kind != task.object
        and "coolable" in load_rooms().attributes[thing.kind]
    )


def _spot(
    kind: str, room: Room, draws: _RandomChoices, avoid: str = "", *, floor: bool = True
) -> tuple[int, ...]:
    """Draw the receptacles of one object.

    Args:
        kind: The object's kind.
        room: The room.
        draws: The random choices.
        avoid: A kind of receptacle where it must not lie, or "".
        floor: Whether it may lie on the floor, out of reach.

    Returns:
        The indices of the receptacles. Empty for the floor.
    """
    weights = _places_of(kind, room, avoid)
    if floor:
        weights[""] = _frequencies(kind, room).get("", 0 if weights else 1)
    place = draws.weighted(weights)
    if not place:
        return ()
    first = draws.choice(room.by_kind[place])
    others = [
        other
        for lies_on, other, share in room.overlaps
        if lies_on == first
        and draws.chance(share)
        and room.receptacles[other].kind != avoid
    ]
    return tuple(sorted({first, *others}))


def _target_spots(task: TaskTemplate, draws: _RandomChoices) -> list[tuple[int, ...]]:
    """Draw places for the copies of the task's object: enough of them within reach and outside the target place."""
    room = load_rooms().rooms[task.scene]
    avoid = _avoided(task)
    two = task.task_type == "pick_two_obj_and_place"
    needed = 2 if two else 1
    spots = [_spot(task.object, room, draws, avoid, floor=False) for _ in range(needed)]
    for extra in range(draws.number(0, TARGET_COPIES - needed)):
        there = two and not extra and draws.chance(THERE_SHARE)
        spots.append(_spot(task.object, room, draws, "" if there else avoid))
    return spots


def _nested(
    things: Sequence[PlacedObject], draws: _RandomChoices
) -> Iterator[tuple[str, str]]:
    attributes = load_rooms().attributes
    containers = [
        thing for thing in things if "isReceptacleObject" in attributes[thing.kind]
    ]
    for thing in things:
        beside = [
            outer
            for outer in containers
            if outer.lies_on and outer.lies_on == thing.lies_on and outer != thing
        ]
        if beside and thing not in containers and draws.chance(NESTED_SHARE):
            yield thing.name, draws.choice(beside).name


def _name(
    kind: str,
    lies_on: tuple[int, ...],
    room: Room,
    names: set[str],
    draws: _RandomChoices,
) -> str:
    """Return a new identifier: the kind and coordinates near the place."""
    place = room.receptacles[lies_on[0]] if lies_on else draws.choice(room.receptacles)
    x, y, z = (float(part) for part in place.position.split("|")[:3])
    while True:
        shifts = (draws.number(-30, 30), draws.number(0, 20), draws.number(-30, 30))
        at = (
            _coordinate(round(100 * value) + shift)
            for value, shift in zip((x, y, z), shifts, strict=True)
        )
        name = "|".join((kind, *at))
        if name.lower() not in names:
            names.add(name.lower())
            return name


def _coordinate(hundredths: int) -> str:
    """Format a coordinate as ALFRED does.

    >>> _coordinate(-75), _coordinate(1204), _coordinate(0)
    ('-00.75', '+12.04', '00.00')
    """
    return f"{hundredths / 100:+06.2f}" if hundredths else "00.00"


def _start(room: Room, draws: _RandomChoices) -> str:
    """Draw a location from which no receptacle can be reached."""
    taken = {receptacle.location for receptacle in room.receptacles}
    at = [[int(part) for part in location.split("|")] for location in sorted(taken)]
    low = [min(column) for column in zip(*at, strict=True)]
    high = [max(column) for column in zip(*at, strict=True)]
    while True:
        x = draws.number(low[0] - 1, high[0] + 1)
        z = draws.number(low[1] - 1, high[1] + 1)
        start = f"{x}|{z}|{draws.number(0, 3)}|30"
        if start not in taken:
            return start
