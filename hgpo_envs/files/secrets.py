"""Redaction of keys and passwords in printed and stored text.

    key = Secret(text)       a key that prints as ***; `key.reveal()` returns the text
    register(text)           make `redact` replace this value
    register_url(url)        register the password of a URL and the keys in its query
    redact(text)             remove registered values, credentials in URLs and authorization headers
    redact_json(values)      the same for nested JSON values and for members with names such as `api_key`
    redact_logging()         redact all log records of this process, including those of other libraries

`redact` finds a registered value in the encodings that servers and libraries use: unchanged, stripped, percent-encoded,
escaped as JSON or as a Python literal, in hexadecimal, and inside base64. Case is ignored. Values of fewer than
`SHORTEST` characters also occur in ordinary words, so they are replaced only inside URLs and headers. The registry
belongs to the process. A child process starts with an empty one.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import threading
import traceback
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MARK: Final = "***"
"""The replacement for a secret."""

SHORTEST: Final = 6
"""The shortest value, in characters, that `redact` replaces in any text."""

_NAMES: Final = (
    r"api[-_]?keys?|(?:access|account|private|secret|subscription)[-_]?key|passw(?:or)?d|passphrase|pwd|secrets?|"
    r"authorization|(?:proxy[-_]?)?auth|credentials?|signature|sig|"
    r"(?:access|api|auth|bearer|hf|id|refresh|session|security)[-_]?token"
)
_NAME: Final = re.compile(rf"(?:.*[-_.])?(?:{_NAMES})|token", re.IGNORECASE)
_IN_QUERY: Final = rf"(?:[\w.-]*[-_.])?(?:{_NAMES})|token|key"
_PATTERNS: Final = (
    # The fixed prefix keeps the search linear. In a path, a URL has one slash.
    (re.compile(r"(://|(?<=\w\w):/)[^\s/?#\"'<>\\]*@"), rf"\1{MARK}@"),
    (re.compile(rf"([?&;](?:{_IN_QUERY})=)[^&;\s#\"'<>]+", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(r"(authorization['\"]?\s*[:=,]\s*b?['\"]?(?:[a-z]+\s+)?)[^\s'\",;]+", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(r"(\bbearer\s+)[^\s'\",;]{8,}", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), MARK),  # OpenAI's keys, registered or not
)

_lock = threading.Lock()
_known: frozenset[str] = frozenset()
_lowered: tuple[str, ...] = ()
_registered: re.Pattern[str] | None = None
_logging_redacted = False


class Secret:
    """A text that `print`, logs, tracebacks and serialisers do not show. Creating one registers its value.

    >>> key = Secret("a-very-private-key")
    >>> print(key, [key], f"{key}", redact("the key is A-VERY-private-KEY"))
    *** [Secret(***)] *** the key is ***
    >>> key.reveal()
    'a-very-private-key'
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text
        register(text)

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __str__(self) -> str:
        return MARK

    def __repr__(self) -> str:
        return f"Secret({MARK})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("cannot pickle a Secret; pass the name of the variable or file that contains it")


def register(value: str | bytes) -> None:
    """Make `redact` replace a value in all its encodings."""
    global _known, _lowered, _registered  # noqa: PLW0603 (the registry of the process)
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    found = {cased for form in _forms(text) for cased in (form, form.lower())}  # `lower` may change the length
    with _lock:
        if found <= _known:
            return
        _known |= found
        _lowered = tuple({form.lower() for form in _known})
        longest_first = sorted(_known, key=lambda form: (-len(form), form))
        _registered = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)


def register_url(url: str) -> None:
    """Register the password of a URL (or its user name if there is no password) and the keys in its query."""
    try:
        parts = urlsplit(url)
        user, password = parts.username or "", parts.password or ""
    except ValueError:
        return
    for encoded in {password or user}:
        register(encoded)
        register(unquote(encoded))
    if password:
        register(f"{user}:{password}")
        register(f"{unquote(user)}:{unquote(password)}")
    for name, value in parse_qsl(parts.query):
        if re.fullmatch(_IN_QUERY, name, re.IGNORECASE):
            register(value)


def redact(text: str, *, patterns: bool = True) -> str:
    """Return the text without secrets.

    Args:
        text: Any text.
        patterns: Whether to also replace text that has the form of a secret: credentials in URLs and authorization
            headers. Use False for texts of environments and models, where only registered values must be replaced.

    >>> redact("GET http://me:hunter2@example.com/v1?api_key=abc&n=1 failed")
    'GET http://***@example.com/v1?api_key=***&n=1 failed'
    """
    if _registered is not None:
        lowered = text.lower()
        if any(form in lowered for form in _lowered):
            text = _registered.sub(MARK, text)
    if patterns:
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
    return text


def redact_json(value: Any) -> Any:  # noqa: ANN401 (any value of JSON)
    """Return a copy of nested JSON values without secrets.

    Texts under names such as `api_key` or `password` are replaced whatever their value.

    >>> redact_json({"base_url": "http://me:pw@host/v1", "extra": {"api_key": "abc", "top_k": 5}})
    {'base_url': 'http://***@host/v1', 'extra': {'api_key': '***', 'top_k': 5}}
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Secret):
        return MARK
    if isinstance(value, Mapping):
        return {
            redact(name) if isinstance(name, str) else name: (
                MARK
                if isinstance(name, str) and isinstance(item, str) and item and _NAME.fullmatch(name)
                else redact_json(item)
            )
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_json(item) for item in value]
    return value


def redact_logging() -> None:
    """Redact the message and traceback of all later log records. Further calls have no effect."""
    global _logging_redacted  # noqa: PLW0603 (once per process)
    with _lock:
        if _logging_redacted:
            return
        _logging_redacted = True
    make = logging.getLogRecordFactory()

    def factory(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = make(*arguments, **named)
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):  # a wrong logging call, which logging itself reports
            return record
        if (clean := redact(message)) != message:
            record.msg, record.args = clean, None
        if record.exc_info and record.exc_info[0] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            if (clean := redact(trace)) != trace:
                record.exc_text, record.exc_info = clean, None
        return record

    logging.setLogRecordFactory(factory)


def _forms(value: str) -> set[str]:
    """Return the encodings of a value that `redact` searches for."""
    forms: set[str] = set()
    for text in {value, value.strip()}:
        data = text.encode("utf-8", "surrogateescape")
        escaped = json.dumps(text)[1:-1]
        forms |= {text, escaped, json.dumps(escaped)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        forms |= {repr(text)[1:-1], repr(data)[2:-1], html.escape(text), data.hex(), data.hex(" "), data.hex(":")}
        forms |= {quote(data), quote(data, safe=""), quote_plus(data), quote(quote(data, safe=""), safe="")}
        forms |= {core for shift in range(3) for core in _base64_cores(data, shift)}
    return {form for form in forms if len(form.strip()) >= SHORTEST}


def _base64_cores(data: bytes, shift: int) -> tuple[str, str]:
    """Return the base64 digits that depend on `data` alone if it starts `shift` bytes into a group of three.

    Returns:
        The digits in the standard and in the URL-safe alphabet.
    """
    encoded = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
    first = (shift * 8 + 5) // 6
    last = (shift + len(data)) * 8 // 6
    core = encoded[first:last]
    return core, core.translate(str.maketrans("+/", "-_"))
