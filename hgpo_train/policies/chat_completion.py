"""Chat completions in the forms in which OpenAI-compatible servers send them.

What a server leaves out or sends in another form is unknown (None). What is no answer of the model is an error, also
with the status 200, as some gateways send it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import orjson

from hgpo_envs.errors import one_line
from hgpo_envs.responses import DEEPEST, finish_reason, is_deep, message_text
from hgpo_train.policies.base import Reply
from hgpo_train.policies.http_client import RequestError
from hgpo_train.policies.server_errors import read_error
from hgpo_train.policies.validation import INT32

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTERRUPTED: Final = frozenset(
    {"error", "abort", "network_error", "insufficient_system_resource"}
)
"""The finish reasons of replies that the server did not finish: the last ones are Z.AI's and DeepSeek's."""


def read_completion(answer: bytes) -> dict[str, Any]:
    """Return a chat completion whose first choice is the reply, with a ``message`` that is an object.

    Raises:
        RequestError: The answer is none, or it reports an error.
    """
    completion = _decoded(answer)
    # Whatever the form is, the message becomes an object, and the error a value.
    whole = completion if isinstance(completion, dict) else {}
    choices = _choices(whole.get("choices"))
    choice = choices[0] if choices else {}
    message = choice.get("message", choice.get("text"))  # the text of older servers
    if isinstance(message, str):
        message = {"content": message}
    # What has few brackets is not deep.
    if isinstance(message, dict) and answer.count(b"[") + answer.count(b"{") > DEEPEST:
        message = {name: _shallow(value) for name, value in message.items()}
    fault = whole.get("error")
    if not fault:
        fault = _fault(choice, message) if choice else completion
    if choice and not fault:
        first = {**choice, "message": message or {}}
        return {**whole, "choices": [first, *choices[1:]]}
    report = fault if isinstance(fault, dict | list | str) else answer
    reported = read_error(report, 200)
    raise RequestError(
        f"the answer contains no reply: {reported.message}",
        200,
        transient=reported.transient,
        reported=reported,
    )


def _decoded(answer: bytes) -> Any:  # noqa: ANN401 - any JSON
    try:
        return orjson.loads(answer)
    except orjson.JSONDecodeError:
        pass
    try:  # more lenient: byte order marks, lone surrogates, NaN
        return json.loads(answer.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"the answer is not a chat completion: {error}", 200, transient=True
        ) from None


def _choices(listed: object) -> list[dict[str, Any]]:
    """Return the choices, from number 0 on."""
    if not isinstance(listed, list):
        return []
    choices = [each for each in listed if isinstance(each, dict)]
    return sorted(choices, key=lambda choice: choice.get("index") != 0)


def _fault(choice: Mapping[str, Any], message: object) -> object:
    """Return why a choice is not an answer of the model; an empty value if it is one."""
    fields = message if isinstance(message, dict) else {}
    reason = choice.get("finish_reason")
    reported = choice.get("error") or fields.get("error")
    if reported or str(reason).lower() in _INTERRUPTED:
        return reported or f"the choice ends with {reason!r}"
    if message is None:
        is_message = True
    else:
        is_message = message is fields and isinstance(
            fields.get("content"), str | list | dict | None
        )
    # The model may answer nothing, for a reason: it was stopped at once, by the limit or by a filter.
    is_silent = reason is None and not message_text(fields)
    if "delta" in choice or not is_message or is_silent:
        return f"expected a message with a text or parts, received {one_line(repr(message), 60)}"
    return None


def _shallow(value: object) -> object:
    """Return a field of a message, whose parts that are nested too deeply are replaced by a text."""
    if isinstance(value, list) and is_deep(value):
        return ["(nested too deeply)" if is_deep(part) else part for part in value]
    return "(nested too deeply)" if is_deep(value) else value


def completion_reply(completion: Mapping[str, Any], *, with_logprobs: bool) -> Reply:
    """Return the reply in a chat completion.

    Args:
        completion: What `read_completion` returned.
        with_logprobs: Whether log-probabilities were requested.
    """
    choice = completion["choices"][0]
    message = choice["message"]
    usage = completion.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    response = message_text(message)  # an empty one is an invalid action, not a failure
    tokens = choice.get("token_ids")
    counted = _count(usage.get("completion_tokens", usage.get("output_tokens")))
    logprobs = _logprobs(choice.get("logprobs")) if with_logprobs else None
    # Some servers leave out those of thoughts or calls. The end of the turn may count or not.
    is_countable = tokens is None and len(completion["choices"]) == 1
    if logprobs is not None and counted is not None and is_countable:
        is_partial = abs(len(logprobs) - counted) > 1
        logprobs = None if is_partial else logprobs
    others = message.keys() - {"role", "content"}
    is_more = message.get("content") != response or any(
        message[name] for name in others
    )
    return Reply(
        response=response,
        message=message if is_more else None,
        prompt_token_ids=completion.get("prompt_token_ids"),
        response_token_ids=tokens,
        response_logprobs=logprobs,
        finish_reason=finish_reason(choice.get("finish_reason")),
        prompt_tokens=_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        response_tokens=counted,
    )


def _logprobs(logprobs: object) -> list[Any] | None:
    """Return the log-probabilities of the tokens; None if one is missing or NaN, which servers write as null too."""
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(entries, list):
        return None
    values = [
        entry.get("logprob") if isinstance(entry, dict) else entry for entry in entries
    ]
    # NaN is not itself
    is_missing = any(value is None or value != value for value in values)
    return None if is_missing else values


def _count(value: object) -> int | None:
    """Return a number of tokens, which some servers write as a float or a text; None if it is none."""
    if value is None:
        return None
    try:
        number = int(float(value))  # type: ignore[arg-type]  # caught below
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < INT32 else None
