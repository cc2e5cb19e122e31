"""Parsing of a model's response into an action, by verl-agent's rules.

The action is the text between the first ``<action>`` and the first ``</action>``. A response without both tags is
invalid, and its last characters are the action (30, in WebShop 20). A response without both ``<think>`` and
``</think>``, or with a character of the CJK Unified Ideographs block, is also invalid, but its action is executed.
Validity does not depend on whether the action is admissible.

In ALFWorld and WebShop, whose actions are lowercase, the response is lowercased first, as verl-agent does. Elsewhere
case is kept, and an action that differs from an admissible one by case alone means that one (`admissible`).

Environments with tools (`EnvironmentSpec.tools`) use `parse_tool_calls` instead: the action is the response's calls, in
the form of Hermes and Qwen. If a server has separated calls and reasoning from the text, they are taken from its
message (`action_text`), and tags within them mean nothing.

Every string has an action and a validity. Parsing takes time linear in the length.

Source: verl-agent, ``agent_system/environments/env_package/{alfworld,webshop}/projection.py``.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FALLBACK_CHARACTERS: Final = 30
"""Number of last characters that are the action if the tags are missing."""

_CALL: Final = "<tool_call>"
_CALL_END: Final = "</tool_call>"
_THOUGHT_END: Final = "</think>"
_DIGITS: Final = 9
"""The greatest number of digits that is parsed."""
DEEPEST: Final = 100
"""The greatest depth of JSON in a message; code that recurses over deeper values fails at its own limit."""
_NESTED: Final = (dict, list)
_json: Final = json.JSONEncoder(ensure_ascii=False).encode
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
    text: str,
    fallback_characters: int = FALLBACK_CHARACTERS,
    *,
    lowercase: bool = False,
    tag: str = "action",
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
    opening = f"<{tag}>"
    start = searched.find(opening)
    end = searched.find(f"</{tag}>")
    if start < 0 or end < 0:
        return Response(
            searched[-fallback_characters:] if fallback_characters else "",
            False,
            f"no <{tag}> tags",
        )
    action = searched[start + len(opening) : end].strip()
    if "<think>" not in text or "</think>" not in text:  # case matters here
        return Response(action, False, "no <think> tags")
    if not text.isascii() and _CJK.search(text):
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
    if (
        stripped.isascii()
        and stripped.isdigit()
        and len(stripped) <= _DIGITS
        and 0 < int(stripped) <= len(actions)
    ):
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
        body = _json({"name": self.name, "arguments": self.arguments})
        return f"{_CALL}\n{body}\n{_CALL_END}"


class _Block(NamedTuple):
    """A tag `<tool_call>` at ``start``, and its JSON value up to ``end``; `_NOT_JSON` if no complete value follows."""

    start: int
    end: int
    value: Any


_NOT_JSON: Final = object()


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not JSON, or is written as what is not")
    return number


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
_SPACE: Final = re.compile(r"\s*")
_CUT_VALUE: Final = re.compile(r"[\w\\.+-]{0,8}\s*")
"""The rest of a response that ends within a constant, a number or an escape of JSON."""


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _block(text: str, start: int) -> _Block:
    """Return the block whose tag is at a position."""
    body = _skip_space(text, start + len(_CALL))
    if not text.startswith("{", body):
        return _Block(start, body, _NOT_JSON)
    try:
        value, end = _DECODER.raw_decode(text, body)
    except json.JSONDecodeError as error:
        # A response that ends within a JSON value was cut off there: the rest is a part of the value.
        cut_off = error.msg.startswith("Unterminated string") or _CUT_VALUE.fullmatch(
            text, error.pos
        )
        return _Block(start, len(text) if cut_off else start + len(_CALL), _NOT_JSON)
    except (ValueError, RecursionError):
        return _Block(start, start + len(_CALL), _NOT_JSON)
    end = _skip_space(text, end)
    if not text.startswith(_CALL_END, end):
        return _Block(start, end, _NOT_JSON)
    return _Block(start, end + len(_CALL_END), value)


def _after_thought(text: str) -> tuple[int, list[_Block]]:
    """Return where the thought of a response ends, and the blocks after it. Tags in a JSON value are not tags."""
    blocks = []
    start = text.find(_CALL)
    while start >= 0:
        blocks.append(_block(text, start))
        start = text.find(_CALL, blocks[-1].end)
    end = text.rfind(_THOUGHT_END)
    for block in reversed(blocks):
        if block.start < end < block.end:
            end = text.rfind(_THOUGHT_END, 0, block.start)
    end = end + len(_THOUGHT_END) if end >= 0 else 0
    return end, [block for block in blocks if block.start >= end]


def _is_mention(text: str, block: _Block, *, calls_follow: bool) -> bool:
    """Return whether a tag without a JSON value is only mentioned, as in "I use <tool_call> for this"."""
    rest = text[block.start + len(_CALL) :].lstrip()
    return (
        rest != ""
        and not rest.startswith("{")
        and (calls_follow or _CALL_END not in rest)
    )


def is_deep(value: object) -> bool:
    """Return whether lists and objects are nested in more than `DEEPEST` levels."""
    level = [value]
    for _ in range(DEEPEST + 1):
        nested: list[Any] = [part for part in level if isinstance(part, _NESTED)]
        if not nested:
            return False
        level = []
        for part in nested:
            level += part.values() if isinstance(part, dict) else part
    return True


WINDOW_FULL: Final = "model_context_window_exceeded"
"""The finish reason of Anthropic and Z.AI for a context window that is full."""
_LIMITS: Final = frozenset(
    {"length", "max_tokens", "max_output_tokens", "model_length", WINDOW_FULL}
)


def finish_reason(reported: object) -> str | None:
    """Return why a response ended, where ``length`` stands for all names that servers have for a limit of tokens.

    >>> finish_reason("MAX_TOKENS"), finish_reason("tool_calls"), finish_reason(None)
    ('length', 'tool_calls', None)
    """
    if reported in (None, "", "unknown"):
        return None
    reason = str(reported)
    return "length" if reason.lower() in _LIMITS else reason


def _tool_call(name: object, arguments: object) -> ToolCall | None:
    if (
        not isinstance(name, str)
        or not name
        or not isinstance(arguments, dict)
        or is_deep(arguments)
    ):
        return None
    return ToolCall(name, arguments)


def _calls(text: str, blocks: list[_Block]) -> list[ToolCall] | None:
    first = next(
        (index for index, block in enumerate(blocks) if block.value is not _NOT_JSON),
        len(blocks),
    )
    calls = []
    for index, block in enumerate(blocks):
        if index < first and _is_mention(text, block, calls_follow=first < len(blocks)):
            continue
        value = block.value
        given = value if isinstance(value, dict) else {}
        # Llama's name
        call = _tool_call(
            given.get("name"), given.get("arguments", given.get("parameters", {}))
        )
        if call is None:
            return None
        calls.append(call)
    return calls


def tool_calls(text: str) -> list[ToolCall] | None:
    """Return the tool calls in a response, several for parallel calls; None if one of them is malformed.

    >>> tool_calls('<think>First the user.</think><tool_call>{"name": "find", "arguments": {"zip": "10"}}</tool_call>')
    [ToolCall(name='find', arguments={'zip': '10'})]
    >>> tool_calls("Hello"), tool_calls("<tool_call>find(10)</tool_call>")
    ([], None)
    """
    return _calls(text, _after_thought(text)[1])


def before_calls(text: str) -> str:
    """Return what a response says before its tool calls, its thought included."""
    starts = [
        block.start for block in _after_thought(text)[1] if block.value is not _NOT_JSON
    ]
    return text[: starts[0]] if starts else text


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
    start, blocks = _after_thought(text)
    calls = _calls(text, blocks)
    if calls:
        return Response("\n".join(call.text() for call in calls), True, "")
    action = text[start:].strip()
    flaw = "malformed tool call" if calls is None else "" if action else "no action"
    return Response(action, not flaw, flaw)


def message_calls(message: Mapping[str, Any]) -> list[Any]:
    """Return the tool calls of a server's message as it sent them; older servers send one as ``function_call``."""
    calls = message.get("tool_calls") or []
    if not calls and message.get("function_call"):
        calls = {"type": "function", "function": message["function_call"]}
    return calls if isinstance(calls, list) else [calls]


