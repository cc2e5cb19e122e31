"""Conversations: the messages and the tokens of a prompt whose earlier turns the policy reads (`prompt_style="chat"`).

The tokens of a conversation are never encoded again: each prompt is the tokens of the prompt before it, the response as
the model generated it, and the tokens that the chat template puts between a response and the next one. So the last
prompt of a trajectory contains all earlier ones, and thoughts that a chat template would remove stay.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.responses import before_calls, call_text, message_calls, tool_calls
from hgpo_train.models.chat_format import RESPONSE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_train.models.hf import Tokenizer


class Turn(NamedTuple):
    """A past turn of a conversation.

    Attributes:
        message: The message to the policy.
        response: What the policy wrote.
        prompt_token_ids: The tokens of the whole prompt, if it had all earlier turns; otherwise None.
        response_token_ids: The tokens of the response; None if they are unknown.
        reply: The assistant's message as the server sent it, as JSON; None if `response` is all there is.
    """

    message: str
    response: str
    prompt_token_ids: Sequence[int] | None = None
    response_token_ids: Sequence[int] | None = None
    reply: str | None = None


def chat_messages(
    system_prompt: str,
    turns: Sequence[Turn],
    prompt: str,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Return a conversation as the messages of an OpenAI-compatible server.

    A server's own messages go back as it sent them. Each of their calls is followed by a result with its id. With
    tools, the calls in a response without such a message are sent as calls, too.

    Args:
        system_prompt: The system message; none if empty.
        turns: The past turns, oldest first.
        prompt: The new message.
        tools: The tools that a response may call.

    >>> [message["role"] for message in chat_messages("Be brief.", [Turn("You are in a hall.", "look")], "A door.")]
    ['system', 'user', 'assistant', 'user']
    """
    messages: list[dict[str, Any]] = []
    if system_prompt:
        messages.append({"role": "system", "content": system_prompt})
    used: set[str] = set()
    calls: list[str] = []  # the ids of the calls whose result is the next message
    reasoning: dict[str, str] = {}
    for number, text in enumerate([*(turn.message for turn in turns), prompt]):
        # 1. What the environment shows: a message of the user; or the results of calls, of which a server expects one
        # message for each. The last one has the results of all.
        shown: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": call, "content": _IN_THE_LAST}
            for call in calls
        ]
        shown = shown or [{"role": "user"}]
        shown[-1]["content"] = text if text.strip() else _NOTHING
        messages += shown
        if number == len(turns):
            break

        # 2. The response to it.
        turn = turns[number]
        message = reasoning | _assistant(turn, with_tools=bool(tools))
        # After a message with this field, DeepSeek's server expects it in all that follow.
        if "reasoning_content" in message:
            reasoning = {"reasoning_content": ""}
        calls = [_with_id(call, used) for call in message.get("tool_calls", ())]
        messages.append(message)
    return messages


_NOTHING: Final = "(empty)"
"""Stands for an empty text or one of spaces, which some servers refuse."""

_IN_THE_LAST: Final = "The results of all calls are in the message of the last call."


def _assistant(turn: Turn, *, with_tools: bool) -> dict[str, Any]:
    """Return a response as a message: the server's own, or one made of the text."""
    sent: dict[str, Any] = (
        json.loads(turn.reply) if turn.reply else {"content": turn.response}
    )
    # Servers send fields that are null, and refuse them.
    fields = {
        name: value
        for name, value in sent.items()
        if value is not None or name == "content"
    }
    message = {"role": "assistant", **fields}

    # The calls, in a form that servers accept: those of the message, or those written in its text.
    calls = [_sendable(call) for call in message_calls(message)]
    message.pop("tool_calls", None)
    message.pop("function_call", None)
    content = message.get("content")
    if with_tools and not calls and isinstance(content, str):
        calls = [
            _function_call(call.name, json.dumps(call.arguments))
            for call in tool_calls(content) or ()
        ]
        if calls:
            content = before_calls(content).strip()

    # The text. Servers refuse an empty one; beside calls it can be left out.
    if isinstance(content, list):
        content = [part for part in content if not _is_empty(part)]
    if not calls:
        message["content"] = _NOTHING if _is_empty(content) else content
        return message
    if isinstance(content, str | list) and _is_empty(content):
        message.pop("content")
    elif "content" in message:
        message["content"] = content
    message["tool_calls"] = calls
    return message


