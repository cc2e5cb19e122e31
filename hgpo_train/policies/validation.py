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
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact
from hgpo_envs.unicode_text import clean_text
from hgpo_train.policies.base import Failure, Reply

LARGEST: Final = 1e300
"""The largest magnitude of a reward or score."""

_INT32: Final = 1 << 31
_FLOAT32: Final = 3.4e38
_SHOWN: Final = 60
_INTEGERS: Final = (int, np.integer)
_NUMBERS: Final = (int, float, np.integer, np.floating)

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
        error = BadValueError(f"expected a text (str) or a Reply, received {preview(reply)}")
        return Failure("PolicyFailed", str(error), error)
    return _validated("PolicyFailed", _reply, reply)


def _reply(reply: Reply) -> Reply:
    values: dict[str, Any] = {"finish_reason": None}
    for name, check in _OPTIONAL.items():
        if (value := getattr(reply, name)) is not None:
            values[name] = check(name, value)
    tokens, logprobs = values.get("response_token_ids"), values.get("response_logprobs")
    if tokens is not None and logprobs is not None and len(tokens) != len(logprobs):
        raise BadValueError(f"expected one log-probability for each of {len(tokens)} tokens, received {len(logprobs)}")
    return Reply(checked_text("response", reply.response), **values)


def _validated(kind: str, check: Callable[[T], T], value: T) -> T | Failure:
    try:
        return check(value)
    except BadValueError as error:
        return Failure(kind, str(error), error)
    except Exception as error:  # noqa: BLE001 - a value may be of any type, and its methods may raise
        return Failure.of(kind, error)


def checked_state(state: object) -> State | Failure:
    """Validate an environment's state and convert its values to the declared types.

    Returns:
        The state; a `Failure` ``EnvironmentFailed`` if a value is invalid.
    """
    if isinstance(state, Failure):
        return Failure(_as_text(state.kind), _as_text(state.line))
    if not isinstance(state, State):
        return Failure("EnvironmentFailed", f"expected a State, received {preview(state)}")
    return _validated("EnvironmentFailed", _state, state)


def _state(state: State) -> State:
    return State(
        checked_text("state text", state.text),
        _texts("admissible actions", state.actions),
        _flag("valid", state.valid),
        _flag("terminated", state.terminated),
        _optional(_flag, "won", state.won),
        checked_number("reward", state.reward),
        checked_number("score", state.score),
        state.info,
        _flag("truncated", state.truncated),
        _optional(checked_text, "state key", state.key),
    )


def checked_task(task: object) -> Task | Failure:
    """Validate a task of a task source and convert its values to the declared types.

    Returns:
        The task; a `Failure` ``EnvironmentFailed`` if a value is invalid.
    """
    if not isinstance(task, Task):
        return Failure("EnvironmentFailed", f"expected a Task, received {preview(task)}")
    return _validated("EnvironmentFailed", _task, task)


def _task(task: Task) -> Task:
    versions: object = task.versions
    if not isinstance(versions, Mapping):
        raise BadValueError(f"versions: expected a mapping of names to texts, received {preview(versions)}")
    json.dumps(dict(versions), sort_keys=True)
    return replace(
        task,
        id=checked_text("task id", task.id),
        split=checked_text("split", task.split),
        instruction=checked_text("instruction", task.instruction),
        task_type=checked_text("task_type", task.task_type),
    )


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
    listed = _listed(name, values, "token ids", f"integers from 0 to {_INT32 - 1}", _INTEGERS)
    if listed and not 0 <= min(listed) <= max(listed) < _INT32:
        wrong = next(value for value in listed if not 0 <= value < _INT32)
        raise BadValueError(f"{name}: expected integers from 0 to {_INT32 - 1}, received {wrong}")
    return listed


def _logprobs(name: str, values: object) -> list[float]:
    listed = [float(value) for value in _listed(name, values, "numbers", "numbers", _NUMBERS)]
    for value in listed:
        if not value <= _FLOAT32:  # NaN, too
            raise BadValueError(f"{name}: expected numbers below infinity, received {value}")
    return listed


def _listed(name: str, values: object, of: str, expected: str, types: tuple[type, ...]) -> list[Any]:
    """Return a list, tuple or array of numbers as a list of Python's numbers."""
    if isinstance(values, np.ndarray | array):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise BadValueError(f"{name}: expected a list of {of}, received {preview(values)}")
    for value in values:
        if not isinstance(value, types) or isinstance(value, bool):
            raise BadValueError(f"{name}: expected {expected}, received {preview(value)}")
    return [value.item() if isinstance(value, np.generic) else value for value in values]


_OPTIONAL: Final[dict[str, Callable[[str, object], Any]]] = {
    "prompt": checked_text,
    "prompt_token_ids": _token_ids,
    "response_token_ids": _token_ids,
    "response_logprobs": _logprobs,
    "finish_reason": checked_text,
    **dict.fromkeys(("cut_pairs", "cut_tokens", "prompt_tokens", "response_tokens"), checked_count),
}
"""The fields of a `Reply` that may be None, with their checks."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
