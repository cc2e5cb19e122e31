"""Games: official `game.tw-pddl` files, compiled to a small immutable `Game`.

A file is JSON with `pddl_domain`, `grammar`, `pddl_problem`, `solvable`, and sometimes `walkthrough`. Objects,
receptacles and locations are identified by index, in the order of their lower-cased identifiers. This is the order in
which the environment lists them.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.alfworld.engine.goals import Goal, parse_goal
from hgpo_envs.alfworld.engine.grammar import Grammar, recognise, split_task
from hgpo_envs.alfworld.engine.state import NOTHING, Ability, GameState, Trait
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import parse_json, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    Facts = Mapping[str, list[tuple[str, ...]]]
    """The arguments of the initial facts by predicate."""

TEXTS: Final = ("pddl_domain", "grammar", "pddl_problem")
"""The text fields that every game file contains."""
STATIONS: Final = {
    "sinkbasin": Ability.CLEANABLE,
    "microwave": Ability.HEATABLE,
    "fridge": Ability.COOLABLE,
}
"""The ability that an object needs for the treatment in each kind of receptacle."""
LONGEST_FILE: Final = 4 << 20
"""The maximum size in bytes of a game file or a `traj_data.json`. The largest official one has 139 kB."""
KNIVES: Final = frozenset({"knife", "butterknife"})


@dataclass(frozen=True, eq=False)
class Game:
    """A compiled game. Objects, receptacles and locations are indices into the tuples.

    Attributes:
        object_ids: The lower-cased identifiers, sorted; likewise `receptacle_ids`.
        object_names: The names in observations ("mug 1"); likewise `receptacle_names` and `location_names`.
        object_types: The types in lower case without the ending "type" ("mug"); likewise `receptacle_types`.
        abilities: For each object, an `Ability` as int.
        nested: For each container object, the objects inside it, which never change.
        openable: For each receptacle, whether it can be opened.
        places: For each receptacle, its location, or `NOTHING` if it has none and cannot be reached.
        accepts: For each receptacle, the types of objects that it accepts.
        receptacles_at: For each location, its receptacles.
        start: The initial state.
        goal: The goal.
        wanted: The objects of the goal's kind that have its required ability.
        targets: The receptacles of the goal's kind.
        lamps: The lamps of the goal's kind.
        task: The task sentence, which follows "Your task is to: " in the first observation.
        grammar: The wording of commands and observations.
        walkthrough: Commands that win the game, or None if the file contains none.
    """

    object_ids: tuple[str, ...]
    object_names: tuple[str, ...]
    object_types: tuple[str, ...]
    abilities: tuple[int, ...]
    nested: Mapping[int, tuple[int, ...]]
    receptacle_ids: tuple[str, ...]
    receptacle_names: tuple[str, ...]
    receptacle_types: tuple[str, ...]
    openable: tuple[bool, ...]
    places: tuple[int, ...]
    accepts: tuple[frozenset[str], ...]
    location_names: tuple[str, ...]
    receptacles_at: tuple[tuple[int, ...], ...]
    start: GameState
    goal: Goal
    wanted: frozenset[int]
    targets: tuple[int, ...]
    lamps: frozenset[int]
    task: str
    grammar: Grammar
    walkthrough: tuple[str, ...] | None = None
    cache: dict[str, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Data that engines derive from the game and share."""


def read_file(path: Path) -> dict[str, Any]:
    """Return the JSON object of a game file.

    Raises:
        InputError: If the file is missing, cannot be read, or is not a game.
    """
    if not os.path.lexists(path):
        raise InputError(f"no game at {path}: expected a game.tw-pddl file")
    content = read_bytes(path, LONGEST_FILE, "game.tw-pddl file")
    try:
        return checked(parse_json(content))
    except InputError as error:
        raise InputError(f"{path}: {error}; copy or fetch the game again") from None


def checked(data: object) -> dict[str, Any]:
    """Return the JSON object of a game file.

    Raises:
        InputError: If it is not a game. The message does not name the file.
    """
    if not isinstance(data, dict) or not all(
        isinstance(data.get(key), str) for key in TEXTS
    ):
        raise InputError(
            f"not a game: expected a JSON object with the texts {', '.join(TEXTS)}"
        )
    walkthrough = data.get("walkthrough")
    if walkthrough is not None and not (
        isinstance(walkthrough, list)
        and all(isinstance(command, str) for command in walkthrough)
    ):
        raise InputError("not a game: expected `walkthrough` to be a list of texts")
    return data


