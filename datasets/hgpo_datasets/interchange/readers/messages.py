"""Chat messages as rows of the step table: each reply of the model is a step.

The prompt of a step is the text of the user's message if it is the only one, and else the messages before the reply as
a JSON list. The state is what the environment showed last: the texts of the messages since the previous reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from hgpo_datasets.interchange.readers.json_records import objects
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.hashing import text_hash
from hgpo_envs.responses import action_text, message_calls, message_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    Message = dict[str, Any]
    Row = dict[str, Any]

_PARTS: Final = {"role", "content"}
_SYSTEM: Final = ("system", "developer")
_ROLES: Final = (*_SYSTEM, "user", "assistant", "tool", "function")


def checked_messages(value: object, where: str) -> list[Message]:
    """Return a list of chat messages in OpenAI's form, in which tool calls have a `function`.

    Raises:
        InputError: It is no list of objects, or one has no known role: a reply would be lost, or its prompt changed.
    """
    messages = objects(value, f"{where}, messages")
    for message in messages:
        role = message.get("role")
        if role is None:
            raise InputError(
                f"{where}, messages: expected a role in each message ({', '.join(_ROLES)}), received none"
            )
        if role not in _ROLES:
            raise InputError(f"{where}, messages: {unknown('role', role, _ROLES)}")
    return [_openai_form(message) for message in messages]


def _openai_form(message: Message) -> Message:
    """Return a message whose calls are OpenAI's: Inspect's and verifiers' have name and arguments at the top."""
    entries = message.get("tool_calls")
    if not isinstance(entries, list):
        return message
    calls = [_call(entry) if isinstance(entry, dict) else entry for entry in entries]
    return {**message, "tool_calls": calls}


def _call(entry: Message) -> Message:
    name = entry.get("name") or entry.get("function")
    if not isinstance(name, str) or "arguments" not in entry:
        return entry
    arguments = entry["arguments"]
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    return {
        "id": entry.get("id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def conversation_rows(messages: list[Message]) -> Iterator[Row]:
    """Yield the steps of a conversation: one for each message of the assistant.

    A message of weight 0, as in OpenAI's files for fine-tuning, is an example in the prompt.
    """
    for index, message in enumerate(messages):
        if message.get("role") == "assistant" and message.get("weight") != 0:
            yield step_row(messages[:index], message)


def step_row(prompt: list[Message], reply: Message) -> Row:
    """Return the texts of a step: state, prompt, response, action, and the message if it is more than its text."""
    response = message_text(reply)
    others = [name for name, value in reply.items() if value and name not in _PARTS]
    is_more = bool(others) or reply.get("content") != response
    has_calls = bool(message_calls(reply))
    return {
        "state": shown(prompt),
        "prompt": prompt_text(prompt),
        "response": response,
        "message": orjson.dumps(reply).decode() if is_more else None,
        "action": action_text(reply, tools=has_calls, thought=False, custom=True),
    }


def shown(prompt: list[Message]) -> str:
    """Return the texts of the messages since the last reply."""
    texts = []
    for message in reversed(prompt):
        if message.get("role") == "assistant":
            break
        if message.get("role") not in _SYSTEM:
            texts.append(message_text(message))
    return "\n\n".join(reversed(texts))


def prompt_text(prompt: list[Message]) -> str:
    """Return messages as the text of the column `prompt`."""
    if (
        len(prompt) == 1
        and prompt[0].get("role") == "user"
        and isinstance(prompt[0].get("content"), str)
    ):
        return str(prompt[0]["content"])
    return orjson.dumps(prompt).decode()


def task_of(prompt: str) -> str:
    """Return the name of a task that has none: a hash of the first prompt, so that equal prompts are one group."""
    return f"{text_hash(prompt) & (1 << 64) - 1:016x}"
