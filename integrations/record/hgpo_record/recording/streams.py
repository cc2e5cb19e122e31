"""Answers that are streamed as server-sent events: they become the answer that the server sends without streaming."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

EVENTS: Final = "text/event-stream"
"""The media type of server-sent events."""
_LAST: Final = ("response.completed", "response.incomplete", "response.failed")
"""The last events of the interface of responses, which contain the whole answer."""
_MARKS: Final = {
    # JSON has no line breaks, so that the text of an answer is not this line.
    "chat/completions": re.compile(rb"^data: ?\[DONE\]", re.MULTILINE),
    "responses": re.compile("|".join(map(re.escape, _LAST)).encode()),
}
"""What is in the end of a stream."""
_LONGEST_MARK: Final = 32
_FIXED: Final = frozenset(["id", "index", "role", "type", "name", "format"])
"""Texts that are whole in one part, which other parts repeat or leave empty."""


def may_end(interface: str, stream: bytes | bytearray, added: int) -> bool:
    """Return whether the last bytes of a stream may contain its last event: the call is recorded before they go on.

    Args:
        interface: A key of `PROMPTS`.
        stream: The stream until now.
        added: The number of bytes that were added; a mark may have begun before them.
    """
    start = max(len(stream) - added - _LONGEST_MARK, 0)
    return _MARKS[interface].search(stream, start) is not None


def is_whole(interface: str, stream: bytes) -> bool:
    """Return whether a stream is complete, or cannot be read, which is found out when it is."""
    if interface == "chat/completions" and may_end(interface, stream, 0):
        return True
    try:
        return whole_answer(interface, stream) is not None
    except Exception:  # noqa: BLE001 - the program goes on
        return True


def whole_answer(interface: str, stream: bytes) -> bytes | None:
    """Return the answer that was streamed, as the body without streaming; None if the stream is not complete."""
    text = stream.removeprefix(BOM_UTF8).replace(b"\r\n", b"\n")
    blocks = text.split(b"\n\n")
    if interface == "chat/completions":
        return _completion(_events(blocks), ended=may_end(interface, stream, 0))
    # The last event has the whole answer. An error that a server reports is one, too.
    for event in _events(reversed(blocks)):
        if event.get("type") in _LAST:
            response = event.get("response") or {}
            # Some gateways leave the whole answer empty, although they have sent its items.
            output = response.get("output") or [
                item["item"]
                for item in _events(blocks)
                if item.get("type") == "response.output_item.done"
            ]
            return orjson.dumps({**response, "output": output})
        if event.get("type") == "error":
            return orjson.dumps({"error": event})
    return None


def _events(blocks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of the events; the data of one event may take several lines."""
    for block in blocks:
        data = block[5:]
        # Nearly every event is one line.
        if b"\n" in block or not block.startswith(b"data:"):
            lines = [line for line in block.split(b"\n") if line.startswith(b"data:")]
            data = b"\n".join([line[5:] for line in lines])
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            # [DONE], a comment, or the start of an event that did not arrive
            continue
        if isinstance(value, dict):
            yield value


def _completion(events: Iterable[dict[str, Any]], *, ended: bool) -> bytes | None:
    whole: dict[str, Any] = {}
    before: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event.pop("choices", None) or ():
            number = part.get("index", 0)
            if number not in choices:
                choices[number] = {"delta": {"role": "assistant"}}
            _merge(choices[number], part)
            # Servers repeat why a choice ended; the last reason is the one of the whole answer.
            choices[number] |= {
                name: value
                for name, value in part.items()
                if value and isinstance(value, str)
            }
        # Nearly every event repeats the other fields of the event before.
        if event != before:
            whole |= {name: value for name, value in event.items() if value is not None}
        before = event
        # as vLLM reports what fails after the first token
        if event.get("object") == "error":
            whole["error"] = event
    # The answer without streaming calls a delta message, and numbers no tool calls.
    for choice in choices.values():
        choice["message"] = choice.pop("delta")
        for call in choice["message"].get("tool_calls") or ():
            call.pop("index", None)
    finished = bool(choices) and all(
        choice.get("finish_reason") for choice in choices.values()
    )
    if not (ended or finished or "error" in whole):
        return None
    return orjson.dumps(
        {**whole, "choices": [choices[number] for number in sorted(choices)]}
    )


def _merge(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a part to an object: texts and lists are continued, numbered entries of lists are those of one number."""
    for name, value in part.items():
        before = whole.get(name)
        is_fixed = name in _FIXED and before and isinstance(before, str)
        if value is None or is_fixed:
            whole.setdefault(name, None)
        elif isinstance(value, dict) and isinstance(before, dict):
            _merge(before, value)
        elif isinstance(value, list) or isinstance(before, list):
            # A list grows in place: a long answer has a log-probability for each of its tokens.
            whole[name] = _parts(before)
            _extend(whole[name], _parts(value), name)
        elif isinstance(value, str) and isinstance(before, str):
            whole[name] = before + value
        else:
            whole[name] = value


def _parts(value: object) -> list[Any]:
    """Return a list as it is. Mistral's thoughts are a list of parts, and the text that follows them is a text."""
    if isinstance(value, list):
        return value
    return [{"type": "text", "text": value}] if value else []


def _extend(entries: list[Any], parts: list[Any], name: str) -> None:
    """Add parts to a list: each continues the entry to which it belongs, or is a new one."""
    for part in parts:
        entry = None
        if name == "tool_calls":
            entry = _call(entries, part)
        elif isinstance(part, dict) and part.get("index") is not None:
            same = (one for one in reversed(entries) if _is_same(one, part))
            entry = next(same, None)
        if entry is None:
            entries.append(part)
        else:
            _merge(entry, part)


def _is_same(entry: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Return whether a part has the number of an entry; a text and its encrypted form may have the same one."""
    types = {one["type"] for one in (entry, part) if one.get("type")}
    return entry.get("index") == part["index"] and len(types) < 2


def _call(
    calls: list[dict[str, Any]], part: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the tool call that a part continues; None if it begins another one.

    Servers number all calls 0, or none of them; they repeat ids and names in each part, or leave them empty or out.
    """
    number = part.get("index")
    identifier = part.get("id")
    if number is None and identifier:
        same = [call for call in calls if call.get("id") == identifier]
    else:
        same = [call for call in calls if number in (None, call.get("index"))]
    if not same:
        return None
    call = same[-1]

    # Only a part with a name can begin a call: it does with another id, or, without ids, after complete arguments.
    is_named = bool((part.get("function") or {}).get("name"))
    if identifier and call.get("id"):
        begins = identifier != call["id"]
    else:
        begins = is_named and _is_json((call.get("function") or {}).get("arguments"))
    return None if is_named and begins else call


def _is_json(arguments: object) -> bool:
    try:
        decoded = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        return False
    return isinstance(decoded, dict)
