"""Downloads over HTTP that survive what networks do: cut connections, stalls, wrong lengths, changed files.

The bytes wait in `hgpo_envs.partial_download` with what identifies the remote file (its validator). When a download is
interrupted, by the network or by Ctrl-C, the next try asks for the rest, on the condition that the remote file is still
the same (RFC 9110, Range with If-Range); a server that has another file, or no ranges, sends all of it again. Only a
file of the right length and checksum gets its name. Passwords and keys in an address are neither stored nor printed.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import httpx

from hgpo_envs.errors import InputError
from hgpo_envs.partial_download import Partial
from hgpo_envs.secrets import redact, register_url

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

TRIES: Final = 8
"""Tries in a row without a byte gained before it gives up."""
LONGEST_PAUSE: Final = 60.0
LARGEST: Final = 64 << 30
"""Bytes of the largest file that is believed; a server that sends more is not sending data of ours."""
RETRY_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


class Progress(Protocol):
    """Receives the progress of a download."""

    def __call__(self, done: int, total: int | None) -> None:
        """Called after every chunk.

        Args:
            done: Bytes on disk.
            total: Bytes in all, where the server says.
        """
        ...


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A complete download.

    Attributes:
        path: Where its bytes are: in its place of `hgpo_envs.partial_download`.
        url: Where it came from, redacted.
        size: Bytes.
        sha256: Of all bytes, hexadecimal.
        validator: The server's entity tag or date of it; "" if it gave none.
    """

    path: Path
    url: str
    size: int
    sha256: str
    validator: str