def compile_game(data: Mapping[str, Any], where: str = "the game") -> Game:
    """Compile the JSON object of a game file.

    Args:
        data: The fields `pddl_domain`, `grammar`, `pddl_problem` and optionally `walkthrough`.
        where: The name of the game in errors.

    Raises:
        InputError: If the game is inconsistent, or if the rules engine does not support it.
    """
    try:
        wording, task = split_task(data["grammar"])
        grammar = recognise(data["pddl_domain"], wording)
        return compile_problem(
            data["pddl_problem"], grammar, task, data.get("walkthrough")
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        # a damaged problem can be inconsistent in many ways, so these errors share one message
        raise InputError(
            f"{where}: the game is inconsistent ({type(error).__name__}: {one_line(error)})"
        ) from None


def compile_problem(
    problem: str, grammar: Grammar, task: str, walkthrough: Iterable[str] | None = None
) -> Game:
    """Compile a planning problem of the ALFWorld domain.

    Args:
        problem: The PDDL problem.
        grammar: The wording.
        task: The task sentence.
        walkthrough: Commands that win the game, or None.

    Raises:
        InputError: If the rules engine does not support the problem.
    """
    facts, indices, wish = _parsed(problem)
    objects = indices["object"]
    receptacles = indices["receptacle"]
    locations = indices["location"]
    names = display_names([*objects, *receptacles, *locations])
    located = _values(facts["receptacleatlocation"], receptacles, "locations")
    places = tuple(locations[location] if location else NOTHING for location in located)
    kinds = _values(facts["objecttype"], objects, "types")
    object_types = tuple(sys.intern(kind.removesuffix("type")) for kind in kinds)
    kinds = _values(facts["receptacletype"], receptacles, "types")
    receptacle_types = tuple(sys.intern(kind.removesuffix("type")) for kind in kinds)
    held_types = defaultdict(set)
    for receptacle_type, object_type in facts["cancontain"]:
        held_types[receptacle_type.removesuffix("type")].add(
            object_type.removesuffix("type")
        )
    frozen = {name: frozenset(held) for name, held in held_types.items()}
    openable = {name for (name,) in facts["openable"]}
    nested = defaultdict(list)
    for inner, outer in sorted(set(facts["inreceptacleobject"])):
        nested[objects[outer]].append(objects[inner])
    abilities = [0] * len(objects)
    traits = [0] * len(objects)
    for values, flags in ((abilities, _ABILITY_FACTS), (traits, _TRAIT_FACTS)):
        for predicate, flag in flags.items():
            for (name,) in facts[predicate]:
                values[objects[name]] |= flag.value
    goal = parse_goal(wish)
    return Game(
        object_ids=tuple(objects),
        object_names=tuple(names[name] for name in objects),
        object_types=object_types,
        abilities=tuple(abilities),
        nested={outer: tuple(inner) for outer, inner in nested.items()},
        receptacle_ids=tuple(receptacles),
        receptacle_names=tuple(names[name] for name in receptacles),
        receptacle_types=receptacle_types,
        openable=tuple(name in openable for name in receptacles),
        places=places,
        accepts=tuple(frozen.get(name, frozenset()) for name in receptacle_types),
        location_names=tuple(names[name] for name in locations),
        receptacles_at=tuple(
            tuple(r for r, place in enumerate(places) if place == location)
            for location in range(len(locations))
        ),
        start=_start(facts, indices, traits),
        goal=goal,
        wanted=frozenset(
            o
            for o, kind in enumerate(object_types)
            if kind == goal.object_type and abilities[o] & goal.ability == goal.ability
        ),
        targets=tuple(
            r for r, kind in enumerate(receptacle_types) if kind == goal.receptacle_type
        ),
        lamps=frozenset(
            o
            for o, kind in enumerate(object_types)
            if kind == goal.lamp_type and abilities[o] & Ability.TOGGLEABLE
        ),
        task=task,
        grammar=grammar,
        walkthrough=None if walkthrough is None else tuple(walkthrough),
    )


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Return the name of each identifier in observations: its kind and a number, in descending order.

    >>> display_names(["mug_bar__plus_01", "mug_bar__plus_02", "sink_bar_1_bar_sinkbasin"])
    {'mug_bar__plus_01': 'mug 2', 'mug_bar__plus_02': 'mug 1', 'sink_bar_1_bar_sinkbasin': 'sinkbasin 1'}
    """
    kinds = {}
    for identifier in sorted(ids):
        kind, bar, _ = identifier.partition("_bar_")
        kinds[identifier] = (
            kind + ("basin" if bar and "basin" in identifier else "") if bar else ""
        )
    left = Counter(kinds.values())
    names = {}
    for identifier, kind in kinds.items():
        names[identifier] = sys.intern(
            f"{kind} {left[kind]}" if kind else f"{identifier} "
        )
        left[kind] -= 1
    return names


_FACT = re.compile(r"\(([^()]+)\)")
_KNOWN: Final = {
    "atlocation": 2, "receptacleatlocation": 2, "objectatlocation": 2, "openable": 1, "opened": 1, "inreceptacle": 2,
    "isreceptacleobject": 1, "inreceptacleobject": 2, "receptacletype": 2, "objecttype": 2, "cancontain": 2,
    "isclean": 1, "cleanable": 1, "ishot": 1, "heatable": 1, "iscool": 1, "coolable": 1, "pickupable": 1,
    "toggleable": 1, "istoggled": 1, "sliceable": 1, "issliced": 1,
    # declared in the domain but not used by any rule
    "isreceptacleobjectfull": 1, "wasinreceptacle": 2, "checked": 1, "examined": 1, "full": 1, "moveable": 1, "ison": 1,
}  # fmt: skip
"""The predicates of initial facts and their numbers of arguments."""


def _parsed(problem: str) -> tuple[Facts, dict[str, dict[str, int]], str]:
    """Parse a planning problem.

    Returns:
        The initial facts by predicate; the sorted names in them with their indices, by declared type; and the text of
        the goal. Names that are only declared are ignored.
    """
    text = problem.lower()
    try:
        _, rest = text.split("(:objects", 1)
        objects, rest = rest.split("(:init", 1)
        initial, goal = rest.split("(:goal", 1)
    except ValueError:
        raise InputError(
            "expected a problem with :objects, :init and :goal, in this order"
        ) from None
    # 1. The facts.
    if "(not" in initial or "(=" in initial:
        raise InputError(
            "the problem's :init contains a negation or a number, which the engine does not support"
        )
    facts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for fact in _FACT.findall(initial):
        predicate, *arguments = fact.split()
        facts[predicate].append(tuple(arguments))
    for predicate, rows in facts.items():
        if predicate not in _KNOWN or any(
            len(row) != _KNOWN[predicate] for row in rows
        ):
            raise InputError(
                f"the problem's :init contains an unsupported fact: {predicate}{rows[0]}"
            )
    # 2. The types, each of which follows the names that it is declared for.
    kinds: dict[str, str] = {}
    waiting: list[str] = []
    words = iter(objects.replace(")", " ").split())
    for word in words:
        if word == "-":
            kind = next(words, "")
            kinds.update(dict.fromkeys(waiting, kind))
            waiting.clear()
        else:
            waiting.append(word)
    # 3. The names.
    mentioned = sorted(
        {name for rows in facts.values() for row in rows for name in row}
    )
    indices: dict[str, dict[str, int]] = {
        "object": {},
        "receptacle": {},
        "location": {},
    }
    for name in mentioned:
        if name not in kinds:
            raise InputError(f"the problem uses {name!r} without declaring it")
        of_kind = indices.get(kinds[name], {})  # agents need none
        of_kind[name] = len(of_kind)
    return facts, indices, goal


def _values(rows: list[tuple[str, ...]], names: Iterable[str], noun: str) -> list[str]:
    """Return the value that facts of a name and a value have for each name; empty if there is none."""
    values: dict[str, str] = {}
    for name, value in rows:
        if values.setdefault(name, value) != value:
            raise InputError(
                f"{name} has two {noun}, which the engine does not support"
            )
    return [values.get(name, "") for name in names]


_ABILITY_FACTS: Final = {
    "pickupable": Ability.PICKUPABLE,
    "cleanable": Ability.CLEANABLE,
    "heatable": Ability.HEATABLE,
    "coolable": Ability.COOLABLE,
    "toggleable": Ability.TOGGLEABLE,
    "sliceable": Ability.SLICEABLE,
    "isreceptacleobject": Ability.CONTAINER,
}
_TRAIT_FACTS: Final = {
    "isclean": Trait.CLEAN,
    "ishot": Trait.HOT,
    "iscool": Trait.COOL,
    "issliced": Trait.SLICED,
    "istoggled": Trait.TOGGLED,
}


def _start(
    facts: Facts, indices: Mapping[str, Mapping[str, int]], traits: list[int]
) -> GameState:
    at = {location for _, location in facts["atlocation"]}
    if len(at) != 1:
        raise InputError(
            f"expected one initial location of the agent, received {len(at)}"
        )
    objects = indices["object"]
    receptacles = indices["receptacle"]
    locations = indices["location"]
    contents: list[set[int]] = [set() for _ in receptacles]
    for name, receptacle in facts["inreceptacle"]:
        contents[receptacles[receptacle]].add(objects[name])
    spots: list[set[int]] = [set() for _ in objects]
    for name, location in facts["objectatlocation"]:
        spots[objects[name]].add(locations[location])
    opened = {name for (name,) in facts["opened"]}
    return GameState(
        location=locations[at.pop()],
        held=NOTHING,
        contents=[tuple(sorted(inside)) for inside in contents],
        opened=[name in opened for name in receptacles],
        spots=[frozenset(spot) for spot in spots],
        traits=traits,
        emptied=set(),
    )
