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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Any, Final, TypeVar

import numpy as np
import orjson

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError
from hgpo_envs.files import secrets
from hgpo_envs.files.secrets import has_secret, redact
from hgpo_envs.unicode_text import clean_text
from hgpo_train.policies.base import Failure, Reply

LARGEST: Final = 1e300
"""The largest magnitude of a reward."""

INT32: Final = 1 << 31
_ROUNDING: Final = 1e-3  # of the log-probability of a certain token
_SHOWN: Final = 60
_NUMBERS: Final = (int, float, np.integer, np.floating)
_PLAIN_JSON: Final = orjson.OPT_PASSTHROUGH_SUBCLASS

_FLAGS: Final = (bool, NoneType)
_PLAIN_REASONS: Final = ("stop", "length", None)
_KEPT_ACTIONS: Final = 4096
_VALID_ACTIONS: Final[dict[int, tuple[tuple[str, ...], tuple[str, ...]]]] = {}
"""Tuples of actions that were valid, by id, which is theirs as long as they are kept; and the secrets at that time."""

T = TypeVar("T")


class BadValueError(InputError):
    """An invalid value from a policy or an environment. The message is one line: expected, received."""


def checked(kind: type[T], value: object) -> T | Failure:
    """Return a reply, state or task whose values have the declared types; a `Failure` if one is invalid.

    Args:
        kind: `Reply`, `State` or `Task`.
        value: What a policy or an environment returned. It is returned itself unless a field had to be converted. A
            text is the response of a reply without token ids and with an unknown finish reason. A failure stays one.

    >>> checked(State, State("a room", ("look",), reward=1)).reward
    1.0
    >>> print(checked(Reply, 3))
    PolicyFailed: expected a text (str) or a Reply, received int 3
    """
    if isinstance(value, Failure):
        return value
    category, expected, checks = _KINDS[kind]
    given: Any = value
    is_kind = type(value) is kind
    is_plain = False
    try:
        # Nearly every value is a plain one, for which one look at all fields takes a third of the time of their checks:
        # a reply that is nothing but a valid text, or a state whose fields are valid as they are.
        if kind is Reply and is_kind:
            text = given.response
            reason = given.finish_reason
            is_plain = (
                type(text) is str
                and checked_text("", text) == text
                and type(reason) in (str, NoneType)
                and reason in _PLAIN_REASONS
                and given.message is None
                and given.prompt is None
                and given.prompt_token_ids is None
                and given.response_token_ids is None
                and given.response_logprobs is None
                and given.cut_pairs is None
                and given.cut_tokens is None
                and given.prompt_tokens is None
                and given.response_tokens is None
            )
        elif kind is State and is_kind:
            text = given.text
            is_plain = (
                type(text) is str
                and checked_text("", text) == text
                and type(given.actions) is tuple
                and _actions("admissible actions", given.actions) is given.actions
                and type(given.valid) in _FLAGS
                and type(given.won) in _FLAGS
                and type(given.terminated) is bool
                and type(given.truncated) is bool
                and given.key is None
                and type(given.reward) is float
                and -LARGEST <= given.reward <= LARGEST
                and type(given.score) is float
                and 0 <= given.score <= 1
            )
        return given if is_plain else _plain(kind, expected, checks, given)
    except BadValueError as error:
        return Failure(category, str(error), error)
    except Exception as error:  # noqa: BLE001 - a value may be of any type, and its methods may raise
        return Failure.of(category, error)


def _plain(kind: type[T], expected: str, checks: Sequence[Check], value: Any) -> T:  # noqa: ANN401 (any value)
    if kind is Reply and isinstance(value, str):
        value = Reply(value, finish_reason=None)
    if not isinstance(value, kind):
        raise BadValueError(f"expected {expected}, received {preview(value)}")
    # Nearly every value is valid as it is, so the same object is returned and nothing is copied.
    changed = {}
    for field, name, check, valid in checks:
        present = getattr(value, field)
        if type(present) in valid:
            continue
        plain = check(name, present)
        if plain is not present:
            changed[field] = plain
    checked: Any = replace(value, **changed) if changed else value  # type: ignore[type-var]  # a dataclass
    if kind is Reply and None not in (
        checked.response_logprobs,
        checked.response_token_ids,
    ):
        tokens = len(checked.response_token_ids)
        logprobs = len(checked.response_logprobs)
        if tokens != logprobs:
            raise BadValueError(
                f"expected one log-probability for each of {tokens} tokens, received {logprobs}"
            )
    return checked  # type: ignore[no-any-return]


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
        # a subclass of str may override methods: convert it to a plain str
        value = str.__str__(value)
    return redact(clean_text(value), patterns=False)


def checked_number(
    name: str, value: object, least: float = -LARGEST, most: float = LARGEST
) -> float:
    """Return a number as a float. Raises BadValueError if it is none, or not in [least, most]."""
    if type(value) is float and least <= value <= most:
        return value
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        plain = float(value)
        if least <= plain <= most:
            return plain
    expected = (
        "a finite number" if most == LARGEST else f"a number in [{least}, {most}]"
    )
    raise BadValueError(f"{name}: expected {expected}, received {preview(value)}")


