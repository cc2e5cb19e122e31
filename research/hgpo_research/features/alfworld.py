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

from hgpo_envs.alfworld.players.explorer import STATIONS, ParsedInstruction, parse_instruction, usual_places
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
    ("take", re.compile(rf"take (?P<thing>{_NAME}) from (?P<place>{_NAME})")),
    ("put", re.compile(rf"(?:move|put) (?P<thing>{_NAME}) (?:to|in/on) (?P<place>{_NAME})")),
    ("treat", re.compile(rf"(?P<deed>clean|heat|cool) (?P<thing>{_NAME}) with (?P<place>{_NAME})")),
    ("use", re.compile(rf"use (?P<thing>{_NAME})")),
    ("examine", re.compile(rf"examine (?P<thing>{_NAME})")),
)
_NO_GOAL: Final = ParsedInstruction("", "", "", 1)
_SHOWN: Final = re.compile(rf"(?:On the ({_NAME})|The ({_NAME}) is open\. In it), you see ([^.]*)\.")
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
        match[1] or match[2]: frozenset(map(_kind, re.findall(_NAME, match[3]))) for match in _SHOWN.finditer(text)
    }
    return _Seen(inside, frozenset((match[1], match[2]) for match in _TREATED.finditer(text)))


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

    def choices(self, instruction: str, observation: str, actions: tuple[str, ...]) -> dict[str, Features]:
        """See `ActionFeatures`."""
        situation = _Situation(_here(instruction, observation, actions), ())
        return {action: situation.features(_parse(action)) for action in actions}

    def changes(
        self, instruction: str, observation: str, actions: tuple[str, ...], history: Sequence[Pair]
    ) -> dict[str, Features]:
        """See `ActionFeatures`."""
        if not history:
            return {}
        situation = _Situation(_here(instruction, observation, actions), history)
        changed = situation.actions_changed()
        times = repetitions(observation, history)
        if times:
            changed |= times.keys()
        found = {action: situation.features(_parse(action)) for action in changed.intersection(actions)}
        for action in times.keys() & found.keys():
            found[action] = {**found[action], "repeated": float(times[action])}
        return found


_MISTAKE: Final = {"mistake": 1.0}
_IDLE: Final = {"idle": 1.0}
_SEARCHED: Final = {"searched": 1.0}
_NONE: Final[Features] = {}


class _Here(NamedTuple):
    """What a state shows without a history.

    Attributes:
        goal: The parsed instruction.
        actions: The admissible actions.
        held: The held object; empty if there is none.
        has_goal: Whether the task needs it.
        lighting: Whether it is to be examined under a lamp.
        wanted: The kind of thing to look for.
        seen: What the observation says.
        search: The feature `search` of each receptacle.
    """

    goal: ParsedInstruction
    actions: tuple[str, ...]
    held: str
    has_goal: bool
    lighting: bool
    wanted: str
    seen: _Seen
    search: Mapping[str, Features]


@lru_cache(maxsize=1 << 12)
def _here(instruction: str, observation: str, actions: tuple[str, ...]) -> _Here:
    goal, held = _goal(instruction) or _NO_GOAL, _held(actions)
    has_goal = held.partition(" ")[0] == goal.thing
    lighting = has_goal and goal.deed == "use"
    wanted = goal.place if lighting else goal.thing
    return _Here(goal, actions, held, has_goal, lighting, wanted, _read(observation), _search(wanted, actions))


class _Situation:
    """What the prompt shows: the state, the contents of receptacles, and treatments."""

    def __init__(self, here: _Here, history: Sequence[Pair]) -> None:
        self.goal, self.actions, held, self.has_goal, self.lighting, self.wanted, now, self.search = here
        deed = self.goal.deed
        if not history:
            self.inside, treated = now.inside, False
        else:
            inside, treated = dict[str, frozenset[str]](), False
            for _, text, _ in history:
                seen = _read(text)
                inside.update(seen.inside)
                treated = treated or (deed, held) in seen.treated
            inside.update(now.inside)
            self.inside = inside
        self.held, self.treated_before = held, treated
        treated = treated or (deed, held) in now.treated
        self.ready = self.has_goal and (treated if deed in STATIONS else deed != "use")

    def actions_changed(self) -> set[str]:
        """Return commands that include those whose features the history changes, apart from repetitions."""
        if self.treated_before and self.has_goal:
            return set(self.actions)
        return {f"go to {place}" for place in self.inside}

    def features(self, command: _Command) -> Features:
        """Return the features of a command, without repetitions."""
        verb, goal = command.verb, self.goal
        if verb == "go":
            return self._going(command.place)
        if verb == "take":
            needed = _kind(command.thing) == goal.thing and (goal.deed != "" or _kind(command.place) != goal.place)
            return {"take": 1.0} if needed else _MISTAKE
        if verb == "put":
            return self._putting(command.place)
        if verb == "treat":
            return {"treat": 1.0} if self.has_goal and command.deed == goal.deed and not self.ready else _MISTAKE
        if verb == "use":
            return {"use": 1.0} if self.lighting and _kind(command.thing) == goal.place else _MISTAKE
        if verb == "open":
            sought = not self.has_goal or self.lighting or (self.ready and _kind(command.place) == goal.place)
            return {"look_inside": 1.0} if sought else _NONE
        return _IDLE

    def _putting(self, place: str) -> Features:
        if not self.has_goal:
            return {"lay_down": 1.0}
        if _kind(place) != self.goal.place or self.lighting:
            return _MISTAKE
        return {"deliver": 1.0} if self.ready else {"deliver_early": 1.0}

    def _going(self, place: str) -> Features:
        kind, _, number = place.partition(" ")
        if self.has_goal and not self.lighting:
            if self.ready:
                return {"target": 1 / sqrt(sqrt(int(number)))} if kind == self.goal.place else _NONE
            return {"station": 1.0} if kind == STATIONS.get(self.goal.deed) else _NONE
        if self.held and not self.has_goal:
            return _NONE
        if self.goal.count > 1 and kind == self.goal.place:
            return _SEARCHED  # what lies there has been delivered
        inside = self.inside.get(place)
        if inside is None:
            return self.search[place]
        return {"find": 1.0} if self.wanted in inside else _SEARCHED


@lru_cache(maxsize=1 << 12)
def _held(actions: tuple[str, ...]) -> str:
    """Return the held object, which can always be examined; empty if there is none."""
    examined = (command.thing for command in map(_parse, actions) if command.verb == "examine")
    return next((name for name in examined if _kind(name) not in _receptacle_kinds()), "")


@lru_cache(maxsize=1 << 12)
def _search(thing: str, actions: tuple[str, ...]) -> dict[str, Features]:
    """Return the feature `search` of each receptacle that can be reached, for a kind of object."""
    places = [command.place for command in map(_parse, actions) if command.verb == "go"]
    alike = Counter(map(_kind, places))
    usual = usual_places().get(thing, {})
    worth = {place: (usual.get(_kind(place), 0.0) + 0.1) / alike[_kind(place)] for place in places}
    best = max(worth.values(), default=1.0)
    return {place: {"search": max(0.0, 1 + log(value / best) / _LEAST)} for place, value in worth.items()}