def call_text(entry: object, *, cut_off: bool = False) -> str | None:
    r"""Return a tool call of a server's message as text (`ToolCall.text`); None if it is malformed.

    Args:
        entry: An element of the message's ``tool_calls``. Its arguments are JSON, an object, or absent.
        cut_off: Whether the message was cut off at the token limit: then absent arguments are malformed.

    >>> call_text({"type": "function", "function": {"name": "find", "arguments": '{"zip":"10"}'}})
    '<tool_call>\n{"name": "find", "arguments": {"zip": "10"}}\n</tool_call>'
    """
    if not isinstance(entry, dict) or entry.get("type") not in (None, "", "function"):
        return None
    function = entry.get("function")
    if not isinstance(function, dict):
        return None
    name = function.get("name")
    arguments = function.get("arguments")
    if isinstance(name, str) and isinstance(arguments, str) and arguments.strip():
        return _decoded_call(name, arguments)
    if arguments in (None, "") and not cut_off:
        arguments = {}
    call = _tool_call(name, arguments)
    return None if call is None else call.text()


@lru_cache(maxsize=16)  # the text of a message and its action have the same calls
def _decoded_call(name: str, arguments: str) -> str | None:
    """Return a call whose arguments are JSON as text; None if it is malformed."""
    try:
        decoded = _DECODER.decode(arguments)
    except (ValueError, RecursionError):
        return None
    call = _tool_call(name, decoded)
    return None if call is None else call.text()


