"""`explorer`: a player that uses the instruction, the state texts and the admissible actions only.

It stores which objects it saw where. It searches receptacles in descending order of the probability of finding the
object per command, estimated from the official games (`rooms.Rooms.where`), and then does the task. It also takes into
account the commands of other players, as far as the texts show them.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hgpo_envs.alfworld.data.rooms import load_rooms
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hgpo_envs.engine import Engine, State, Task

WORDINGS: Final = (
    (
        r"(?:look at|examine the) (?P<thing>\w+) (?:under|with) the (?P<place>\w+)",
        "use",
        1,
    ),
    (r"(?:find|put) two (?P<thing>\w+)(?: and put them)? in (?P<place>\w+)", "", 2),
    (
        r"(?:put a clean|clean some) (?P<thing>\w+)(?: and put it)? in (?P<place>\w+)",
        "clean",
        1,
    ),
    (
        r"(?:put a hot|heat some) (?P<thing>\w+)(?: and put it)? in (?P<place>\w+)",
        "heat",
        1,
    ),
    (
        r"(?:put a cool|cool some) (?P<thing>\w+)(?: and put it)? in (?P<place>\w+)",
        "cool",
        1,
    ),
    (r"put (?:a|some) (?P<thing>\w+) (?:in|on) (?P<place>\w+)", "", 1),
)
"""The patterns of task sentences, with the treatment of the object and the number of objects."""
STATIONS: Final = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
CLOSED: Final = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
"""The kinds of receptacles that are usually closed."""
LAMP_STANDS: Final = {
    "sidetable": 278,
    "desk": 230,
    "dresser": 143,
    "shelf": 89,
    "coffeetable": 11,
}
"""The kinds of receptacles with desk lamps, and the number of official games in which they have one."""

_NAME = r"[a-z]+ \d+"
_SHOWN = re.compile(
    rf"(?:On the ({_NAME})|The ({_NAME}) is open\. In it), you see ([^.]*)\."
)
_SHUT = re.compile(rf"The ({_NAME}) is closed\.")
_ROOM = re.compile(r"Looking quickly around you, you see ([^.]*)\.")
_TOOK = re.compile(rf"You pick up the ({_NAME}) from the ({_NAME})\.")
_PUT = re.compile(rf"You (?:move|put) the ({_NAME}) (?:to|in/on) the ({_NAME})\.")
_TREATED = re.compile(rf"You (clean|heat|cool) the ({_NAME}) using the ")
_CLOSED = re.compile(rf"You close the ({_NAME})\.")
_TAKE = re.compile(rf"take ({_NAME}) from ({_NAME})")


@dataclass(frozen=True, slots=True)
class ParsedInstruction:
    """A parsed instruction.

    Attributes:
        thing: The kind of object.
        place: The kind of receptacle, or of lamp if `deed` is "use".
        deed: The treatment: "clean", "heat", "cool", "use" or "".
        count: The number of objects.
    """

    thing: str
    place: str
    deed: str
    count: int


def parse_instruction(instruction: str) -> ParsedInstruction:
    """Parse a task sentence.

    Raises:
        InputError: If it is not one of ALFWorld's twelve task sentences.

    >>> parse_instruction("clean some mug and put it in shelf.")
    ParsedInstruction(thing='mug', place='shelf', deed='clean', count=1)
    """
    for pattern, deed, count in WORDINGS:
        match = re.match(pattern, instruction.lower())
        if match:
            return ParsedInstruction(match["thing"], match["place"], deed, count)
    raise InputError(
        f"explorer: expected one of ALFWorld's twelve task sentences, received {instruction!r}"
    )


@lru_cache(maxsize=1)
def usual_places() -> dict[str, dict[str, float]]:
    """Return how often each kind of object lies on each kind of receptacle, over all rooms.

    Returns:
        Kind of object → kind of receptacle → frequency, with lower-case kinds.
    """
    result: dict[str, dict[str, float]] = {
        "desklamp": {**LAMP_STANDS},
        "floorlamp": {**LAMP_STANDS},
    }
    for kinds in load_rooms().where.values():
        for kind, places in kinds.items():
            counts = result.setdefault(kind.lower(), {})
            for place, number in places.items():
                counts[place.lower()] = counts.get(place.lower(), 0) + number
    return result


def _kind(name: str) -> str:
    return name.split(" ", 1)[0]


def _natural(name: str) -> tuple[str, int]:
    """Return a key that sorts "cabinet 2" before "cabinet 10"."""
    kind, _, number = name.partition(" ")
    return kind, int(number)


class _Memory:
    """The observations so far.

    Attributes:
        contents: The last observed objects in each receptacle, or None if its content was never observed.
        shut: The receptacles that were last observed closed.
        treated: Pairs of a treatment and the object that received it.
        held: The held object, or None.
        offered: The admissible actions.
    """

    def __init__(self, first: str) -> None:
        room = _ROOM.search(first)
        names = re.findall(_NAME, room[1]) if room else []
        self.contents: dict[str, set[str] | None] = dict.fromkeys(
            sorted(names, key=_natural)
        )
        self.shut: set[str] = set()
        self.treated: set[tuple[str, str]] = set()
        self.held: str | None = None
        self.offered: frozenset[str] = frozenset()

    def observe(self, state: State) -> None:
        """Update the memory from a state."""
        text = state.text
        self.offered = frozenset(state.actions)
        for shown in _SHOWN.finditer(text):
            name = shown[1] or shown[2]
            self.contents[name] = set(re.findall(_NAME, shown[3]))
            self.shut.discard(name)
        self.shut.update(
            match[1] for pattern in (_SHUT, _CLOSED) for match in pattern.finditer(text)
        )
        for match in _TOOK.finditer(text):
            self.held = match[1]
            self._inside(match[2]).discard(match[1])
        for match in _PUT.finditer(text):
            self.held = None
            self._inside(match[2]).add(match[1])
        self.treated.update((match[1], match[2]) for match in _TREATED.finditer(text))
        for match in filter(None, map(_TAKE.fullmatch, state.actions)):
            self._inside(match[2]).add(match[1])

    def _inside(self, receptacle: str) -> set[str]:
        contents = self.contents.get(receptacle)
        if contents is None:
            contents = self.contents[receptacle] = set()
        return contents

    def things(self, kind: str) -> Iterator[tuple[str, str]]:
        """Yield the observed objects of a kind with their receptacles."""
        for receptacle, contents in self.contents.items():
            yield from (
                (thing, receptacle)
                for thing in sorted(contents or ())
                if _kind(thing) == kind
            )

    def unseen(self) -> list[str]:
        """Return the receptacles whose content was never observed."""
        return [
            receptacle
            for receptacle, contents in self.contents.items()
            if contents is None
        ]

    def maybe_shut(self, receptacle: str) -> bool:
        """Return whether a receptacle is closed, or not observed and of a kind that is usually closed."""
        return receptacle in self.shut or (
            self.contents[receptacle] is None and _kind(receptacle) in CLOSED
        )

    def is_here(self, receptacle: str) -> bool:
        """Return whether the agent is at a receptacle."""
        return f"examine {receptacle}" in self.offered

    def forget(self) -> None:
        """Forget all contents, to search again for an object that another player moved."""
        self.contents = dict.fromkeys(self.contents)


class ExplorerPlayer:
    """A player that explores the room and does the task (`hgpo_envs.engine.Player`)."""

    def __init__(self) -> None:
        self._wish = ParsedInstruction("", "", "", 1)
        self._memory = _Memory("")
        self._unfit: set[str] = set()

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Start a game with an empty memory. The engine is not used."""
        del engine
        self._wish = parse_instruction(task.instruction)
        self._memory = _Memory(state.text)
        self._unfit = set()

    def fork(self, engine: Engine | None) -> ExplorerPlayer:
        """Return an independent copy. The engine is not used."""
        del engine
        return copy.deepcopy(self)

    def act(self, state: State) -> str:
        """Update the memory and return the first idea that is admissible."""
        self._memory.observe(state)
        for action in self._ideas():
            if action in self._memory.offered:
                return action
        self._memory.forget()
        return "look"

    def _ideas(self) -> Iterator[str]:
        """Yield ideas for the next action, best first."""
        goal = self._wish
        held = self._memory.held
        if held is None:
            yield from self._fetch(goal.thing)
        elif _kind(held) != goal.thing:
            yield from self._lay_down(held)
        elif goal.deed == "use":
            yield from self._light(goal.place)
        elif goal.deed and (goal.deed, held) not in self._memory.treated:
            yield from self._treat(held, goal.deed)
        else:
            yield from self._deliver(held)

    def _fetch(self, kind: str) -> Iterator[str]:
        target = self._target() if self._wish.count > 1 else None
        known = [(o, r) for o, r in self._memory.things(kind) if r != target]
        yield from (f"take {o} from {r}" for o, r in known)
        yield from self._reach(r for _, r in known)
        yield from self._search(kind)

    def _light(self, kind: str) -> Iterator[str]:
        known = list(self._memory.things(kind))
        yield from (f"use {lamp}" for lamp, _ in known)
        yield from self._reach(r for _, r in known)
        yield from self._search(kind)

    def _treat(self, held: str, deed: str) -> Iterator[str]:
        stations = [r for r in self._memory.contents if _kind(r) == STATIONS[deed]]
        yield from (f"{deed} {held} with {r}" for r in stations)
        yield from (f"go to {r}" for r in stations)

    def _deliver(self, held: str) -> Iterator[str]:
        target = self._target()
        if target is not None:
            yield from self._put(held, target)
            if (
                self._memory.is_here(target)
                and f"open {target}" not in self._memory.offered
            ):
                self._unfit.add(target)  # it does not accept the object
                yield from self._deliver(held)

    def _put(self, held: str, target: str) -> Iterator[str]:
        yield f"move {held} to {target}"
        yield f"put {held} in/on {target}"
        yield f"open {target}"
        yield f"go to {target}"

    def _lay_down(self, held: str) -> Iterator[str]:
        """Yield ideas to put the held object down: here if possible, else where such objects usually are."""
        yield from (
            action
            for action in sorted(self._memory.offered)
            if action.startswith((f"move {held} ", f"put {held} "))
        )
        usual = usual_places().get(_kind(held), {})

        def preference(r: str) -> tuple[bool, float]:
            return r in self._memory.shut, -usual.get(_kind(r), 0)

        for target in sorted(self._memory.contents, key=preference):
            if not self._memory.is_here(target):
                yield from self._put(held, target)

    def _target(self) -> str | None:
        """Return the target receptacle: the one with the most objects of the task, open ones first."""
        fit = [
            r
            for r in self._memory.contents
            if _kind(r) == self._wish.place and r not in self._unfit
        ]

        def preference(r: str) -> tuple[int, bool]:
            there = sum(
                _kind(o) == self._wish.thing for o in self._memory.contents[r] or ()
            )
            return -there, self._memory.maybe_shut(r)

        return min(fit, key=preference, default=None)

    def _reach(self, receptacles: Iterable[str]) -> Iterator[str]:
        for r in receptacles:
            yield from (
                (f"open {r}", f"go to {r}")
                if r in self._memory.shut
                else (f"go to {r}",)
            )

    def _search(self, kind: str) -> Iterator[str]:
        """Yield ideas to inspect unobserved receptacles, by descending probability per command."""
        unseen = self._memory.unseen()
        usual = usual_places().get(kind, {})
        alike = Counter(map(_kind, self._memory.contents))

        def worth(r: str) -> float:
            place = _kind(r)
            cost = (not self._memory.is_here(r)) + self._memory.maybe_shut(r)
            return -(usual.get(place, 0) + 0.1) / alike[place] / max(cost, 1)

        for r in sorted(unseen, key=worth):
            yield from (f"open {r}", f"go to {r}", f"examine {r}")
