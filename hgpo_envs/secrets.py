"""Keeps keys and passwords out of everything that is printed or stored.

    key = Secret(text)       a key that shows as ***; `key.reveal()` gives the text
    register(text)           from now on `redact` replaces this value
    register_url(url)        the same for the password, and for keys in the query, of a URL
    redact(text)             the text without registered values, credentials in URLs and authorization headers
    redact_json(values)      the same for nested JSON values, and for members with names such as `api_key`
    redact_logging()         log records of this process are redacted, whichever library writes them
    RedactedStream(stream)   a text stream that redacts what is written to it

A registered value is found in the encodings in which servers and libraries repeat it: as it is, stripped,
percent-encoded, escaped as JSON or as a Python literal, in hexadecimal, and inside base64. Upper and lower case count
as equal. Values of fewer than `SHORTEST` characters would be found in ordinary words: they are replaced only where a
URL or a header holds them. The registry belongs to the process; a child process starts with an empty one.
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
from typing import IO, Any, Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MARK: Final = "***"
"""What stands in place of a secret."""

SHORTEST: Final = 6
"""Shorter values are not looked for in texts."""

_NAMES: Final = (
    r"api[-_]?keys?|(?:access|account|private|secret|subscription)[-_]?key|passw(?:or)?d|passphrase|pwd|secrets?|"
    r"authorization|(?:proxy[-_]?)?auth|credentials?|signature|sig|"
    r"(?:access|api|auth|bearer|hf|id|refresh|session|security)[-_]?token"
)
_NAME: Final = re.compile(rf"(?:.*[-_.])?(?:{_NAMES})|token", re.IGNORECASE)
_IN_QUERY: Final = rf"(?:[\w.-]*[-_.])?(?:{_NAMES})|token|key"
_PATTERNS: Final = (
    (re.compile(r"(://)[^\s/?#\"'<>\\]*@"), rf"\1{MARK}@"),  # begins with a fixed text: linear in a text's length
    (re.compile(rf"([?&;](?:{_IN_QUERY})=)[^&;\s#\"'<>]+", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(r"(authorization['\"]?\s*[:=,]\s*b?['\"]?(?:[a-z]+\s+)?)[^\s'\",;]+", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(r"(\bbearer\s+)[^\s'\",;]{8,}", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), MARK),  # what OpenAI's keys look like, registered or not
)

_lock = threading.Lock()
_known: frozenset[str] = frozenset()
_lowered: tuple[str, ...] = ()
_registered: re.Pattern[str] | None = None
_logging_redacted = False


class Secret:
    """A text that no `print`, log, traceback or serialiser shows; making one registers its value.

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
        """The text itself."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __str__(self) -> str:
        return MARK

    def __repr__(self) -> str:
        return f"Secret({MARK})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a secret is not written down: pass the name of what holds it")


def register(value: str | bytes) -> None:
    """Has `redact` replace a value from now on, in every encoding of it."""
    global _known, _lowered, _registered  # noqa: PLW0603 (the process's one registry)
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    found = {cased for form in _forms(text) for cased in (form, form.lower())}  # their lengths may differ
    with _lock:
        if found <= _known:
            return
        _known |= found
        _lowered = tuple({form.lower() for form in _known})
        longest_first = sorted(_known, key=lambda form: (-len(form), form))
        _registered = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)


def register_url(url: str) -> None:
    """Registers the password of a URL, or its user name where that stands alone, and keys in its query."""
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
    """The text without secrets.

    Args:
        text: Any text.
        patterns: Also replace what looks like a secret: credentials in URLs, authorization headers. Without it only
            registered values are replaced, as is right for texts of environments and models.

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
    """A copy of nested JSON values without secrets. Texts under names such as `api_key` or `password` are replaced.

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
    """Redacts every log record that is made from now on, message and traceback; further calls change nothing."""
    global _logging_redacted  # noqa: PLW0603 (once a process)
    with _lock:
        if _logging_redacted:
            return
        _logging_redacted = True
    make = logging.getLogRecordFactory()

    def factory(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = make(*arguments, **named)
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):  # logging itself says what is wrong with the call
            return record
        if (clean := redact(message)) != message:
            record.msg, record.args = clean, None
        if record.exc_info and record.exc_info[0] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            if (clean := redact(trace)) != trace:
                record.exc_text, record.exc_info = clean, None
        return record

    logging.setLogRecordFactory(factory)


class RedactedStream:
    """A text stream that redacts each piece of text written to it; everything else is the stream's own.

    Args:
        stream: Where to write, for example `sys.stderr`.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the redacted text; the length of what was given is returned, as writers expect."""
        self._stream.write(redact(text))
        return len(text)

    def writelines(self, lines: Any) -> None:  # noqa: ANN401 (any iterable of texts)
        """Writes each line."""
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> RedactedBuffer:
        """The binary stream below, redacted likewise."""
        return RedactedBuffer(self._stream.buffer)  # type: ignore[attr-defined]  # of text streams that have one

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the stream has)
        return getattr(self._stream, name)


class RedactedBuffer:
    """A binary stream that redacts what is written to it.

    Args:
        stream: Where to write.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        """Writes the redacted bytes; the length of what was given is returned."""
        text = bytes(data).decode("utf-8", "surrogateescape")
        self._stream.write(redact(text).encode("utf-8", "surrogateescape"))
        return len(data)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the stream has)
        return getattr(self._stream, name)


def _forms(value: str) -> set[str]:
    """The encodings of a value in which it is looked for."""
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
    """The part of base64 that these bytes alone decide where they begin `shift` bytes into a group of three."""
    encoded = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
    first = (shift * 8 + 5) // 6
    last = (shift + len(data)) * 8 // 6
    core = encoded[first:last]
    return core, core.translate(str.maketrans("+/", "-_"))
