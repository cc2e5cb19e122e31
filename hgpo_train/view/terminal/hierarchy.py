"""The hierarchy of groups of a step, from a group's document; `viewer/src/hierarchy.tsx` is the browser's."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["same", "ours", "theirs"]

_ALIKE: Final = 0.6
"""Texts that share less than this part of their words and spaces are shown one after the other."""


def shared_depths(contexts: Sequence[Sequence[int | None]], row: int) -> dict[int, int]:
    """Return the rows that share at least the state of a row, itself included, in the order of the table.

    The values are the largest k for which they also share the k previous states, so that level k of the hierarchy
    contains those with k or more. `contexts` are those of a document (`hgpo_train.view.documents.group_document`).

    >>> shared_depths([[1, 1, 2, 1], [None, 3, 4, 3]], 1)
    {0: 0, 1: 1, 3: 1}
    """
    depths: dict[int, int] = {}
    for k, numbers in enumerate(contexts):
        if numbers[row] is not None:
            depths |= {other: k for other, number in enumerate(numbers) if number == numbers[row]}
    return depths


def word_difference(ours: str, theirs: str) -> list[tuple[Kind, str]]:
    """Return the parts of two texts that are the same, only in ours, and only in theirs.

    The parts that are not ``theirs`` give ours, and those that are not ``ours`` give theirs, unless the texts have
    little in common: then they follow each other, with a line break between them.

    >>> word_difference("the red cup", "the blue cup")
    [('same', 'the '), ('ours', 'red'), ('theirs', 'blue'), ('same', ' cup')]
    """
    a, b = (re.findall(r"\s+|\w+|[^\s\w]", text) for text in (ours, theirs))
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    if matcher.ratio() < _ALIKE:
        return [("ours", ours), ("same", "\n"), ("theirs", theirs)]
    parts: list[tuple[Kind, str]] = []
    for operation, a0, a1, b0, b1 in matcher.get_opcodes():
        if operation == "equal":
            parts.append(("same", "".join(a[a0:a1])))
            continue
        parts += [("ours", "".join(a[a0:a1]))] if a1 > a0 else []
        parts += [("theirs", "".join(b[b0:b1]))] if b1 > b0 else []
    return parts