def checked_count(name: str, value: object) -> int:
    """Return an integer as an int.

    Raises:
        BadValueError: The value is not an integer in [0, 2³¹).
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        plain = int(value)
        if 0 <= plain < INT32:
            return plain
    raise BadValueError(
        f"{name}: expected an integer from 0 to {INT32 - 1}, received {preview(value)}"
    )


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


def _actions(name: str, values: object) -> tuple[str, ...]:
    """Return a state's admissible actions as a tuple of valid texts. Engines return the same tuple many times."""
    known = _VALID_ACTIONS.get(id(values))
    if known is not None and known[0] is values and known[1] is secrets.registered:
        return known[0]
    texts: tuple[Any, ...]
    if type(values) is tuple:
        texts = values
    elif isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping):
        # a set of texts has another order in every process
        texts = tuple(sorted(values) if isinstance(values, set | frozenset) else values)
    else:
        raise BadValueError(
            f"{name}: expected a list of texts, received {preview(values)}"
        )
    # A state has dozens of actions, nearly always valid: one check of the joined text instead of one for each.
    joined = "".join(texts) if set(map(type, texts)) <= {str} else None
    if joined is None or checked_text(name, joined) != joined:
        return tuple([checked_text(name, text) for text in texts])
    if texts is values:  # not a list, which can change
        if len(_VALID_ACTIONS) >= _KEPT_ACTIONS:
            _VALID_ACTIONS.clear()
        _VALID_ACTIONS[id(texts)] = texts, secrets.registered
    return texts


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, np.bool_):
        raise BadValueError(
            f"{name}: expected true or false, received {preview(value)}"
        )
    return bool(value)


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
    # NaN is in no range
    if not (is_list and least <= numbers.min() <= numbers.max() <= most):
        noun = "numbers" if "f" in kinds else "integers"
        raise BadValueError(
            f"{name}: expected {noun} from {least:g} to {most:.10g}, received {preview(values)}"
        )
    listed: list[Any] = (numbers.astype(float) if "f" in kinds else numbers).tolist()
    return listed


def _message(name: str, message: object) -> Mapping[str, Any]:
    """Return a server's message as the step table stores it."""
    if not isinstance(message, Mapping):
        raise BadValueError(f"{name}: expected a mapping, received {preview(message)}")
    # Nearly every message stays as it is, which its JSON shows: UTF-8 has no lone surrogates.
    try:
        written = orjson.dumps(message, option=_PLAIN_JSON).decode()
    except TypeError:
        return _cleaned(message)  # type: ignore[no-any-return]  # a mapping stays one
    return _cleaned(message) if has_secret(written) else message


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a value of JSON whose texts are checked (`checked_text`)."""
    if isinstance(value, str):
        return checked_text("message", value)
    if isinstance(value, Mapping):
        return {_cleaned(str(name)): _cleaned(part) for name, part in value.items()}
    return (
        [_cleaned(part) for part in value] if isinstance(value, list | tuple) else value
    )


Check = tuple[str, str, Callable[[str, object], Any], tuple[type, ...]]
"""A field, its name in messages, its check, and the types of which every value is valid."""

_NOTHING: Final = (NoneType,)

_STATE: Final[Sequence[Check]] = (
    ("text", "state text", checked_text, ()),
    ("actions", "admissible actions", _actions, ()),
    ("valid", "valid", _flag, _FLAGS),
    ("terminated", "terminated", _flag, (bool,)),
    ("won", "won", _flag, _FLAGS),
    ("reward", "reward", checked_number, ()),
    ("score", "score", partial(checked_number, least=0, most=1), ()),
    ("truncated", "truncated", _flag, (bool,)),
    ("key", "state key", checked_text, _NOTHING),
)
_TASK: Final[Sequence[Check]] = (
    ("id", "task id", checked_text, ()),
    *(
        (field, field, checked_text, ())
        for field in ("split", "instruction", "task_type")
    ),
)
_REPLY: Final[Sequence[Check]] = (
    ("response", "response", checked_text, ()),
    ("message", "message", _message, _NOTHING),
    ("prompt", "prompt", checked_text, _NOTHING),
    (
        "prompt_token_ids",
        "prompt_token_ids",
        partial(_numbers, kinds="iu", least=0, most=INT32 - 1),
        _NOTHING,
    ),
    (
        "response_token_ids",
        "response_token_ids",
        partial(_numbers, kinds="iu", least=0, most=INT32 - 1),
        _NOTHING,
    ),
    (
        "response_logprobs",
        "response_logprobs",
        partial(_numbers, kinds="iuf", least=-np.inf, most=_ROUNDING),
        _NOTHING,
    ),
    ("finish_reason", "finish_reason", checked_text, _NOTHING),
    *(
        (field, field, checked_count, _NOTHING)
        for field in ("cut_pairs", "cut_tokens", "prompt_tokens", "response_tokens")
    ),
)
_KINDS: Final[Mapping[type, tuple[str, str, Sequence[Check]]]] = {
    Reply: ("PolicyFailed", "a text (str) or a Reply", _REPLY),
    State: ("EnvironmentFailed", "a State", _STATE),
    Task: ("EnvironmentFailed", "a Task", _TASK),
}
"""What fails if a value is invalid, what is expected, and the checks of its fields."""
