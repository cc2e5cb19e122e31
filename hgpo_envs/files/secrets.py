"""Removal of keys and passwords from printed and stored text.

Values are found as they were registered; other encodings of them are not searched for. Values of fewer than `SHORTEST`
characters also occur in ordinary words and are not replaced. The registry belongs to the process. A child process
starts with an empty one.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import traceback
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

MARK: Final = "***"
"""The replacement for a secret."""

SHORTEST: Final = 6
"""The shortest value, in characters, that `redact` replaces."""

_NAMES: Final = (
    r"(?:api|access|account|private|secret|subscription)[-_]?keys?(?:[-_]?id)?|passw(?:or)?d|passphrase|pwd|secrets?|authorization|"
    r"(?:proxy[-_]?)?auth|credentials?|signature|sig|cookies?|jwt|bearer"
)
_OF_TEXTS: Final = "bos|eos|pad|unk|sep|cls|mask|start|end|eot|eom|stop|image|video|audio|special|first|last|next"
"""What precedes `token` in the name of a model's token, which is no secret."""
_TOKEN: Final = rf"(?!(?:[\w.-]*[-_.])?(?:{_OF_TEXTS})[-_.]?token)[\w.-]*token"
_NAME: Final = re.compile(rf"(?:.*[-_.])?(?:{_NAMES})|{_TOKEN}", re.IGNORECASE)
_IN_QUERY: Final = re.compile(
    rf"(?:[\w.-]*[-_.])?(?:{_NAMES})|{_TOKEN}|key", re.IGNORECASE
)
_VARIABLE: Final = re.compile("[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_PATTERNS: Final = (
    # The fixed prefix keeps the search linear. In a path, a URL has one slash.
    (re.compile(r"(://|(?<=\w\w):/)[^\s/?#\"'<>\\]*@"), rf"\1{MARK}@"),
    (
        re.compile(rf"([?&;](?:{_IN_QUERY.pattern})=)[^&;\s#\"'<>]+", re.IGNORECASE),
        rf"\1{MARK}",
    ),
)

registered: tuple[str, ...] = ()
"""The values that `redact` replaces, longest first: the same object until another one is registered."""


def register(value: str) -> None:
    """Make `redact` replace a value, with and without the white space around it."""
    global registered  # noqa: PLW0603 (the registry of the process)
    values = {*registered, value, value.strip()}
    registered = tuple(
        sorted(
            (each for each in values if len(each) >= SHORTEST),
            key=lambda each: (-len(each), each),
        )
    )


def register_url(url: str) -> None:
    """Register the password of a URL (or its user name if there is no password) and the keys in its query."""
    try:
        parts = urlsplit(url)
        user = unquote(parts.username or "")
        password = unquote(parts.password or "")
    except ValueError:
        return
    register(parts.password or parts.username or "")
    register(password or user)
    if user or password:
        # as clients send it
        register(base64.b64encode(f"{user}:{password}".encode()).decode())
    register(unquote(parts.fragment))
    for name, value in parse_qsl(parts.query):
        if _IN_QUERY.fullmatch(name):
            register(value)


def register_values(value: object, *, secret: bool = False) -> None:
    """Register what `redact_json` replaces for its name in nested JSON values, if a server may send it back.

    Args:
        value: The values.
        secret: Whether all texts in them are secrets.
    """
    if isinstance(value, str) and secret:
        register(value)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            register_values(item, secret=secret or _is_secret(str(name), item))
    elif isinstance(value, list | tuple):
        for item in value:
            register_values(item, secret=secret)


def redact(text: str, *, patterns: bool = True) -> str:
    """Return the text without secrets.

    Args:
        text: Any text.
        patterns: Whether to also replace credentials in URLs that are not registered. Use False for texts of
            environments and models, where only registered values must be replaced.

    >>> redact("GET http://me:hunter2@example.com/v1?api_key=abc&n=1 failed")
    'GET http://***@example.com/v1?api_key=***&n=1 failed'
    """
    for value in registered:
        text = text.replace(value, MARK)
    if patterns:
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
    return text


def has_secret(written: str) -> bool:
    """Return whether texts of written JSON contain a registered value. Numbers and names may look like one, too."""
    return any(_as_json(value) in written for value in registered)


@lru_cache(maxsize=1024)
def _as_json(value: str) -> str:
    """Return a value as it is within a text of JSON."""
    return json.dumps(value, ensure_ascii=False)[1:-1]


def names_variable(text: str) -> bool:
    """Return whether a text is the name of an environment variable, and not the key that was meant to be in one."""
    return text in os.environ or _VARIABLE.fullmatch(text) is not None


def redact_json(value: Any) -> Any:  # noqa: ANN401 (any value of JSON)
    """Return a copy of nested JSON values without secrets.

    Texts and what is nested under names such as `api_key` or `user_token` are replaced whatever their value, and under
    `api_key_env` a text that is not the name of a variable.

    >>> redact_json({"base_url": "http://me:pw@host/v1", "extra": {"api_key": "abc", "top_k": 5}})
    {'base_url': 'http://***@host/v1', 'extra': {'api_key': '***', 'top_k': 5}}
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        secret = {name for name, item in value.items() if _is_secret(str(name), item)}
        return {
            redact_json(name): MARK if name in secret else redact_json(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_json(item) for item in value]
    return value


def _is_secret(name: str, value: object) -> bool:
    if name == "api_key_env" and isinstance(value, str):
        return value != "" and not names_variable(value)
    return (
        bool(value)
        and isinstance(value, str | Mapping | list | tuple)
        and _NAME.fullmatch(name) is not None
    )


def redact_logging() -> None:
    """Redact the message and traceback of all later log records. Further calls have no effect."""
    factory = logging.getLogRecordFactory()
    if getattr(factory, "__name__", "") == "redacted_record":
        return

    def redacted_record(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = factory(*arguments, **named)
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):
            # a wrong logging call, which logging itself reports
            return record
        if (clean := redact(message)) != message:
            record.msg = clean
            record.args = None
        if record.exc_info and record.exc_info[0] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info))
            record.exc_text = redact(trace.rstrip("\n"))
            record.exc_info = None
        return record

    logging.setLogRecordFactory(redacted_record)