class _TryAgain(Exception):  # noqa: N818 (not an error yet)
    """This try failed, the next may not."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


@dataclass(slots=True)
class _Known:
    """What is known of a file under way.

    Attributes:
        url: Where it comes from, redacted.
        validator: The server's entity tag or date of it; "" if it gave none.
        total: Its length in bytes, where the server says.
        sha256: Of all bytes, once they are complete and checked.
    """

    url: str
    validator: str = ""
    total: int | None = None
    sha256: str = ""

    @classmethod
    def load(cls, part: Partial, url: str) -> _Known:
        note = part.note
        validator, total, digest = note.get("validator"), note.get("total"), note.get("sha256", "")
        if note.get("url") != redact(url) or not isinstance(validator, str) or not isinstance(digest, str):
            return cls(redact(url))  # no note, or not a complete one: as if nothing had come yet
        return cls(redact(url), validator, total if type(total) is int else None, digest)

    def save(self, part: Partial) -> None:
        part.save(url=self.url, validator=self.validator, total=self.total, sha256=self.sha256)


def open_partial(beside: Path, url: str) -> Partial:
    """The place of a download (`Partial`). Raises InputError for an address that cannot be one, or a full disk."""
    register_url(url)
    if not url.startswith(("http://", "https://")):
        raise InputError(f"expected a URL that starts with http:// or https://, got {redact(url)!r}")
    try:
        return Partial(beside, url)
    except OSError as error:
        raise InputError(f"cannot write in {beside}: {error.strerror}") from None


def complete_download(
    part: Partial,
    url: str,
    *,
    sha256: str | None = None,
    tries: int = TRIES,
    pause: float = 1.0,
    timeout: float = 30.0,
    progress: Progress | None = None,
) -> Downloaded:
    """Downloads what is missing of a file; nothing if it is complete already.

    Args:
        part: The place of the download, from `open_partial`. The complete file stays there until the caller moves it.
        url: The same address, http or https.
        sha256: The expected SHA-256 as hexadecimal digits, where it is known.
        tries: Tries in a row without a byte gained before it gives up.
        pause: Seconds before the second try; doubles with each, up to a minute.
        timeout: Seconds without a byte after which a try is given up.
        progress: Called with the bytes so far.

    Raises:
        InputError: The remote file does not exist or has another checksum, or the network stays away. The bytes so far
            are kept for the next call, unless they are wrong.
    """
    known = _Known.load(part, url)
    if known.sha256 and part.size == known.total and sha256 in (None, known.sha256):
        return Downloaded(part.path, known.url, part.size, known.sha256, known.validator)
    with httpx.Client(timeout=timeout, follow_redirects=True) as client:
        known = _persist(client, url, part, tries, pause, progress)
    known.sha256, known.total = _checked(part, url, sha256), part.size
    known.save(part)
    return Downloaded(part.path, known.url, part.size, known.sha256, known.validator)


def _persist(
    client: httpx.Client, url: str, part: Partial, tries: int, pause: float, progress: Progress | None
) -> _Known:
    """Tries until the part is complete."""
    failures = 0
    while True:
        before = part.size
        try:
            return _try(client, url, part, progress)
        except (httpx.TransportError, _TryAgain) as error:
            failures = 1 if part.size > before else failures + 1
            if failures >= tries:
                reason = str(error) or type(error).__name__
                raise InputError(
                    f"{redact(url)}: {redact(reason)}; gave up after {failures} tries without a byte gained. "
                    "What has come is kept: run the same command to resume"
                ) from None
            asked = error.pause if isinstance(error, _TryAgain) else None
            time.sleep(min(LONGEST_PAUSE, pause * 2 ** (failures - 1) if asked is None else asked))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InputError(redact(f"{url}: {error}")) from None
        except OSError as error:
            raise InputError(f"cannot write {part.path}: {error.strerror}") from None


def _try(client: httpx.Client, url: str, part: Partial, progress: Progress | None) -> _Known:
    """One request: adds what it brings to the part."""
    known = _Known.load(part, url)
    have = part.size if known.validator else 0  # bytes of an unknown file are of no use
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": known.validator}
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have and have == known.total:
            return known  # it was complete already
        start = _accept(answer, have, known)
        if start is None:
            part.clear()
            raise _TryAgain("the file on the server is another one now", 0)
        if start == 0:
            known = _Known(known.url, _validator(answer), _number(answer, "Content-Length"))
            known.save(part)
        with part.path.open("r+b") as file:
            file.truncate(start)
            file.seek(start)
            _receive(answer, file, known, progress)
    return known


def _accept(answer: httpx.Response, have: int, known: _Known) -> int | None:
    """Where the answer's bytes belong in the file; None when they do not fit what is there."""
    status = answer.status_code
    if status == httpx.codes.OK:
        return 0
    if status == httpx.codes.PARTIAL_CONTENT and have:
        span = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        fits = span is not None and int(span[1]) == have and span[3] in ("*", str(known.total))
        return have if fits and _validator(answer) in ("", known.validator) else None
    if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have:
        return None
    if status in RETRY_STATUS:
        raise _TryAgain(f"the server answered {status}", _number(answer, "Retry-After"))
    raise InputError(f"{known.url}: the server answered {status} {answer.reason_phrase}; check the address")


def _validator(answer: httpx.Response) -> str:
    """What identifies the file on the server: its strong entity tag, else its date (RFC 9110, 13.1.5)."""
    tag: str = answer.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", "")


def _number(answer: httpx.Response, header: str) -> int | None:
    number: str = answer.headers.get(header, "")
    return int(number) if _NUMBER.fullmatch(number) else None


def _receive(answer: httpx.Response, file: BinaryIO, known: _Known, progress: Progress | None) -> None:
    """Writes the answer's bytes at the file's position."""
    total = known.total
    for piece in answer.iter_raw():
        if file.tell() + len(piece) > LARGEST:
            raise InputError(f"{known.url}: sends more than {LARGEST:,} bytes; this is no data of ours")
        file.write(piece)
        if progress is not None:
            progress(file.tell(), total)
    got = file.tell()
    if total is not None and got != total:
        if got > total:
            file.truncate(0)
        raise _TryAgain(f"expected {total} bytes, got {got}")


def _checked(part: Partial, url: str, expected: str | None) -> str:
    """The part's SHA-256, flushed to disk; a wrong file is removed."""
    with part.path.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    if expected is not None and digest != expected.lower():
        part.remove()
        raise InputError(f"{redact(url)}: expected SHA-256 {expected.lower()}, got {digest}; the download was removed")
    return digest
