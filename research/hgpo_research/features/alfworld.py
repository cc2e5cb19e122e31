"""Features of ALFWorld's commands for the policy `softmax`, from what a prompt shows.

These features know of the room only what the observation and the visible history say: whether the held object was
treated, for example, only while the history shows it.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from math import log, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

from hgpo_envs.alfworld.players.explorer import (
    STATIONS,
    ParsedInstruction,
    parse_instruction,
    usual_places,
)
from hgpo_envs.errors import InputError
from hgpo_research.features.words import repetitions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_envs.memory import Pair
    from hgpo_research.features.words import Features

_NAME: Final = r"[a-z]+ \d+"
_COMMANDS: Final = (
    ("go", re.compile(rf"go to (?P<place>{_NAME})")),
    ("open", re.compile(rf"open (?P<place>{_NAME})")),
    (
        "take",
        re.compile(rf"take (?P<thing>{_NAME}) from (?P<place>{_NAME})"),
    ),
    (
        "put",
        re.compile(rf"(?:move|put) (?P<thing>{_NAME}) (?:to|in/on) (?P<place>{_NAME})"),
    ),
    (
        "treat",
        re.compile(
            rf"(?P<deed>clean|heat|cool) (?P<thing>{_NAME}) with (?P<place>{_NAME})"
        ),
    ),
    ("use", re.compile(rf"use (?P<thing>{_NAME})")),
    ("examine", re.compile(rf"examine (?P<thing>{_NAME})")),
)
_NO_GOAL: Final = ParsedInstruction("", "", "", 1)
_SHOWN: Final = re.compile(
    rf"(?:On the ({_NAME})|The ({_NAME}) is open\. In it), you see ([^.]*)\."
)
_TREATED: Final = re.compile(rf"You (clean|heat|cool) the ({_NAME}) using the ")
_LEAST: Final = 6.0
"""Receptacles that are less likely than the best by this many nats or more have the same feature `search`."""


class _Command(NamedTuple):
    """A parsed command. Missing parts are empty."""

    verb: str
    thing: str = ""
    place: str = ""
    deed: str = ""


@lru_cache(maxsize=1 << 14)
def _parse(command: str) -> _Command:
    for verb, pattern in _COMMANDS:
        if match := pattern.fullmatch(command):
            return _Command(verb, **match.groupdict())
    return _Command("other")


class _Seen(NamedTuple):
    """What a text says: the kinds of objects in each receptacle, and treated objects with their treatments."""

    inside: Mapping[str, frozenset[str]]
    treated: frozenset[tuple[str, str]]


@lru_cache(maxsize=1 << 12)
def _read(text: str) -> _Seen:
    inside = {
        match[1] or match[2]: frozenset(map(_kind, re.findall(_NAME, match[3])))
        for match in _SHOWN.finditer(text)
    }
    return _Seen(
        inside,
        frozenset((match[1], match[2]) for match in _TREATED.finditer(text)),
    )


def _kind(name: str) -> str:
    return name.partition(" ")[0]


@lru_cache(maxsize=256)
def _goal(instruction: str) -> ParsedInstruction | None:
    """Return the parsed instruction; None for a sentence that is not ALFWorld's."""
    try:
        return parse_instruction(instruction)
    except InputError:
        return None


@lru_cache(maxsize=1)
def _receptacle_kinds() -> frozenset[str]:
    return frozenset(place for places in usual_places().values() for place in places)


class CommandFeatures:
    """Features of ALFWorld's commands (`hgpo_research.features.words.ActionFeatures`). The values are 1 unless stated.

    - take, deliver, treat, use: the command that the task needs next, as far as the prompt shows; `deliver` and
      `treat` do not require that the lamp, the station or the receptacle was searched for
    - deliver_early: put the object into its receptacle, although the prompt does not show that it was treated
    - lay_down: put down an object that the task does not need
    - find: go to a receptacle in which the prompt shows the object (or the lamp)
    - search: go to a receptacle to look for the object; 1 for the likeliest, down to 0 for unlikely ones
    - look_inside: open the receptacle here
    - station: go to where the held object can be treated
    - target: go to a receptacle of the task; less for higher numbers, so that two objects meet in one receptacle
    - searched: go to a receptacle whose content the prompt shows, without what is needed
    - mistake: take, put, treat or use something against the task
    - idle: a command that changes nothing
    - repeated: how often the history contains the command at the same observation
    """

    weights: Mapping[str, float] = {
        "take": 6.0,
        "deliver": 6.0,
        "treat": 6.0,
        "use": 6.0,
        "deliver_early": 1.0,
        "lay_down": 3.0,
        "find": 5.0,
        "search": 3.0,
        "look_inside": 5.0,
        "station": 5.0,
        "target": 5.0,
        "searched": -3.0,
        "mistake": -2.0,
        "idle": -2.0,
        "repeated": -2.0,
    }

    def read(
        self, instruction: str, observation: str, actions: tuple[str, ...]
    ) -> _CommandsOfState:
        """See `ActionFeatures`."""
        return _CommandsOfState(instruction, observation, actions)


_MISTAKE: Final = {"mistake": 1.0}
_IDLE: Final = {"idle": 1.0}
_SEARCHED: Final = {"searched": 1.0}
_NONE: Final[Features] = {}


