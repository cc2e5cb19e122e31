"""Validation of values from policies and environments: replies, states and tasks.

The collector validates them before any other use. A value that the step table cannot store aborts its trajectory, with
the reason, and no other.

- Any text is valid. Lone surrogates, which UTF-8 cannot encode, are replaced by U+FFFD, as in the step table: otherwise
  the next prompt, which contains the text, could not be sent. Registered secrets (`hgpo_envs.files.secrets`) are
  replaced, because a server may repeat the key that it received.
- Token ids are integers in [0, 2³¹). Log-probabilities are numbers, neither NaN nor +∞, one for each token id.
- Rewards and scores are finite numbers of at most `LARGEST` in magnitude, so that their sum, the return, is finite.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact
from hgpo_envs.unicode_text import clean_text
from hgpo_train.policies.base import Failure, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST: Final = 1e300
"""The largest magnitude of a reward or score."""

_INT32: Final = 1 << 31
_FLOAT32: Final = 3.4e38
_SHOWN: Final = 60

T = TypeVar("T")


class BadValueError(InputError):
    """An invalid value from a policy or an environment. The message is one line: expected, received."""


def checked_reply(reply: object) -> Reply | Failure:
    """Validate a policy's reply and convert its values to the declared types.

    A text is the response of a reply without token ids and with an unknown finish reason.

    Returns:
        The reply; a `Failure` ``PolicyFailed`` if a value is invalid.
    """
    if isinstance(reply, Failure):
        return Failure(_as_text(reply.kind), _as_text(reply.line), reply.error)
    if isinstance(reply, str):
        reply = Reply(reply, finish_reason=None)
    if not isinstance(reply, Reply):
        return _invalid(BadValueError(f"expected a text (str) or a Reply, received {preview(reply)}"))
    try:
        response, prompt = checked_text("response", reply.response), _optional(checked_text, "prompt", reply.prompt)
        finish_reason = _optional(checked_text, "finish_reason", reply.finish_reason)
        prompt_tokens = _optional(_token_ids, "prompt_token_ids", reply.prompt_token_ids)
        tokens = _optional(_token_ids, "response_token_ids", reply.response_token_ids)
        logprobs = _optional(_logprobs, "response_logprobs", reply.response_logprobs)
        _check_lengths(tokens, logprobs)
        cut_pairs = _optional(checked_count, "cut_pairs", reply.cut_pairs)
        cut_tokens = _optional(checked_count, "cut_tokens", reply.cut_tokens)
        counts = (
            _optional(checked_count, "prompt_tokens", reply.prompt_tokens),
            _optional(checked_count, "response_tokens", reply.response_tokens),
        )
        return Reply(response, prompt, prompt_tokens, tokens, logprobs, finish_reason, cut_pairs, cut_tokens, *counts)
    except BadValueError as error:
        return _invalid(error)
    except Exception as error:  # noqa: BLE001 - a value may be of any type, and its methods may raise
        return Failure.of("PolicyFailed", error)


def _invalid(error: BadValueError) -> Failure:
    return Failure("PolicyFailed", str(error), error)


def checked_state(state: object) -> State | Failure:
    """Validate an environment's state and convert its values to the declared types.

    Returns:
        The state; a `Failure` ``EnvironmentFailed`` if a value is invalid.
    """
    if isinstance(state, Failure):
        return Failure(_as_text(state.kind), _as_text(state.line))
    if not isinstance(state, State):
        return Failure("EnvironmentFailed", f"expected a State, received {preview(state)}")
    try:
        won = _optional(_flag, "won", state.won)
        flags = (_flag("valid", state.valid), _flag("terminated", state.terminated), won)
        numbers = (checked_number("reward", state.reward), checked_number("score", state.score))
        return State(
            checked_text("state text", state.text),
            _texts("admissible actions", state.actions),
            *flags,
            *numbers,
            state.info,
            _flag("truncated", state.truncated),
            _optional(checked_text, "state key", state.key),
        )
    except BadValueError as error:
        return Failure("EnvironmentFailed", str(error))
    except Exception as error:  # noqa: BLE001 - see above
        return Failure.of("EnvironmentFailed", error)


def checked_task(task: object) -> Task | Failure:
    """Validate a task of a task source and convert its values to the declared types.

    Returns:
        The task; a `Failure` ``EnvironmentFailed`` if a value is invalid.
    """
    if not isinstance(task, Task):
        return Failure("EnvironmentFailed", f"expected a Task, received {preview(task)}")
    try:
        _check_versions(task.versions)
        return replace(
            task,
            id=checked_text("task id", task.id),
            split=checked_text("split", task.split),
            instruction=checked_text("instruction", task.instruction),
            task_type=checked_text("task_type", task.task_type),
        )
    except BadValueError as error:
        return Failure("EnvironmentFailed", str(error))
    except Exception as error:  # noqa: BLE001 - see above
        return Failure.of("EnvironmentFailed", error)


def checked_text(name: str, value: object) -> str:
    """Return a text without lone surrogates and registered secrets.

    Raises:
        BadValueError: The value is not text.

    >>> checked_text("response", "look" + chr(0xD800))
    'look�'
    >>> checked_text("response", 3)
    Traceback (most recent call last):
    ...
    hgpo_train.policies.validation.BadValueError: response: expected text, received int 3
    """
    if type(value) is not str:
        if not isinstance(value, str):
            raise BadValueError(f"{name}: expected text, received {preview(value)}")
        value = str.__str__(value)  # a subclass of str may override methods: convert it to a plain str
    return redact(value if value.isascii() or _encodable(value) else clean_text(value), patterns=False)


def checked_number(name: str, value: object) -> float:
    """Return a number as a float.

    Raises:
        BadValueError: The value is not a finite number of at most `LARGEST` in magnitude.
    """
    if type(value) is float and -LARGEST <= value <= LARGEST:
        return value
    if not _is_number(value) or not abs(plain := float(value)) <= LARGEST:  # type: ignore[arg-type]  # a number
        raise BadValueError(f"{name}: expected a finite number, received {preview(value)}")
    return plain


def checked_count(name: str, value: object) -> int:
    """Return an integer as an int.

    Raises:
        BadValueError: The value is not an integer in [0, 2³¹).
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 0 <= (plain := int(value)) < _INT32:
        raise BadValueError(f"{name}: expected an integer from 0 to {_INT32 - 1}, received {preview(value)}")
    return plain


