"""What servers and gateways report when they refuse a request, in their different forms.

The report is an object, a list or a text, has the message under `error`, `message`, `detail` or deeper, and arrives
with any status, also 200. What a request contained may be repeated in it, so only the fields of reports are read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_REPORT: Final = 20_000
"""The number of characters in which a report is searched."""

_TRANSIENT: Final = frozenset({408, 409, 424, 425, 429, 499, *range(500, 600)} - {501})
"""Statuses of requests that may succeed later; what a server does not implement (501) it will not."""

_NEVER_TOO_LONG: Final = frozenset({401, 402, 403, 404, 414, 429, 431, 503, 504})

_MESSAGES: Final = (
    "failed_generation",  # Groq's: what the model wrote
    "message",
    "msg",
    "detail",
    "error",
    "errors",
    "description",
    "title",
    "reason",
    "status_msg",
)
_CODES: Final = ("code", "status", "status_code", "error_code", "type", "error_type")
_FIELDS: Final = frozenset(
    {*_MESSAGES, *_CODES, "details", "metadata", "raw", "cause", "base_resp"}
)


_PERMANENT: Final = re.compile(
    r"(?i)invalid|bad.?request|auth|permission|denied|not.?found|unsupported|quota|billing|content.?(filter|policy)"
)
"""Codes of errors that another attempt does not change, where the code is a word and not a status."""

_EXHAUSTED: Final = re.compile(
    r"(?i)insufficient.?(quota|balance|credit|fund)|exceeded.?current.?quota|billing|arrear"
)
"""Codes of accounts without money, which servers also send as a rate limit (429). Messages are no guide: Gemini's rate
limit speaks of the quota and of billing too."""

_OTHER_LIMIT: Final = re.compile(
    r"(?i)per[ _-]?(min|sec|hour|day)|\b(tpm|rpm|tpd|rpd)\b|rate.?limit|quota|throttl|wait before|billing|credit"
)
"""Limits of use, whose messages name tokens, requests and lengths too."""

_MALFORMED: Final = re.compile(
    r"(?i)tool_use_failed|json_validate_failed|error parsing tool call|failed to parse (input at|tool call|fc )"
    r"|output that does not match|while expecting start token|tokens remaining in message header"
)
"""What servers say that refuse what their own model wrote: Groq, Ollama, llama.cpp, SGLang, and vLLM of gpt-oss."""

_TOO_LARGE_ALONE: Final = re.compile(
    r"(?i)request too large for|tokens must be reduced"
)
"""A request that is larger than the limit of a whole minute, which never succeeds (OpenAI and Groq)."""

_ABOUT_RESPONSE: Final = re.compile(
    r"(?ix) \W? max_(new_|output_|completion_)?tokens \W+ (\w+\W+)?? (too\ \w+ | exceed\w* | must\ be | cannot\ be)"
    r"| (tak\w+ | took | wait\w* | r[au]n\w* | queued) \ (for\ )? too\ long"
    r"| (invalid\ '(?!(input|prompt|messages\[\d+\]\.content)\b) | stop\ (sequence|string)) (?s:.*)"
)
"""What limits something else than the prompt: the length of the response or of another field, or the time."""

_PROMPT: Final = r"(prompt | input | message | conversation | chat | history | sequence | string | text | query)s?"
_TOO_LONG: Final = re.compile(
    rf"""(?ix)
    context [ _-]? (length | window | size | limit | overflow | exceeded)
    | (exceed | overflow) \w* \W+ (\w+\W+){{0,3}}? context
    | session_len | max_(seq | model | session | input | prompt)_len
    | maximum\ (model | sequence | prompt | input)\ length
    | ({_PROMPT} | request | payload | entity | body) [\W_]+ ((?!model|image|file|audio)[^\W_]+[\W_]+){{0,8}}?
      too [ _-]? (long | large | big)
    | too [ _] (long | large | big) [\W_]+ (\w+\W+){{0,2}}? {_PROMPT} \b
    | \b ({_PROMPT} | input_\w+ | request) \b
      (?= .{{0,200}} (token | len) )
      .{{0,120}}? (exceed | (longer | greater | larger | more) \ than | at\ most | up\ to | <= | maximum\ is
        | cannot\ be | should\ not | must\ (be | have) \ (less | fewer | at\ most | no\ more | shorter | under | <))
    | (reduce | shorten | decrease) \W+ (\w+\W+){{0,3}}? (length | {_PROMPT} | context) \b
    | too\ many\ (input\ | prompt\ )? tokens | tokens?\ (limit\ | count\ )? exceed
    | exceed\w* \W+ (\w+\W+){{0,4}}? token\ limit
    | range\ of\ input\ length | current\ length\ is | tokens_exceeded | above_max_length
    | 超长 | 过长 | (?<!输出)长度超 | 最大上下文
    """
)


class ServerError(NamedTuple):
    """An error that a server reports.

    Attributes:
        message: Its message, or the report itself.
        transient: Whether another attempt may succeed.
        too_long: Whether the prompt is too long.
        malformed: Whether the server cannot parse the model's reply. The message tells of the reply, or is the reply.
    """

    message: str
    transient: bool
    too_long: bool
    malformed: bool = False


def read_error(
    report: bytes | dict[str, Any] | list[Any] | str, status: int
) -> ServerError:
    """Read the report of an error.

    Args:
        report: The body of an answer, or a decoded part of it.
        status: The HTTP status. With 200, the code in the report takes its place; an error without one is transient.

    >>> read_error(b'{"error": {"message": "slow down", "code": 429}}', 200)
    ServerError(message='slow down', transient=True, too_long=False, malformed=False)
    >>> read_error(b"<html>Oh</html>", 400)
    ServerError(message='<html>Oh</html>', transient=False, too_long=False, malformed=False)
    """
    value = _decoded(report) if isinstance(report, bytes) else report
    fields = list(_fields(value))
    codes = [text for name, text in fields if name in _CODES]
    if status == 200:
        status = _status_of(codes)

    texts = [text for _, text in fields]
    malformed = any(_MALFORMED.search(text[:LONGEST_REPORT]) for text in texts)
    too_long = not malformed and _is_too_long(texts, status)
    is_exhausted = any(_EXHAUSTED.search(code) for code in codes)
    is_lasting = malformed or too_long or is_exhausted
    transient = status in _TRANSIENT and not is_lasting

    # The outermost field of the most telling name is the message; without one, the whole report is.
    for name in _MESSAGES:
        for field, text in fields:
            if field == name:
                return ServerError(text, transient, too_long, malformed)
    whole = (
        value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    )
    return ServerError(whole if value else "", transient, too_long, malformed)


def _status_of(codes: list[str]) -> int:
    """Return the status that stands among the codes of a report; that of a temporary failure if there is none."""
    for code in codes:
        if code.isdecimal() and 400 <= int(code[:4]) < 600:
            return int(code)
    return 400 if any(_PERMANENT.search(code) for code in codes) else 500


def _decoded(report: bytes | str) -> Any:  # noqa: ANN401 - whatever the JSON is
    """Return the JSON of a report; its text if it is none."""
    try:
        return orjson.loads(report)
    except orjson.JSONDecodeError:
        return (
            report
            if isinstance(report, str)
            else report[: 4 * LONGEST_REPORT].decode("utf-8", "replace")
        )


def _fields(value: object, name: str = "message") -> Iterator[tuple[str, str]]:
    """Yield the names and texts of a report's fields."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in _FIELDS:
                yield from _fields(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from _fields(part, name)
    elif isinstance(value, str) and value.startswith(("{", "[")):
        # A gateway's report contains that of the server behind it, as a text.
        inner = _decoded(value)
        if inner == value:
            yield name, value
        else:
            yield from _fields(inner, name)
    elif isinstance(value, str | int | float) and value != "":
        yield name, str(value)


def _is_too_long(texts: list[str], status: int) -> bool:
    """Return whether a report says that the prompt is too long."""
    if _TOO_LARGE_ALONE.search("\n".join(texts)[:LONGEST_REPORT]):
        return True
    if status in _NEVER_TOO_LONG:
        return False
    # What limits the response is taken out first: it names tokens and lengths as well.
    searched = _ABOUT_RESPONSE.sub(" ", "\n".join(texts)[:LONGEST_REPORT])
    if _OTHER_LIMIT.search(searched):
        return status == 413
    return status == 413 or _TOO_LONG.search(searched) is not None