class _CommandsOfState:
    """The features of a state's commands (`hgpo_research.features.words.StateFeatures`).

    A history adds the contents of receptacles, which only the commands to go there depend on, and treatments of the
    held object, on which `ready` depends: whether the object can be delivered.
    """

    def __init__(
        self, instruction: str, observation: str, actions: tuple[str, ...]
    ) -> None:
        self._observation = observation
        self._goal = _goal(instruction) or _NO_GOAL
        self._held = _held(actions)
        self._has_goal = _kind(self._held) == self._goal.thing
        self._lighting = self._has_goal and self._goal.deed == "use"
        self._wanted = self._goal.place if self._lighting else self._goal.thing
        self._seen = _read(observation)
        self._search = _search(self._wanted, actions)
        self._commands = {action: _parse(action) for action in actions}
        self._going = {
            command.place: action
            for action, command in self._commands.items()
            if command.verb == "go"
        }
        # Who holds something, and needs no lamp, looks for nothing.
        self._searching = self._lighting or not self._held
        treatment = (self._goal.deed, self._held)
        treated = self._goal.deed not in STATIONS or treatment in self._seen.treated
        self._ready = self._has_goal and not self._lighting and treated
        self._missing = treatment if self._has_goal and not treated else None
        self.choices: Mapping[str, Features] = self._features(ready=self._ready)

    def changes(self, history: Sequence[Pair]) -> dict[str, Features]:
        """See `StateFeatures`."""
        inside: dict[str, frozenset[str]] = {}
        treated = False
        for _, text, _ in history:
            seen = _read(text)
            inside.update(seen.inside)
            treated = treated or self._missing in seen.treated
        changed: dict[str, Features] = {}
        # A treatment changes what the held object is good for, and so all commands.
        if treated:
            changed = self._features(ready=True)
        # Contents of receptacles matter to who looks for something, and only to the commands that go there.
        elif self._searching:
            for place, kinds in inside.items():
                if place in self._going and place not in self._seen.inside:
                    changed[self._going[place]] = self._go(
                        place, kinds, ready=self._ready
                    )
        for action, times in repetitions(self._observation, history).items():
            if action in self.choices:
                changed[action] = {
                    **changed.get(action, self.choices[action]),
                    "repeated": float(times),
                }
        return changed

    def _features(self, *, ready: bool) -> dict[str, Features]:
        return {
            action: self._of(command, ready=ready)
            for action, command in self._commands.items()
        }

    def _of(self, command: _Command, *, ready: bool) -> Features:
        """Return the features of a command."""
        verb = command.verb
        goal = self._goal
        if verb == "go":
            return self._go(
                command.place,
                self._seen.inside.get(command.place),
                ready=ready,
            )
        if verb == "take":
            needed = _kind(command.thing) == goal.thing and (
                goal.deed != "" or _kind(command.place) != goal.place
            )
            return {"take": 1.0} if needed else _MISTAKE
        if verb == "put":
            return self._put(command.place, ready=ready)
        if verb == "treat":
            return (
                {"treat": 1.0}
                if self._has_goal and command.deed == goal.deed and not ready
                else _MISTAKE
            )
        if verb == "use":
            return (
                {"use": 1.0}
                if self._lighting and _kind(command.thing) == goal.place
                else _MISTAKE
            )
        if verb == "open":
            sought = (
                not self._has_goal
                or self._lighting
                or (ready and _kind(command.place) == goal.place)
            )
            return {"look_inside": 1.0} if sought else _NONE
        return _IDLE

    def _put(self, place: str, *, ready: bool) -> Features:
        if not self._has_goal:
            return {"lay_down": 1.0}
        if _kind(place) != self._goal.place or self._lighting:
            return _MISTAKE
        return {"deliver": 1.0} if ready else {"deliver_early": 1.0}

    def _go(
        self, place: str, inside: frozenset[str] | None, *, ready: bool
    ) -> Features:
        """Return the features of going to a place.

        Args:
            place: The receptacle.
            inside: The kinds of objects that the prompt shows in it; None if it does not show them.
            ready: Whether the held object can be delivered.
        """
        kind, _, number = place.partition(" ")
        if self._has_goal and not self._lighting:
            if ready:
                return (
                    {"target": 1 / sqrt(sqrt(int(number)))}
                    if kind == self._goal.place
                    else _NONE
                )
            return {"station": 1.0} if kind == STATIONS.get(self._goal.deed) else _NONE
        # A wrong object is put down here, not carried around.
        if self._held and not self._has_goal:
            return _NONE
        if self._goal.count > 1 and kind == self._goal.place:
            return _SEARCHED  # what lies there has been delivered
        if inside is None:
            return self._search[place]
        return {"find": 1.0} if self._wanted in inside else _SEARCHED


@lru_cache(maxsize=1 << 12)
def _held(actions: tuple[str, ...]) -> str:
    """Return the held object, which can always be examined; empty if there is none."""
    # Receptacles can be examined as well: what is none of these is in the hand.
    examined = (
        command.thing for command in map(_parse, actions) if command.verb == "examine"
    )
    return next(
        (name for name in examined if _kind(name) not in _receptacle_kinds()),
        "",
    )


@lru_cache(maxsize=1 << 12)
def _search(thing: str, actions: tuple[str, ...]) -> dict[str, Features]:
    """Return the feature `search` of each receptacle that can be reached, for a kind of object."""
    places = [command.place for command in map(_parse, actions) if command.verb == "go"]
    alike = Counter(map(_kind, places))
    usual = usual_places().get(thing, {})
    # As likely as the place is usual for the thing, divided among places of its kind. The 0.1 keeps every place
    # possible, and its logarithm finite.
    worth = {
        place: (usual.get(_kind(place), 0.0) + 0.1) / alike[_kind(place)]
        for place in places
    }
    best = max(worth.values(), default=1.0)
    return {
        place: {"search": max(0.0, 1 + log(value / best) / _LEAST)}
        for place, value in worth.items()
    }