def _is_empty(content: Any) -> bool:  # noqa: ANN401 - whatever the server has sent
    if isinstance(content, dict) and content.get("type") == "text":
        content = content.get("text")
    if isinstance(content, str):
        content = content.strip()
    return not content


def _function_call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _sendable(entry: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever the server has sent
    """Return a call of a server's message as it is; a malformed one as an argument of a call, which is an object.

    Servers parse the arguments of past calls, and refuse the whole conversation if they are no object.
    """
    if call_text(entry) is not None:
        arguments = entry["function"].get("arguments") or "{}"
        return {
            **entry,
            "type": "function",
            "function": {**entry["function"], "arguments": arguments},
        }
    fields = entry if isinstance(entry, dict) else {"function": entry}
    function = fields.get("function")
    name = None
    arguments = entry
    if isinstance(function, dict):
        name = function.get("name")
        arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    known = name if isinstance(name, str) and name else "unknown"
    return {**fields, **_function_call(known, json.dumps({"malformed": written}))}


def _with_id(call: dict[str, Any], used: set[str]) -> str:
    """Return the id of a call. It gets one of nine letters and digits if it has none, or one that is used already."""
    name = call.get("id")
    if not isinstance(name, str) or not name or name in used:
        numbered = (f"call{number:05}" for number in count(len(used)))
        name = next(new for new in numbered if new not in used)
        call["id"] = name
    used.add(name)
    return name


def encode_chats(
    tokenizer: Tokenizer,
    chats: Sequence[Sequence[Mapping[str, Any]]],
    chat_template_options: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[list[int]]:
    """Render messages by the chat template, with the start of the assistant's turn, and tokenize them.

    Args:
        tokenizer: A tokenizer with a chat template.
        chats: The messages of each prompt, of the same roles.
        chat_template_options: Further arguments of the chat template.
        tools: The tools that a response may call, as JSON schemas, which the chat template renders.

    Returns:
        One list of token ids per prompt.

    Raises:
        InputError: There are tools, and the chat template does not render them; or it leaves out a message.
    """
    arguments = dict(chat_template_options or {})
    if tools:
        arguments = {"tools": list(tools), **arguments}
    lists = [list(chat) for chat in chats]
    render = partial(
        tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False
    )
    texts = render(lists, **arguments)

    for message in lists[0] if lists else ():
        _check_rendered(render, lists[0], message, arguments)
    if tools and texts:
        (bare,) = render(lists[:1], **{**arguments, "tools": None})
        missing = [
            tool for tool in tools if not _shows(tool["function"], texts[0], bare)
        ]
        if missing:
            names = one_line(
                ", ".join([tool["function"]["name"] for tool in missing]), 200
            )
            raise InputError(
                f"the environment has tools, which the model's chat template does not render ({names}); use another "
                "model, or the option chat_template with a template that renders them"
            )
    tokens: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return tokens


def _check_rendered(
    render: Callable[..., Any],
    chat: Sequence[Mapping[str, Any]],
    message: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> None:
    """Raise `InputError` if a template leaves out a message of a chat.

    Some skip messages of the system or of tools, or read only contents that are lists of parts, without an error.
    """
    marked = [
        {**each, "content": RESPONSE if each is message else "?"} for each in chat
    ]
    if RESPONSE not in render(marked, **arguments):
        raise InputError(
            f"the model's chat template leaves out the {message['role']} message; use the option chat_template "
            "with a template that renders it"
        )


def _shows(function: Mapping[str, Any], text: str, bare: str) -> bool:
    """Return whether a prompt describes a tool. Prompts name tools in any case, also if the template ignores them.

    Args:
        function: The tool's name and description.
        text: The prompt, rendered with the tools.
        bare: The same prompt, rendered without them.
    """
    name = function["name"]
    description = function.get("description") or ""
    written_by_the_environment = bool(description) and description in bare
    return text.count(name) > bare.count(name) or written_by_the_environment


def encode_conversation(
    tokenizer: Tokenizer,
    system_prompt: str,
    turns: Sequence[Turn],
    prompt: str,
    chat_template_options: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """Return the tokens of a conversation, of which those of past turns are not encoded again if they are known.

    Args:
        tokenizer: A tokenizer with a chat template.
        system_prompt: The system message; none if empty.
        turns: The past turns, oldest first.
        prompt: The new message.
        chat_template_options: Further arguments of the chat template.
        tools: The tools that a response may call.

    Raises:
        InputError: The chat template does not render responses, or not the tools.
    """
    # Begin with the longest prompt whose tokens are known, of turn number `first`; or with that of the first turn.
    messages = [turn.message for turn in turns] + [prompt]
    first = len(turns) - 1
    while first >= 0 and turns[first].prompt_token_ids is None:
        first -= 1
    if first >= 0:
        tokens = list(turns[first].prompt_token_ids or ())
    else:
        first = 0
        (tokens,) = encode_chats(
            tokenizer,
            [chat_messages(system_prompt, (), messages[0])],
            chat_template_options,
            tools,
        )

    # Append each later response, as it was generated, and what the template writes from there to the next one.
    for turn, message in zip(turns[first:], messages[first + 1 :], strict=True):
        response = turn.response_token_ids
        if response is None:
            encoded = tokenizer([turn.response], add_special_tokens=False)
            (response,) = encoded["input_ids"]
        role = "tool" if tools and tool_calls(turn.response) else "user"
        between = _after_response(tokenizer, message, role, chat_template_options)
        tokens += [*response, *_not_written(tokenizer, response, between)]
    return tokens


def _not_written(
    tokenizer: Tokenizer,
    response: Sequence[int],
    between: list[int],
) -> list[int]:
    """Return the tokens between a response and the next one, without the end-of-turn token if the response has it.

    Templates may write a space before that token.
    """
    if not len(response) or response[-1] not in between:
        return between
    end = between.index(response[-1])
    is_end_of_turn = not tokenizer.decode(between[:end]).strip()
    return between[end + 1 :] if is_end_of_turn else between


def _after_response(
    tokenizer: Tokenizer,
    message: str,
    role: str,
    chat_template_options: Mapping[str, Any] | None,
) -> list[int]:
    """Return the tokens from the end of a response to the start of the next one, with a message between them."""
    chat = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": RESPONSE},
        {"role": role, "content": message},
    ]
    render = partial(
        tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False
    )
    arguments = chat_template_options or {}
    _, found, after = render(chat, **arguments).partition(RESPONSE)
    if not found:
        raise InputError(
            "the model's chat template does not render earlier responses; use prompt_style = 'memory'"
        )
    # nearly every message is in it as it is
    if message.strip() not in after:
        _check_rendered(render, chat, chat[-1], arguments)
    tokens: list[int] = tokenizer([after], add_special_tokens=False)["input_ids"][0]
    return tokens


def fewest_dropped(
    turns: Sequence[Turn], fits: Callable[[Sequence[Turn]], bool]
) -> int:
    """Return the smallest number of turns to leave out, of those after the first, so that a conversation fits.

    Args:
        turns: The past turns.
        fits: Whether a conversation with these turns fits.

    Returns:
        At most `len(turns) - 1`: the last response stays, and the first message, which has the task.
    """
    most = max(0, len(turns) - 1)
    return bisect_left(
        range(most), True, key=lambda dropped: fits(without_oldest(turns, dropped))
    )


def without_oldest(turns: Sequence[Turn], dropped: int) -> list[Turn]:
    """Return turns without the oldest responses and what followed each of them. The first message stays.

    So every message still follows the response that led to it, as a result follows its call. Tokens of prompts that
    contained what is dropped are dropped too.

    >>> without_oldest([Turn("task", "a"), Turn("after a", "b"), Turn("after b", "c")], 1)[0][:2]
    ('task', 'b')
    """
    if not dropped:
        return list(turns)
    task = turns[0]
    first = turns[dropped]._replace(
        message=task.message, prompt_token_ids=task.prompt_token_ids
    )
    later = [turn._replace(prompt_token_ids=None) for turn in turns[1 + dropped :]]
    return [first, *later]
