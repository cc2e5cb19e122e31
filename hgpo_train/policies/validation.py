"""Validation of values from policies and environments: replies, states and tasks.

The collector validates them before any other use. A value that the step table cannot store aborts its trajectory, with
the reason, and no other.

- Any text is valid. Lone surrogates, which UTF-8 cannot encode, are replaced by U+FFFD, as in the step table: otherwise
  the next prompt, which contains the text, could not be sent. Registered secrets (`hgpo_envs.files.secrets`) are
  replaced, because a server may repeat the key that it received.
- Token ids are integers in [0, 2³¹). Log-probabilities are numbers of at most 0, one for each token id.
- Rewards are finite numbers of at most `LARGEST` in magnitude, so that their sum, the return, is finite. Scores are in
  [0, 1].
"""

from __future__ import annotations

import json
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
"""The largest magnitude of a reward."""

INT32: Final = 1 << 31
_ROUNDING: Final = 1e-3  # of the log-probability of a certain token
_SHOWN: Final = 60
_NUMBERS: Final = (int, float, np.integer, np.floating)

T = TypeVar("T")


class BadValueError(InputError):
    """An invalid value from a policy or an environment. The message is one line: expected, received."""


def checked_reply(reply: object) -> Reply | Failure:
    """Return a policy's reply with values of the declared types; a `Failure` ``PolicyFailed`` if one is invalid.

    A text is the response of a reply without token ids and with an unknown finish reason.
    """
    return _checked("PolicyFailed", _plain_reply, reply)


def checked_state(state: object) -> State | Failure:
    """Return an environment's state with values of the declared types; a `Failure` if one is invalid."""
    return _checked("EnvironmentFailed", _plain_state, state)


def checked_task(task: object) -> Task | Failure:
    """Return a task with values of the declared types; a `Failure` ``EnvironmentFailed`` if one is invalid."""
    return _checked("EnvironmentFailed", _plain_task, task)


def _checked(
    category: str,
    check: Callable[[object], T],
    value: object,
) -> T | Failure:
    if isinstance(value, Failure):
        return value
    try:
        return check(value)
    except BadValueError as error:
        return Failure(category, str(error), error)
    except Exception as error:  # noqa: BLE001 - a value may be of any type, and its methods may raise
        return Failure.of(category, error)


def _plain_reply(reply: object) -> Reply:
    if isinstance(reply, str):
        reply = Reply(reply, finish_reason=None)
    checked = _plain("a text (str) or a Reply", Reply, _REPLY, reply)
    if checked.response_logprobs is not None and checked.response_token_ids is not None:
        tokens = len(checked.response_token_ids)
        logprobs = len(checked.response_logprobs)
        if tokens != logprobs:
            raise BadValueError(f"expected one log-probability for each of {tokens} tokens, received {logprobs}")
    return checked


def _plain_state(state: object) -> State:
    return _plain("a State", State, _STATE, state)


def _plain_task(task: object) -> Task:
    return _plain("a Task", Task, _TASK, task)


def _plain(
    expected: str,
    kind: type[T],
    checks: Sequence[Check],
    value: object,
) -> T:
    """Check the fields of a reply, state or task. Return the same object unless a field had to be converted."""
    if not isinstance(value, kind):
        raise BadValueError(f"expected {expected}, received {preview(value)}")
    # Nearly every value is valid as it is, so the same object is returned and nothing is copied.
    changed = {}
    for field, name, check, optional in checks:
        present = getattr(value, field)
        if present is None and optional:
            continue
        plain = check(name, present)
        if plain is not present:
            changed[field] = plain
    return replace(value, **changed) if changed else value  # type: ignore[type-var]  # a dataclass


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
    return redact(clean_text(value), patterns=False)


def checked_number(name: str, value: object) -> float:
    """Return a number as a float.

    Raises:
        BadValueError: The value is not a finite number of at most `LARGEST` in magnitude.
    """
    if type(value) is float and -LARGEST <= value <= LARGEST:
        return value
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        plain = float(value)
        if abs(plain) <= LARGEST:
            return plain
    raise BadValueError(f"{name}: expected a finite number, received {preview(value)}")


def checked_score(name: str, value: object) -> float:
    """Return a score as a float. Raises BadValueError if it is not a number in [0, 1]."""
    plain = checked_number(name, value)
    if not 0 <= plain <= 1:
        raise BadValueError(f"{name}: expected a number in [0, 1], received {preview(value)}")
    return plain