def _written(entry: object) -> str:
    """Return a malformed call as the model wrote it."""
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict):
        return f"{_CALL}\n{_json(entry)}\n{_CALL_END}"
    name = _json(function.get("name"))
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = _json(arguments)
    return f'{_CALL}\n{{"name": {name}, "arguments": {arguments}}}\n{_CALL_END}'


_TEXT_FIELDS: Final = (
    "text",
    "thinking",
    "reasoning",
    "refusal",
    "summary",
    "content",
    "value",
)
_THOUGHT_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_details")


def _plain(value: object) -> str:
    """Return the text of a part of a message: a text, a list of parts, or an object with one."""
    if isinstance(value, dict):
        return _plain(
            next((value[name] for name in _TEXT_FIELDS if value.get(name)), "")
        )
    if isinstance(value, list):
        return "".join(map(_plain, value))
    return value if isinstance(value, str) else ""


def _thought_and_text(message: Mapping[str, Any]) -> tuple[str, str]:
    content = message.get("content")
    thoughts = []
    # Nearly every content is a text or none, which has no parts.
    if isinstance(content, dict | list):
        parts = content if isinstance(content, list) else [content]
        thoughts = [
            part
            for part in parts
            if isinstance(part, dict) and part.get("type") in ("thinking", "reasoning")
        ]
        content = [part for part in parts if part not in thoughts]
    text = _plain(content) or _plain(message.get("refusal"))
    thought = ""
    for name in _THOUGHT_FIELDS:
        thought = thought or _plain(message.get(name))
    thought = thought or _plain(thoughts)
    before, end, after = text.partition(_THOUGHT_END)
    # The chat template has opened the thought. A tag within the arguments of a call does not end it.
    if end and not thought and "<think>" not in before and _after_thought(text)[0]:
        return before.strip("\n"), after.lstrip("\n")
    return thought, text


def _with_thought(thought: str, *parts: str) -> str:
    return "\n".join(
        [f"<think>\n{thought}\n</think>\n"] * bool(thought)
        + [part for part in parts if part]
    )


def message_text(message: Mapping[str, Any]) -> str:
    """Return the message of an OpenAI-compatible server as the text that a model with Hermes' template generates.

    The text is stored and shown. Actions are parsed from `action_text`.

    Args:
        message: The reply's ``message``, with ``content`` (a text or parts), ``tool_calls``, and ``reasoning_content``
            or ``reasoning``.

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
    thought, text = _thought_and_text(message)
    calls = []
    for entry in message_calls(message):
        call = call_text(entry)
        calls.append(_written(entry) if call is None else call)
    return _with_thought(thought, text, *calls)


def _as_function(entry: object) -> object:
    """Return the call of a tool that takes a text as the call of a function; any other one as it is."""
    fields = entry.get("custom") if isinstance(entry, dict) else None
    if not isinstance(fields, dict):
        return entry
    arguments = {"input": fields.get("input")}
    return {"function": {"name": fields.get("name"), "arguments": arguments}}


def action_text(
    message: Mapping[str, Any],
    *,
    tools: bool,
    thought: bool = True,
    cut_off: bool = False,
    custom: bool = False,
) -> str:
    r"""Return what the action of a server's message is parsed from: its tool calls alone, or else its text.

    Args:
        message: As of `message_text`.
        tools: Whether the environment has tools; otherwise calls are ignored.
        thought: Whether the text begins with the reasoning, whose tags are made unreadable to parsers.
        cut_off: Whether the message was cut off at the token limit.
        custom: Whether there may be tools that take a text in any form: calls of them have the argument `input`.

    >>> action_text({"content": "<action>look</action>", "reasoning": "Not <action>."}, tools=False)
    '<think>\nNot ‹action>.\n</think>\n\n<action>look</action>'
    """
    reasoning, text = _thought_and_text(message)
    entries = message_calls(message) if tools else []
    if custom:
        entries = [_as_function(entry) for entry in entries]
    calls = []
    for entry in entries:
        call = call_text(entry, cut_off=cut_off and entry is entries[-1])
        if call is not None:
            calls.append(call)
            continue
        # Malformed, as it has no name, whatever the model wrote.
        malformed = _json({"malformed": _written(entry)})
        calls.append(f"{_CALL}\n{malformed}\n{_CALL_END}")
    return _with_thought(
        reasoning.replace("<", "‹") if thought else "", *(calls or [text])
    )
