"""Goals, parsed from a game's planning problem. There are six forms, one for each task type."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from hgpo_envs.alfworld.engine.state import Ability, Trait
from hgpo_envs.errors import InputError

TASK_TYPES: Final = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The benchmark's six task types in its order."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a game.

    Attributes:
        task_type: One of `TASK_TYPES`.
        object_type: The kind of object to bring, or to hold under a lamp.
        receptacle_type: The kind of the target receptacle. Empty for goals with a lamp.
        lamp_type: The kind of lamp. Empty for other goals.
        trait: The required `Trait` of the object (clean, hot or cool), or 0.
        ability: The `Ability` that this trait requires, or 0.
        count: The required number of objects in one receptacle.
    """

    task_type: str
    object_type: str
    receptacle_type: str = ""
    lamp_type: str = ""
    trait: int = 0
    ability: int = 0
    count: int = 1


_WORD: Final = re.compile(r"[()]|[^\s()]+")


def _shape(text: str) -> re.Pattern[str]:
    """Compile a goal with placeholders for types: <object>, <receptacle>, <lamp>, and <object'> for a repetition."""
    pattern = re.sub(
        r"<(\w+)'>", r"(?P=\1)type", re.escape(" ".join(_WORD.findall(text.lower())))
    )
    return re.compile(re.sub(r"<(\w+)>", r"(?P<\1>\\w+)type", pattern))


def _placed(conditions: str) -> str:
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {conditions}))))"


_TYPED: Final = "(objectType ?o <object>) (receptacleType ?r <receptacle>)"
_GOALS: Final = tuple(
    (_shape(text), goal)
    for text, goal in (
        (_placed(f"(inReceptacle ?o ?r) {_TYPED}"), Goal("pick_and_place_simple", "")),
        (
            """(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location)
                 (and (objectType ?ot <lamp>) (toggleable ?ot) (isToggled ?ot)
                      (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
               (exists (?o - object ?a - agent) (and (objectType ?o <object>) (holds ?a ?o))))""",
            Goal("look_at_obj_in_light", ""),
        ),
        (
            _placed(f"(cleanable ?o) {_TYPED} (isClean ?o) (inReceptacle ?o ?r)"),
            Goal(
                "pick_clean_then_place_in_recep",
                "",
                trait=Trait.CLEAN,
                ability=Ability.CLEANABLE,
            ),
        ),
        (
            _placed(f"(heatable ?o) {_TYPED} (isHot ?o) (inReceptacle ?o ?r)"),
            Goal(
                "pick_heat_then_place_in_recep",
                "",
                trait=Trait.HOT,
                ability=Ability.HEATABLE,
            ),
        ),
        (
            _placed(f"(coolable ?o) {_TYPED} (isCool ?o) (inReceptacle ?o ?r)"),
            Goal(
                "pick_cool_then_place_in_recep",
                "",
                trait=Trait.COOL,
                ability=Ability.COOLABLE,
            ),
        ),
        (
            """(and (exists (?r - receptacle) (exists (?o1 - object)
                 (and (objectType ?o1 <object>) (receptacleType ?r <receptacle>) (inReceptacle ?o1 ?r)
                      (exists (?o2 - object)
                          (and (not (= ?o1 ?o2)) (objectType ?o2 <object'>)
                               (receptacleType ?r <receptacle'>) (inReceptacle ?o2 ?r)))))))""",
            Goal("pick_two_obj_and_place", "", count=2),
        ),
    )
)
"""The six forms of goals, each with the attributes that all goals of the form share."""


def parse_goal(text: str) -> Goal:
    """Parse the text that follows `(:goal` in a problem.

    Raises:
        InputError: If the goal has none of the six forms.
    """
    plain = " ".join(_WORD.findall(text.lower()))
    for shape, goal in _GOALS:
        match = shape.match(plain)
        if match:
            types = match.groupdict("")
            return replace(
                goal,
                object_type=types["object"],
                receptacle_type=types.get("receptacle", ""),
                lamp_type=types.get("lamp", ""),
            )
    raise InputError(
        f"expected a goal of one of ALFWorld's six task types, received (:goal {plain[:200]}"
    )
