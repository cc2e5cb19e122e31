"""Answers that are streamed as server-sent events: they become the answer that the server sends without streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EVENTS: Final = "text/event-stream"
"""The media type of server-sent events."""
LONGEST_END: Final = 32
"""The length of the longest mark of the end, in bytes, or more."""
_DONE: Final = b"[DONE]"
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
"""The last events of the interface of responses, which contain the whole answer."""
_FIXED: Final = ("id", "role", "type", "format")
"""Texts of a delta that later parts repeat or leave empty, and do not continue."""


def may_end(chunk: bytes | bytearray) -> bool:
    """Return whether bytes of a stream may contain its last event: then the call is recorded before they are sent."""
    return _DONE in chunk or any(name.encode() in chunk for name in _ENDS)


def whole_answer(interface: str, stream: bytes) -> bytes | None:
    """Return the answer that was streamed, as the body without streaming; None if the stream is not complete."""
    events = list(_events(stream))
    if interface == "chat/completions":
        return _completion(events, ended=_DONE in stream[-LONGEST_END:])
    # The last event has the whole answer. An error that a server reports is one, too.
    for event in reversed(events):
        if event.get("type") in _ENDS:
            return orjson.dumps(event.get("response"))
        if event.get("type") == "error":
            return orjson.dumps({"error": event})
    return None


def _events(stream: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of the events; the data of one event may take several lines."""
    for block in stream.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:].lstrip() for line in block.split(b"\n") if line.startswith(b"data:")]
        try:
            value = orjson.loads(b"\n".join(lines))
        except orjson.JSONDecodeError:
            # [DONE], a comment, or the start of an event that did not arrive
            continue
        if isinstance(value, dict):
            yield value


def _completion(events: list[dict[str, Any]], *, ended: bool) -> bytes | None:
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event.get("choices") or ():
            choice = choices.setdefault(part.get("index", 0), {"delta": {"role": "assistant"}})
            for name, value in part.items():
                # Servers repeat why a choice ended; the last reason is the one of the whole answer.
                if isinstance(value, str):
                    choice[name] = value
                else:
                    _merge(choice, {name: value})
        whole |= {
            name: value for name, value in event.items() if name != "choices" and value is not None
        }
    # The answer without streaming calls a delta message, and numbers no tool calls.
    for choice in choices.values():
        choice["message"] = choice.pop("delta")
        for call in choice["message"].get("tool_calls") or ():
            call.pop("index", None)
    finished = bool(choices) and all(choice.get("finish_reason") for choice in choices.values())
    if not (ended or finished or "error" in whole):
        return None
    return orjson.dumps({**whole, "choices": [choices[number] for number in sorted(choices)]})


def _merge(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a part to an object: texts and lists are continued, numbered entries of lists are those of one number."""
    for name, value in part.items():
        before = whole.get(name)
        if value is None:
            whole.setdefault(name, None)
        elif isinstance(value, dict) and isinstance(before, dict):
            _merge(before, value)
        elif isinstance(value, str) and isinstance(before, str):
            is_repeated = name in _FIXED or (name == "name" and value == before)
            whole[name] = (before or value) if is_repeated else before + value
        elif isinstance(value, list):
            whole[name] = _merged_list(before or [], value)
        else:
            whole[name] = value


def _merged_list(before: list[Any], parts: list[Any]) -> list[Any]:
    merged = list(before)
    for part in parts:
        entry = _continued(merged, part)
        if entry is None:
            merged.append(part)
        else:
            _merge(entry, part)
    return merged


def _continued(entries: list[Any], part: Any) -> dict[str, Any] | None:  # noqa: ANN401 - JSON
    """Return the entry of a list that a part continues; None if it begins one."""
    number = part.get("index") if isinstance(part, dict) else None
    same = [entry for entry in entries if number is not None and entry.get("index") == number]
    if not same:
        return None
    # Some servers number all tool calls 0, others give each part an id: a call begins with another id and a name.
    function = part.get("function")
    has_name = isinstance(function, dict) and bool(function.get("name"))
    is_other = part.get("id") not in (None, "", same[-1].get("id"))
    return None if has_name and is_other else same[-1]
