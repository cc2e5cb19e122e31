"""A call of a model: what a step of the table takes from the request and from the answer.

Two interfaces are read: chat completions (``/chat/completions``) and responses (``/responses``). Both become a reply
with a message in the form of chat completions, which is what the step table stores and its readers expect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from hgpo_envs.errors import InputError
from hgpo_envs.responses import action_text, is_deep, message_text
from hgpo_train.policies.base import Failure, Reply
from hgpo_train.policies.chat_completion import completion_reply, read_completion
from hgpo_train.policies.http_client import RequestError
from hgpo_train.policies.validation import checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PROMPTS: Final = {"chat/completions": "messages", "responses": "input"}
"""The recorded interfaces, by the end of their path, and the field of the request with the prompt."""

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_READ_BY: Final = ("user", "tool", "function")
"""The roles of messages that the model answers."""


_OF_CALLS: Final = {"id", "type", "status", "call_id"}
"""What items of an output have beside what is called."""


class UnreadableError(InputError):
    """A call that cannot be a step, although the server answered it."""


# Not frozen: each call creates them, and frozen ones take three times as long.
@dataclass(slots=True)
class Request:
    """The request of a call.

    Attributes:
        prompt: The JSON of its messages (or of its input) exactly as it was sent.
        items: The JSON of each message.
        settings: All other fields of the request, as JSON by name: model, tools, temperature.
        interface: A key of `PROMPTS`.
        start: Where its messages begin in the body.
        head: The body up to its last message; empty if a longer request may not begin so.
        tail: The body from the end of its messages on.
        known: The number of its first messages that are those of the request before it.
    """

    prompt: str
    items: Sequence[bytes]
    settings: Mapping[str, bytes]
    interface: str
    start: int = 0
    head: bytes = b""
    tail: bytes = b""
    known: int = 0

    @property
    def previous(self) -> str | None:
        """The id of the answer that the server continues (`previous_response_id` of responses); None without one."""
        written = self.settings.get("previous_response_id")
        value = orjson.loads(written) if written else None
        return value if isinstance(value, str) else None


@dataclass(slots=True)
class Answer:
    """The answer to a call.

    Attributes:
        id: The server's id of the answer; empty without one.
        reply: The reply, as the step table stores it.
        action: The tool calls, or else the text without thoughts.
        items: What a conversation sends back: the message, or the items of the output of a response.
        others: Further choices of the same call (``n`` above 1).
    """

    id: str
    reply: Reply
    action: str
    items: Sequence[Mapping[str, Any]]
    others: Sequence[Mapping[str, Any]] = ()


def read_request(interface: str, body: bytes, before: Request | None = None) -> Request:
    """Read the body of a request.

    Args:
        interface: A key of `PROMPTS`.
        body: The body.
        before: The request before it, whose messages are not read again if this one begins with them.

    Raises:
        UnreadableError: It is not JSON with a prompt.
    """
    if before is not None and before.head and before.interface == interface:
        longer = _longer(before, body)
        if longer is not None:
            return longer
    name = PROMPTS[interface]
    whole = body
    try:
        try:
            fields = _FIELDS.decode(whole)
        except msgspec.DecodeError:
            # The decoder refuses lone surrogates, which Python and JavaScript write. Escapes have one length.
            whole = _SURROGATE.sub(rb"\\ufffd", body)
            fields = _FIELDS.decode(whole)
        raw = bytes(fields.pop(name))
        is_text = raw.startswith(b'"')
        items = [raw] if is_text else list(map(bytes, _ITEMS.decode(raw)))
    except (msgspec.DecodeError, KeyError) as error:
        raise UnreadableError(f"the request is not JSON with {name}: {error}") from None
    start = whole.find(raw)
    end = start + len(raw)
    prompt = body[start:end].decode("utf-8", "replace")
    settings = {name: bytes(value) for name, value in fields.items()}
    request = Request(prompt, items, settings, interface, start)
    # The messages must be where they were found: another field may have the same ones.
    if not is_text and items and whole is body and body.count(raw) == 1:
        request.head = body[: end - 1].rstrip()
        request.tail = body[end - 1 :]
    return request


def _longer(before: Request, body: bytes) -> Request | None:
    """Return a request that is the one before with further messages; None if it is another one.

    Nearly every request is, and only what is new in it is read: its cost does not grow with the conversation.
    """
    if not (body.startswith(before.head) and body.endswith(before.tail)):
        return None
    end = len(body) - len(before.tail)
    added = body[len(before.head) : end].strip()
    if not added.startswith(b","):
        return None
    try:
        items = _ITEMS.decode(b"[%b]" % added[1:])
    except msgspec.DecodeError:
        return None
    if not items:
        return None
    return Request(
        prompt=body[before.start : end + 1].decode("utf-8", "replace"),
        items=[*before.items, *map(bytes, items)],
        settings=before.settings,
        interface=before.interface,
        start=before.start,
        head=body[:end].rstrip(),
        tail=before.tail,
        known=len(before.items),
    )


def last_input(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the default state: the text of the last message that a tool or the user wrote.

    >>> last_input([{"role": "user", "content": "Go."}, {"role": "assistant", "content": "look"}])
    'Go.'
    """
    for message in reversed(messages):
        if message.get("role") in _READ_BY or str(message.get("type", "")).endswith(
            "_output"
        ):
            content = message.get("content", message.get("output"))
            return text_of(content) or orjson.dumps(content).decode()
    return ""


