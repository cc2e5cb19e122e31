"""The hierarchy of groups of a step, from a group's document; `viewer/src/hierarchy.tsx` is the browser's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["same", "ours", "theirs"]

_WORDS: Final = 1_500
"""Words of a text that are compared: the time of a comparison grows with their square."""
_ALIKE: Final = 0.4
"""Texts that share less than this part of their words are shown one after the other."""


@dataclass(frozen=True, slots=True)
class Member:
    """A step that shares its state with another step of the group.

    Attributes:
        row: The position in the lists of the group's document.
        deepest: The largest k for which it also shares the k previous states.
    """

    row: int
    deepest: int


def members(contexts: Sequence[Sequence[int | None]], row: int) -> list[Member]:
    """Return the steps that share at least the state of a step, itself included, in the order of the table.

    Level k of the hierarchy contains the members whose `deepest` is k or more, so that it contains all deeper levels.
    `contexts` are those of a group's document (`hgpo_train.view.documents.group_document`).

    >>> [member.deepest for member in members([[1, 1, 2, 1], [None, 3, 3, 3]], 1)]
    [0, 1, 1]
    """
    steps = []
    for other in range(len(contexts[0])):
        shared = 0
        while shared < len(contexts) and None is not contexts[shared][row] == contexts[shared][other]:
            shared += 1
        if shared:
            steps.append(Member(other, shared - 1))
    return steps


def levels(contexts: Sequence[Sequence[int | None]], row: int) -> list[list[Member]]:
    """Return the members of every level k of a step's hierarchy; none if it has fewer than k previous states."""
    steps = members(contexts, row)
    return [[member for member in steps if member.deepest >= k] for k in range(len(contexts))]


def before(group: dict[str, Any], row: int, back: int) -> int | None:
    """Return the row a number of steps before a row, or None before the start of its trajectory."""
    return row - back if group["steps"]["step"][row] >= back else None


def word_difference(ours: str, theirs: str) -> list[tuple[Kind, str]]:
    """Return the parts of two texts that are the same, only in ours, and only in theirs.

    The parts that are not ``theirs`` give ours, and those that are not ``ours`` give theirs, unless the texts have
    little in common: then they follow each other, with a line break between them.

    >>> word_difference("the red cup", "the blue cup")
    [('same', 'the '), ('ours', 'red'), ('theirs', 'blue'), ('same', ' cup')]
    """
    a, b = _words(ours), _words(theirs)
    apart: list[tuple[Kind, str]] = [("ours", ours), ("same", "\n"), ("theirs", theirs)]
    if len(a) > _WORDS or len(b) > _WORDS:
        return apart
    parts: list[tuple[Kind, str]] = []
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(("same", "".join(a[a0:a1])))
            continue
        parts += [("ours", "".join(a[a0:a1]))] if a1 > a0 else []
        parts += [("theirs", "".join(b[b0:b1]))] if b1 > b0 else []
    shared = sum(_letters(text) for kind, text in parts if kind == "same")
    return parts if shared >= _ALIKE * min(_letters(ours), _letters(theirs)) else apart


def _words(text: str) -> list[str]:
    return re.findall(r"\s+|\w+|[^\s\w]", text)


def _letters(text: str) -> int:
    return sum(not character.isspace() for character in text)
