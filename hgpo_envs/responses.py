"""Parsing of a model's response into an action, by verl-agent's rules.

The action is the text between the first ``<action>`` and the first ``</action>``. A response without both tags is
invalid, and its last characters are the action (30, in WebShop 20). A response without both ``<think>`` and
``</think>``, or with a character of the CJK Unified Ideographs block, is also invalid, but its action is executed.
Validity does not depend on whether the action is admissible.

In ALFWorld and WebShop, whose actions are lowercase, the response is lowercased first, as verl-agent does. Elsewhere
case is kept, and an action that differs from an admissible one by case alone means that one (`admissible`).

Environments with tools (`EnvironmentSpec.tools`) use `parse_tool_calls` instead: the action is the response's calls, in
the form of Hermes and Qwen, whatever form a server has sent them in (`message_text`).

Every string has an action and a validity. Parsing takes time linear in the length.

Source: verl-agent, ``agent_system/environments/env_package/{alfworld,webshop}/projection.py``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FALLBACK_CHARACTERS: Final = 30
"""Number of last characters that are the action if the tags are missing."""

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
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


def parse(
    text: str, fallback_characters: int = FALLBACK_CHARACTERS, *, lowercase: bool = False, tag: str = "action"
) -> Response:
    """Parse the action in a response.

    Args:
        text: The response.
        fallback_characters: Number of last characters that are the action if the tags are missing.
        lowercase: Whether the response is lowercased before action and tags are found in it.
        tag: The tag of the action.

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
    opening, closing = f"<{tag}>", f"</{tag}>"
    start, end = searched.find(opening), searched.find(closing)
    if start < 0 or end < 0:
        return Response(searched[-fallback_characters:] if fallback_characters else "", False, f"no <{tag}> tags")
    action = searched[start + len(opening) : end].strip()
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


class ToolCall(NamedTuple):
    """A call of one of the environment's tools.

    Attributes:
        name: The tool.
        arguments: Its arguments by name.
    """

    name: str
    arguments: Mapping[str, Any]

    def text(self) -> str:
        r"""Return the call as text, in the form of Hermes and Qwen.

        >>> ToolCall("get_order", {"id": "#7"}).text()
        '<tool_call>\n{"name": "get_order", "arguments": {"id": "#7"}}\n</tool_call>'
        """
        body = json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)
        return f"{_CALL}\n{body}\n{_CALL_END}"


def tool_calls(text: str) -> list[ToolCall] | None:
    """Return the tool calls in a response, several for parallel calls; None if one of them is malformed.

    >>> tool_calls('<think>First the user.</think><tool_call>{"name": "find", "arguments": {"zip": "10"}}</tool_call>')
    [ToolCall(name='find', arguments={'zip': '10'})]
    >>> tool_calls("Hello"), tool_calls("<tool_call>find(10)</tool_call>")
    ([], None)
    """
    calls = []
    for part in text.rpartition("</think>")[2].split(_CALL)[1:]:
        body, end, _ = part.partition(_CALL_END)
        try:
            call = json.loads(body) if end else None
        except (ValueError, RecursionError):
            call = None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return None
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            return None
        calls.append(ToolCall(call["name"], arguments))
    return calls


def parse_tool_calls(text: str) -> Response:
    r"""Parse a response of a policy with tools: the action is its tool calls, or else its message to the user.

    Thoughts in ``<think>`` are not part of the action. The calls are written in one form, so that equal calls are equal
    actions.

    >>> parse_tool_calls('<think>Hm.</think>\n<tool_call>{"name":"find","arguments":{}}</tool_call>').action
    '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>'
    >>> parse_tool_calls("<think>Hm.</think> Hello!")
    Response(action='Hello!', valid=True, flaw='')
    >>> parse_tool_calls("<tool_call>find()</tool_call>").flaw
    'malformed tool call'
    """
    calls = tool_calls(text)
    if calls is None:
        return Response(text.rpartition("</think>")[2].strip(), False, "malformed tool call")
    if not calls:
        return Response(text.rpartition("</think>")[2].strip(), True, "")
    return Response("\n".join(call.text() for call in calls), True, "")


def message_text(message: Mapping[str, Any]) -> str:
    """Return the message of an OpenAI-compatible server as the text that a model with Hermes' template generates.

    Args:
        message: The reply's ``message``, with ``content``, ``tool_calls``, and ``reasoning_content`` or ``reasoning``.

    Raises:
        ValueError: The arguments of a tool call are not a JSON object.

    >>> call = {"type": "function", "function": {"name": "find", "arguments": '{"zip": "10"}'}}
    >>> print(message_text({"content": None, "tool_calls": [call], "reasoning_content": "First the user."}))
    <think>
    First the user.
    </think>
    <BLANKLINE>
    <tool_call>
    {"name": "find", "arguments": {"zip": "10"}}
    </tool_call>
    """
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    parts = [f"<think>\n{reasoning}\n</think>\n"] if reasoning else []
    parts += [message["content"]] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        arguments = json.loads(call["function"]["arguments"] or "{}")
        if not isinstance(arguments, dict):
            raise ValueError(f"arguments of {call['function']['name']}: expected a JSON object")  # noqa: TRY004
        parts.append(ToolCall(call["function"]["name"], arguments).text())
    return "\n".join(parts)
