"""Parsing of a model's response into an action, by verl-agent's rules.

The response is lowercased, and what stands between the first ``<action>`` and the first ``</action>`` is the action.
A response without both tags is invalid, and its last characters are the action (30, on WebShop 20). A
response without both of ``<think>`` and ``</think>``, or with a character of the CJK Unified Ideographs block, is
invalid too, but its action is still executed. Whether the action is admissible is not looked at here.

The parser is total: any string has an action and a validity, in time linear in its length.

Source: verl-agent, ``agent_system/environments/env_package/{alfworld,webshop}/projection.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

FALLBACK_CHARACTERS: Final = 30
"""How many last characters stand for the action when the tags are missing."""

_OPEN, _CLOSE = "<action>", "</action>"
_DIGITS: Final = 9
"""The longest number that is looked at."""
_CJK = re.compile("[\u4e00-\u9fff]")


class Response(NamedTuple):
    """What was found in a response.

    Attributes:
        action: The command to carry out, lowercase and stripped (a fallback is not stripped).
        valid: Whether the response keeps the form.
        flaw: What is wrong with the form; empty when valid.
    """

    action: str
    valid: bool
    flaw: str


def parse(text: str, fallback_characters: int = FALLBACK_CHARACTERS) -> Response:
    """Finds the action in a response.

    Args:
        text: Anything a model wrote.
        fallback_characters: How many last characters are the action when the tags are missing.

    >>> parse("<think>A fridge cools.</think><action> Open Fridge 1 </action>")
    Response(action='open fridge 1', valid=True, flaw='')
    >>> parse("<action>look</action>")
    Response(action='look', valid=False, flaw='no <think> tags')
    >>> parse("I shall open the fridge", fallback_characters=10)
    Response(action='the fridge', valid=False, flaw='no <action> tags')
    """
    lowered = text.lower()
    start, end = lowered.find(_OPEN), lowered.find(_CLOSE)
    if start < 0 or end < 0:
        return Response(lowered[-fallback_characters:] if fallback_characters else "", False, "no <action> tags")
    action = lowered[start + len(_OPEN) : end].strip()
    if "<think>" not in text or "</think>" not in text:  # in the response as written: case counts here
        return Response(action, False, "no <think> tags")
    if _CJK.search(text):
        return Response(action, False, "CJK characters")
    return Response(action, True, "")


def numbered(text: str, actions: Sequence[str]) -> str:
    r"""The action whose number, counted from 1, a text is; any other text is a command itself, such as a search.

    Args:
        text: Anything a model wrote.
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
