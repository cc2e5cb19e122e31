"""Parsing of a model's response into an action, by verl-agent's rules.

The action is the text between the first ``<action>`` and the first ``</action>``. A response without both tags is
invalid, and its last characters are the action (30, in WebShop 20). A response without both ``<think>`` and
``</think>``, or with a character of the CJK Unified Ideographs block, is also invalid, but its action is executed.
Validity does not depend on whether the action is admissible.

In ALFWorld and WebShop, whose actions are lowercase, the response is lowercased first, as verl-agent does. Elsewhere
case is kept, and an action that differs from an admissible one by case alone means that one (`admissible`).

Every string has an action and a validity. Parsing takes time linear in the length.

Source: verl-agent, ``agent_system/environments/env_package/{alfworld,webshop}/projection.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

FALLBACK_CHARACTERS: Final = 30
"""Number of last characters that are the action if the tags are missing."""

_OPEN, _CLOSE = "<action>", "</action>"
_DIGITS: Final = 9
"""The greatest number of digits that is parsed."""
_CJK = re.compile("[\u4e00-\u9fff]")


class Response(NamedTuple):
    """A parsed response.

    Attributes:
        action: The command to execute, stripped (a fallback is not stripped).
        valid: Whether the response has the required form.
        flaw: The first violation of the form; empty if valid.
    """

    action: str
    valid: bool
    flaw: str


def parse(text: str, fallback_characters: int = FALLBACK_CHARACTERS, *, lowercase: bool = False) -> Response:
    """Parse the action in a response.

    Args:
        text: The response.
        fallback_characters: Number of last characters that are the action if the tags are missing.
        lowercase: Whether the response is lowercased before action and tags are found in it.

    >>> parse("<think>A fridge cools.</think><action> Open Fridge 1 </action>")
    Response(action='Open Fridge 1', valid=True, flaw='')
    >>> parse("<think>A fridge cools.</think><ACTION>Open Fridge 1</ACTION>", lowercase=True)
    Response(action='open fridge 1', valid=True, flaw='')
    >>> parse("<action>look</action>")
    Response(action='look', valid=False, flaw='no <think> tags')
    >>> parse("I shall open the fridge", fallback_characters=10)
    Response(action='the fridge', valid=False, flaw='no <action> tags')
    """
    searched = text.lower() if lowercase else text
    start, end = searched.find(_OPEN), searched.find(_CLOSE)
    if start < 0 or end < 0:
        return Response(searched[-fallback_characters:] if fallback_characters else "", False, "no <action> tags")
    action = searched[start + len(_OPEN) : end].strip()
    if "<think>" not in text or "</think>" not in text:  # case matters here
        return Response(action, False, "no <think> tags")
    if _CJK.search(text):
        return Response(action, False, "CJK characters")
    return Response(action, True, "")


def admissible(action: str, actions: Sequence[str]) -> str:
    """Return the admissible action that equals the given one, or equals it except for case; else the given one.

    >>> admissible("take canadian latchkey", ["look", "take Canadian latchkey"])
    'take Canadian latchkey'
    >>> admissible("Xyzzy", ["look"])
    'Xyzzy'
    """
    if action in actions:
        return action
    folded = action.casefold()
    return next((listed for listed in actions if listed.casefold() == folded), action)


def numbered(text: str, actions: Sequence[str]) -> str:
    r"""Return the action with the given number, from 1. Any other text is returned as the command, such as a search.

    Args:
        text: The response.
        actions: The admissible actions.

    >>> numbered(" 2\n", ["look", "open fridge 1"])
    'open fridge 1'
    >>> numbered("3", ["look", "open fridge 1"])
    '3'
    """
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and len(stripped) <= _DIGITS and 0 < int(stripped) <= len(actions):
        return actions[int(stripped) - 1]
    return text