def text_of(content: object) -> str:
    """Return the text of the content of a message: a text, or parts."""
    if not content:
        return ""
    is_plain = isinstance(content, str) and "</think>" not in content
    return content if is_plain else message_text({"content": content})  # type: ignore[return-value]


def state_of(request: Request, state_key: Callable[[Sequence[Any]], object]) -> str:
    """Return the state of a call: what `state_key` makes of its messages.

    Raises:
        UnreadableError: It raises an exception, or does not return a text.
    """
    # The default reads from the end, so that a long conversation is not decoded for each of its calls.
    if state_key is last_input:
        for item in reversed(request.items):
            if found := last_input([_message(item)]):
                return found
        return ""
    messages = [_message(item) for item in request.items]
    try:
        state = state_key(messages)
    except Exception as error:
        raise UnreadableError(
            f"--state-key raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(state, str):
        raise UnreadableError(
            f"--state-key: expected a text, received {type(state).__name__}"
        )
    return state


def _message(item: bytes) -> dict[str, Any]:
    """Return a message; a text of the interface of responses is one of the user."""
    value = msgspec.json.decode(item)
    return value if isinstance(value, dict) else {"role": "user", "content": value}


def read_answer(interface: str, body: bytes) -> Answer:
    """Read the body of an answer with a status of success.

    Raises:
        RequestError: It reports an error, or contains no reply: the server failed.
        UnreadableError: The reply has values that a step cannot have.
    """
    read = read_completion if interface == "chat/completions" else _as_completion
    completion = read(body)
    choice, *others = completion["choices"]
    message = choice["message"]
    reply = completion_reply(completion, with_logprobs=True)
    logprobs = reply.response_logprobs
    tokens = reply.response_token_ids
    if logprobs is not None and tokens is not None and len(logprobs) != len(tokens):
        # they are not those of these tokens
        reply = replace(reply, response_logprobs=None)
    answer = checked(Reply, reply)
    if isinstance(answer, Failure):
        raise UnreadableError(f"the reply has unusable values: {answer}")
    # Of the checked message: a server may repeat the key.
    action = action_text(
        answer.message or {"content": answer.response},
        tools=True,
        thought=False,
        cut_off=answer.finish_reason == "length",
        custom=True,
    )
    identifier = completion.get("id")
    return Answer(
        id=identifier if isinstance(identifier, str) else "",
        reply=answer,
        action=action,
        items=message.get("output", [{"role": "assistant", **message}]),
        others=[other for other in others if not is_deep(other)],
    )


def _as_completion(body: bytes) -> dict[str, Any]:
    """Return an answer of the interface of responses as a chat completion, whose message has the items as they came."""
    try:
        answer = orjson.loads(body)
        output = answer["output"]
    except (ValueError, KeyError, TypeError):
        answer = {}
        output = None
    if not isinstance(output, list) or answer.get("status") not in (
        None,
        "completed",
        "incomplete",
    ):
        raise RequestError(f"the answer contains no response: {body[:200]!r}", 200)
    items = [item for item in output if isinstance(item, dict)]
    parts = [
        part
        for item in items
        if item.get("type") == "message"
        for part in item.get("content") or ()
    ]
    thoughts = [item for item in items if item.get("type") == "reasoning"]
    fields = {
        "role": "assistant",
        "content": message_text({"content": parts}),
        "tool_calls": [call for item in items if (call := _call(item))],
        "reasoning": [
            part
            for item in thoughts
            for part in item.get("summary") or item.get("content") or ()
        ],
    }
    message = {name: value for name, value in fields.items() if value}
    message["output"] = output
    details = answer.get("incomplete_details") or {}
    reason = "stop" if answer.get("status") != "incomplete" else details.get("reason")
    if reason in (None, "max_output_tokens"):
        reason = "length"
    return {**answer, "choices": [{"message": message, "finish_reason": reason}]}


def _call(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an item of the output as a tool call of a message; None if it is none."""
    kind = str(item.get("type"))
    identifier = item.get("call_id")
    name = item.get("name")
    if kind == "custom_tool_call":
        custom = {"name": name, "input": item.get("input")}
        return {"id": identifier, "type": "custom", "custom": custom}
    arguments = item.get("arguments")
    if kind != "function_call":
        # Of the server's own tools, the program executes those with the id of a call: shell, apply_patch, computer.
        if not kind.endswith("_call") or not identifier:
            return None
        name = kind.removesuffix("_call")
        given = item.items()
        arguments = {
            key: value for key, value in given if key not in _OF_CALLS and value
        }
    function = {"name": name, "arguments": arguments}
    return {"id": identifier, "type": "function", "function": function}


def with_token_ids(body: bytes) -> bytes:
    """Return the body of a chat completion with fields that ask vLLM for token ids and log-probabilities.

    All other bytes stay as they are. A field that is there already stays, too.

    >>> with_token_ids(b'{"messages": []}')
    b'{"messages": [], "return_token_ids": true, "logprobs": true}'
    """
    try:
        present = _FIELDS.decode(body)
    except msgspec.DecodeError:
        return body
    added = [name for name in ("return_token_ids", "logprobs") if name not in present]
    end = body.rindex(b"}")
    written = "".join(f', "{name}": true' for name in added).encode()
    return body[:end] + (written if present else written[2:]) + body[end:]
