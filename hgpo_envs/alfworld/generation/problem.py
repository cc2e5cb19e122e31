"""Conversion of a drafted game to the official format: `game.tw-pddl` and `traj_data.json`.

The planning domain and the text grammar are ALFWorld's own (`bundled/alfred.pddl`, `bundled/alfred.twl2`; MIT, NOTICE),
so that the original can play the same files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.alfworld.data.rooms import load_rooms
from hgpo_envs.alfworld.engine.grammar_parts import bundled
from hgpo_envs.alfworld.generation.draft import STATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_envs.alfworld.generation.draft import GameDraft

PLACEHOLDER: Final = "Your task is to: UNKNOWN GOAL."
NAMED_THINGS: Final = ("Knife", "ButterKnife")
"""Kinds that the domain refers to, so that every problem must declare them; likewise `NAMED_PLACES`."""
NAMED_PLACES: Final = ("SinkBasin", "Microwave", "Fridge")
TRAITS: Final = {
    "pick_clean_then_place_in_recep": ("cleanable", "isClean"),
    "pick_heat_then_place_in_recep": ("heatable", "isHot"),
    "pick_cool_then_place_in_recep": ("coolable", "isCool"),
}
_CODES: Final = (("|", "_bar_"), ("+", "_plus_"), ("-", "_minus_"), (".", "_dot_"))


def mangle(name: str) -> str:
    """Encode an identifier for PDDL.

    >>> mangle("Mug|-00.10|+01.20|00.00")
    'Mug_bar__minus_00_dot_10_bar__plus_01_dot_20_bar_00_dot_00'
    """
    for sign, code in _CODES:
        name = name.replace(sign, code)
    return name


def game_data(draft: GameDraft, walkthrough: list[str] | None = None) -> dict[str, Any]:
    """Return the content of `game.tw-pddl`.

    Args:
        draft: The game.
        walkthrough: Commands that win it. If None, the game is not marked solvable.
    """
    domain, grammar = bundled()
    data: dict[str, Any] = {
        "pddl_domain": domain,
        "grammar": grammar.replace(PLACEHOLDER, f"Your task is to: {draft.sentence}"),
        "pddl_problem": problem_text(draft),
        "solvable": walkthrough is not None,
    }
    return data if walkthrough is None else {**data, "walkthrough": walkthrough}


def traj_data(draft: GameDraft) -> dict[str, Any]:
    """Return the content of `traj_data.json`: the fields that the original reads."""
    task = draft.task
    light = task.task_type == "look_at_obj_in_light"
    return {
        "task_id": draft.trial,
        "task_type": task.task_type,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": task.object,
            "parent_target": "" if light else task.place,
            "toggle_target": task.place if light else "",
        },
        "scene": {"floor_plan": f"FloorPlan{task.scene}", "scene_num": task.scene},
        "turk_annotations": {
            "anns": [{"task_desc": draft.sentence, "high_descs": [], "votes": [1]}]
        },
    }


def problem_text(draft: GameDraft) -> str:
    """Return the PDDL problem: objects, initial facts and goal."""
    lines = [
        "",
        f"(define (problem plan_{draft.trial})",
        "(:domain alfred)",
        "(:objects",
        *_objects(draft),
        ")",
        "(:init",
        *(f"({' '.join(fact)})" for fact in _facts(draft)),
        ")",
        _goal(draft),
        ")",
        "",
    ]
    return "\n".join(lines)


def _kinds(draft: GameDraft) -> tuple[list[str], list[str]]:
    """Return the kinds of objects and of receptacles that a problem declares."""
    things = {
        *NAMED_THINGS,
        *(t.kind for t in draft.things),
        *(kind for kind, _, _ in draft.room.fixtures),
    }
    return sorted(things), sorted({*NAMED_PLACES, *draft.room.by_kind})


def _objects(draft: GameDraft) -> Iterator[str]:
    things, places = _kinds(draft)
    room = draft.room
    yield "agent1 - agent"
    yield from (f"{kind}Type - otype" for kind in things)
    yield from (f"{kind}Type - rtype" for kind in places)
    yield from (
        f"{mangle(f'{kind}|{position}')} - object"
        for kind, position, _ in room.fixtures
    )
    yield from (f"{mangle(thing.name)} - object" for thing in draft.things)
    yield from (
        f"{mangle(receptacle.name)} - receptacle" for receptacle in room.receptacles
    )
    locations = sorted(
        {draft.start, *(receptacle.location for receptacle in room.receptacles)}
    )
    yield from (f"{_location(location)} - location" for location in locations)


def _location(location: str) -> str:
    return mangle(f"loc|{location}")


def _facts(draft: GameDraft) -> Iterator[tuple[str, ...]]:
    yield "atLocation", "agent1", _location(draft.start)
    for receptacle in draft.room.receptacles:
        name = mangle(receptacle.name)
        yield "receptacleType", name, f"{receptacle.kind}Type"
        yield "receptacleAtLocation", name, _location(receptacle.location)
        if receptacle.openable:
            yield "openable", name
    for kind, position, lies_on in draft.room.fixtures:
        yield from _thing_facts(kind, f"{kind}|{position}", lies_on, draft)
    for thing in draft.things:
        yield from _thing_facts(thing.kind, thing.name, thing.lies_on, draft)
        if thing.name in draft.cold:
            yield "isCool", mangle(thing.name)
    for inner, outer in draft.nested:
        yield "inReceptacleObject", mangle(inner), mangle(outer)
    things, places = _kinds(draft)
    holds = load_rooms().holds
    yield from (
        ("canContain", f"{place}Type", f"{kind}Type")
        for place in places
        for kind in things
        if kind in holds.get(place, ())
    )


def _thing_facts(
    kind: str, name: str, lies_on: tuple[int, ...], draft: GameDraft
) -> Iterator[tuple[str, ...]]:
    name = mangle(name)
    receptacles = [draft.room.receptacles[i] for i in lies_on]
    yield "objectType", name, f"{kind}Type"
    yield from (
        (attribute, name) for attribute in sorted(load_rooms().attributes.get(kind, ()))
    )
    yield from (
        ("inReceptacle", name, mangle(receptacle.name)) for receptacle in receptacles
    )
    if receptacles:
        yield "objectAtLocation", name, _location(receptacles[0].location)


def _goal(draft: GameDraft) -> str:
    """Return the goal, with the conditions of the official games in the same order."""
    task = draft.task
    place = f"(receptacleType ?r {task.place}Type)"
    thing = f"(objectType ?o {task.object}Type)"
    if task.task_type == "look_at_obj_in_light":
        lamp = (
            f"(objectType ?ot {task.place}Type) (toggleable ?ot) (isToggled ?ot) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)"
        )
        return (
            f"(:goal (and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and {lamp})) "
            f"(exists (?o - object ?a - agent) (and {thing} (holds ?a ?o)))))"
        )
    if task.task_type == "pick_two_obj_and_place":

        def placed(variable: str) -> str:
            return (
                f"{thing.replace('?o', variable)} {place} (inReceptacle {variable} ?r)"
            )

        second = f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {placed('?o2')}))"
        return f"(:goal (and (exists (?r - receptacle) (exists (?o1 - object) (and {placed('?o1')} {second})))))"
    if task.task_type in STATION:
        able, done = TRAITS[task.task_type]
        wanted = f"({able} ?o) {thing} {place} ({done} ?o) (inReceptacle ?o ?r)"
    else:
        wanted = f"(inReceptacle ?o ?r) {thing} {place}"
    return f"(:goal (and (exists (?r - receptacle) (exists (?o - object) (and {wanted})))))"