def preview(value: object) -> str:
    """Describe a value of any type for a message: its type and the start of its `repr`, without secrets.

    >>> preview([1, 2]), preview(None)
    ('list [1, 2]', 'None')
    """
    try:
        written = repr(value)
    except Exception:  # noqa: BLE001 - a custom `__repr__` may raise anything
        written = ""
    kind = "" if value is None else f"{type(value).__name__} "
    return f"{kind}{redact(written)[:_SHOWN]}".strip()


def _check_lengths(tokens: list[int] | None, logprobs: list[float] | None) -> None:
    if tokens is not None and logprobs is not None and len(tokens) != len(logprobs):
        raise BadValueError(f"expected one log-probability for each of {len(tokens)} tokens, received {len(logprobs)}")


def _check_versions(versions: object) -> None:
    if not isinstance(versions, Mapping):
        raise BadValueError(f"versions: expected a mapping of names to texts, received {preview(versions)}")
    json.dumps(dict(versions), sort_keys=True)


def _optional(check: Callable[[str, object], T], name: str, value: object) -> T | None:
    return None if value is None else check(name, value)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else preview(value)


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(name: str, values: object) -> list[str]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise BadValueError(f"{name}: expected a list of texts, received {preview(values)}")
    listed = list(values)
    if set(map(type, listed)) <= {str}:  # fast path: one check of the joined text instead of one per action
        joined = "".join(listed)
        if checked_text(name, joined) == joined:
            return listed
    return [checked_text(name, value) for value in listed]


def _flag(name: str, value: object) -> bool:
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise BadValueError(f"{name}: expected true or false, received {preview(value)}")
    return bool(value)


def _token_ids(name: str, values: object) -> list[int]:
    listed = _listed(name, values, "token ids")
    try:
        found = array("q", listed)
    except (TypeError, OverflowError):
        wrong = next((value for value in listed if not _is_integer(value) or abs(int(value)) >= _INT32), None)
        raise BadValueError(f"{name}: expected integers from 0 to {_INT32 - 1}, received {preview(wrong)}") from None
    if found and not 0 <= min(found) <= max(found) < _INT32:
        wrong = next(value for value in found if not 0 <= value < _INT32)
        raise BadValueError(f"{name}: expected integers from 0 to {_INT32 - 1}, received {wrong}")
    return found.tolist()


def _logprobs(name: str, values: object) -> list[float]:
    listed = _listed(name, values, "numbers")
    try:
        found = array("d", listed)
    except (TypeError, OverflowError):
        wrong = next((value for value in listed if not _is_number(value) or abs(value) > LARGEST), None)
        raise BadValueError(f"{name}: expected numbers, received {preview(wrong)}") from None
    if any(map(math.isnan, found)) or (found and max(found) > _FLOAT32):
        wrong = next(value for value in found if not value <= _FLOAT32)
        raise BadValueError(f"{name}: expected numbers below infinity, received {wrong}")
    return found.tolist()


def _listed(name: str, values: object, of: str) -> list[Any]:
    if isinstance(values, np.ndarray | array):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise BadValueError(f"{name}: expected a list of {of}, received {preview(values)}")
    return list(values)


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