def checked_count(name: str, value: object) -> int:
    """Return an integer as an int.

    Raises:
        BadValueError: The value is not an integer in [0, 2³¹).
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        plain = int(value)
        if 0 <= plain < INT32:
            return plain
    raise BadValueError(f"{name}: expected an integer from 0 to {INT32 - 1}, received {preview(value)}")


def preview(value: object) -> str:
    """Describe a value of any type for a message: its type and the start of its `repr`, without secrets.

    >>> preview([1, 2]), preview(None)
    ('list [1, 2]', 'None')
    """
    try:
        written = repr(value)
    except Exception:  # noqa: BLE001 - a custom `__repr__` may raise anything
        written = ""
    type_name = "" if value is None else f"{type(value).__name__} "
    return f"{type_name}{redact(written)[:_SHOWN]}".strip()


def _texts(name: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise BadValueError(f"{name}: expected a list of texts, received {preview(values)}")
    texts = values if type(values) is tuple else tuple(values)
    # A state has dozens of actions, nearly always valid: one check of the joined text instead of one for each.
    if list(map(type, texts)).count(str) == len(texts):
        joined = "".join(texts)
        if checked_text(name, joined) == joined:
            return texts
    return tuple([checked_text(name, text) for text in texts])


def _flag(name: str, value: object) -> bool:
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise BadValueError(f"{name}: expected true or false, received {preview(value)}")
    return bool(value)


def _token_ids(name: str, values: object) -> list[int]:
    return _numbers(name, values, "iu", 0, INT32 - 1)


def _logprobs(name: str, values: object) -> list[float]:
    return _numbers(name, values, "iuf", -np.inf, _ROUNDING)


def _numbers(
    name: str,
    values: object,
    kinds: str,
    least: float,
    most: float,
) -> list[Any]:
    """Return a list, tuple or array of numbers of NumPy's `kinds`, in a range, as a list of Python's numbers."""
    # One array instead of a check of each number: a reply can have thousands.
    numbers = np.asarray(values)
    if numbers.shape == (0,):
        return []
    is_list = numbers.ndim == 1 and numbers.dtype.kind in kinds
    if not (is_list and least <= numbers.min() <= numbers.max() <= most):  # NaN is in no range
        noun = "numbers" if "f" in kinds else "integers"
        raise BadValueError(f"{name}: expected {noun} from {least:g} to {most:.10g}, received {preview(values)}")
    listed: list[Any] = (numbers.astype(float) if "f" in kinds else numbers).tolist()
    return listed


def _versions(name: str, versions: object) -> Mapping[str, str]:
    if not isinstance(versions, Mapping):
        raise BadValueError(f"{name}: expected a mapping of names to texts, received {preview(versions)}")
    json.dumps(dict(versions), sort_keys=True)  # as the table stores them
    return versions


def _message(name: str, message: object) -> Mapping[str, Any]:
    """Return a server's message as the step table stores it."""
    if not isinstance(message, Mapping):
        raise BadValueError(f"{name}: expected a mapping, received {preview(message)}")
    return _cleaned(message)  # type: ignore[no-any-return]  # a mapping stays one


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a value of JSON whose texts are checked (`checked_text`)."""
    if isinstance(value, str):
        return checked_text("message", value)
    if isinstance(value, Mapping):
        return {_cleaned(str(name)): _cleaned(part) for name, part in value.items()}
    return [_cleaned(part) for part in value] if isinstance(value, list | tuple) else value


Check = tuple[str, str, Callable[[str, object], Any], bool]
"""A field, its name in messages, its check, and whether it may be None."""

_STATE: Final[Sequence[Check]] = (
    ("text", "state text", checked_text, False),
    ("actions", "admissible actions", _texts, False),
    ("valid", "valid", _flag, True),
    ("terminated", "terminated", _flag, False),
    ("won", "won", _flag, True),
    ("reward", "reward", checked_number, False),
    ("score", "score", checked_score, False),
    ("truncated", "truncated", _flag, False),
    ("key", "state key", checked_text, True),
)
_TASK: Final[Sequence[Check]] = (
    ("id", "task id", checked_text, False),
    *((field, field, checked_text, False) for field in ("split", "instruction", "task_type")),
    ("versions", "versions", _versions, False),
)
_REPLY: Final[Sequence[Check]] = (
    ("response", "response", checked_text, False),
    ("message", "message", _message, True),
    ("prompt", "prompt", checked_text, True),
    ("prompt_token_ids", "prompt_token_ids", _token_ids, True),
    ("response_token_ids", "response_token_ids", _token_ids, True),
    ("response_logprobs", "response_logprobs", _logprobs, True),
    ("finish_reason", "finish_reason", checked_text, True),
    *((field, field, checked_count, True) for field in ("cut_pairs", "cut_tokens", "prompt_tokens", "response_tokens")),
)
