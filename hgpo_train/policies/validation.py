"""What may come from outside into a rollout: a policy's replies, an environment's states and tasks.

Each is validated where it arrives, before anything else uses it. A value that the step table could not hold costs the
trajectory that it came for, with its reason, and no other.

- Texts may be any text. Lone surrogates, which UTF-8 cannot encode, become U+FFFD here, as in the step table: the next
  prompt holds this text, and could otherwise not be sent. Registered secrets (`hgpo_envs.secrets`) are replaced, for a
  server may repeat the key that it was sent.
- Token ids are integers in [0, 2³¹). Log-probabilities are numbers, neither NaN nor +∞, one for each token id.
- Rewards and scores are finite numbers of at most `LARGEST` in magnitude, so that a return, their sum, is finite.
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
from hgpo_envs.secrets import redact
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


class BadValueError(ValueError):
    """An invalid value from a policy or an environment. The message is one line: expected, received."""


def checked_reply(reply: object) -> Reply | Failure:
    """A policy's answer with every value of its type and range; what cannot be used is a ``PolicyFailed``."""
    if isinstance(reply, Failure):
        return Failure(_as_text(reply.kind), _as_text(reply.line))
    if not isinstance(reply, Reply):
        return Failure("PolicyFailed", f"expected a Reply, got {preview(reply)}")
    try:
        response, prompt = checked_text("response", reply.response), _optional(checked_text, "prompt", reply.prompt)
        finish_reason = _optional(checked_text, "finish_reason", reply.finish_reason)
        prompt_tokens = _optional(_token_ids, "prompt_token_ids", reply.prompt_token_ids)
        tokens = _optional(_token_ids, "response_token_ids", reply.response_token_ids)
        logprobs = _optional(_logprobs, "response_logprobs", reply.response_logprobs)
        _check_lengths(tokens, logprobs)
        cut_pairs = _optional(checked_count, "cut_pairs", reply.cut_pairs)
        cut_tokens = _optional(checked_count, "cut_tokens", reply.cut_tokens)
        return Reply(response, prompt, prompt_tokens, tokens, logprobs, finish_reason, cut_pairs, cut_tokens)
    except BadValueError as error:
        return Failure("PolicyFailed", str(error))
    except Exception as error:  # noqa: BLE001 - values of any type, whose own methods may fail
        return Failure.of("PolicyFailed", error)


def checked_state(state: object) -> State | Failure:
    """What an environment shows, with every value of its type and range; else an ``EnvironmentFailed``."""
    if isinstance(state, Failure):
        return Failure(_as_text(state.kind), _as_text(state.line))
    if not isinstance(state, State):
        return Failure("EnvironmentFailed", f"expected a State, got {preview(state)}")
    try:
        flags = (_flag("valid", state.valid), _flag("terminated", state.terminated), _flag("won", state.won))
        numbers = (checked_number("reward", state.reward), checked_number("score", state.score))
        return State(
            checked_text("state text", state.text),
            _texts("admissible actions", state.actions),
            *flags,
            *numbers,
            state.info,
        )
    except BadValueError as error:
        return Failure("EnvironmentFailed", str(error))
    except Exception as error:  # noqa: BLE001 - see above
        return Failure.of("EnvironmentFailed", error)


def checked_task(task: object) -> Task | Failure:
    """What a task source says of a task, with every value of its type; else an ``EnvironmentFailed``."""
    if not isinstance(task, Task):
        return Failure("EnvironmentFailed", f"expected a Task, got {preview(task)}")
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
    """The text as rows and requests can hold it.

    >>> checked_text("response", "look" + chr(0xD800))
    'look�'
    >>> checked_text("response", 3)
    Traceback (most recent call last):
    ...
    hgpo_train.policies.validation.BadValueError: response: expected text, got int 3
    """
    if type(value) is not str:
        if not isinstance(value, str):
            raise BadValueError(f"{name}: expected text, got {preview(value)}")
        value = str.__str__(value)  # of a subclass, its characters alone
    return redact(value if value.isascii() or _encodable(value) else clean_text(value), patterns=False)


def checked_number(name: str, value: object) -> float:
    """A finite number of at most `LARGEST` in magnitude."""
    if type(value) is float and -LARGEST <= value <= LARGEST:
        return value
    if not _is_number(value) or not abs(plain := float(value)) <= LARGEST:  # type: ignore[arg-type]  # a number
        raise BadValueError(f"{name}: expected a finite number, got {preview(value)}")
    return plain


def checked_count(name: str, value: object) -> int:
    """An integer in [0, 2³¹)."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 0 <= (plain := int(value)) < _INT32:
        raise BadValueError(f"{name}: expected an integer from 0 to {_INT32 - 1}, got {preview(value)}")
    return plain


def preview(value: object) -> str:
    """A value of any type as a message names it: its type and the beginning of its `repr`.

    >>> preview([1, 2]), preview(None)
    ('list [1, 2]', 'None')
    """
    try:
        written = repr(value)
    except Exception:  # noqa: BLE001 - a repr may do anything
        written = ""
    kind = "" if value is None else f"{type(value).__name__} "
    return f"{kind}{redact(written)[:_SHOWN]}".strip()


def _check_lengths(tokens: list[int] | None, logprobs: list[float] | None) -> None:
    if tokens is not None and logprobs is not None and len(tokens) != len(logprobs):
        raise BadValueError(f"expected one log-probability for each of {len(tokens)} tokens, got {len(logprobs)}")


def _check_versions(versions: object) -> None:
    if not isinstance(versions, Mapping):
        raise BadValueError(f"versions: expected a mapping of names to texts, got {preview(versions)}")
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
        raise BadValueError(f"{name}: expected a list of texts, got {preview(values)}")
    listed = list(values)
    if set(map(type, listed)) <= {str}:  # all at once: there are many, at every step
        joined = "".join(listed)
        if checked_text(name, joined) == joined:
            return listed
    return [checked_text(name, value) for value in listed]


def _flag(name: str, value: object) -> bool:
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise BadValueError(f"{name}: expected true or false, got {preview(value)}")
    return bool(value)


def _token_ids(name: str, values: object) -> list[int]:
    listed = _listed(name, values, "token ids")
    try:
        found = array("q", listed)
    except (TypeError, OverflowError):
        wrong = next((value for value in listed if not _is_integer(value) or abs(int(value)) >= _INT32), None)
        raise BadValueError(f"{name}: expected integers from 0 to {_INT32 - 1}, got {preview(wrong)}") from None
    if found and not 0 <= min(found) <= max(found) < _INT32:
        wrong = next(value for value in found if not 0 <= value < _INT32)
        raise BadValueError(f"{name}: expected integers from 0 to {_INT32 - 1}, got {wrong}")
    return found.tolist()


def _logprobs(name: str, values: object) -> list[float]:
    listed = _listed(name, values, "numbers")
    try:
        found = array("d", listed)
    except (TypeError, OverflowError):
        wrong = next((value for value in listed if not _is_number(value) or abs(value) > LARGEST), None)
        raise BadValueError(f"{name}: expected numbers, got {preview(wrong)}") from None
    if any(map(math.isnan, found)) or (found and max(found) > _FLOAT32):
        wrong = next(value for value in found if not value <= _FLOAT32)
        raise BadValueError(f"{name}: expected numbers below infinity, got {wrong}")
    return found.tolist()


def _listed(name: str, values: object, of: str) -> list[Any]:
    if isinstance(values, np.ndarray | array):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise BadValueError(f"{name}: expected a list of {of}, got {preview(values)}")
    return list(values)


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
