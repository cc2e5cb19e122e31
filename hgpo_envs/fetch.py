"""Downloads over HTTP that survive what networks do: cut connections, stalls, wrong lengths, changed files.

A download grows in `<name>.part`, with what identifies the remote file (its validator) in `<name>.part.json`. When it
is interrupted, by the network or by Ctrl-C, the next try asks for the rest, on the condition that the remote file is
still the same (RFC 9110, Range with If-Range); a server that has another file, or no ranges, sends all of it anew. Only
a file whose length and checksum are right gets its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import httpx

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

TRIES: Final = 8
"""Tries in a row without a byte gained before it gives up."""
LONGEST_PAUSE: Final = 60.0
RETRY_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Progress(Protocol):
    """Is told how far a download is."""

    def __call__(self, done: int, total: int | None) -> None:
        """Called after every chunk.

        Args:
            done: Bytes on disk.
            total: Bytes in all, where the server tells.
        """
        ...


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A finished download.

    Attributes:
        path: Where it is.
        url: Where it came from.
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
class _Part:
    """What is known of a file under way."""

    url: str
    validator: str = ""
    total: int | None = None

    @classmethod
    def load(cls, path: Path, url: str) -> _Part:
        try:
            known = json.loads(path.read_text("utf-8"))
            if known["url"] == url:
                return cls(url, str(known["validator"]), known["total"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no note, or not a whole one: as if nothing had come yet
        return cls(url)

    def save(self, path: Path) -> None:
        text = json.dumps({"url": self.url, "validator": self.validator, "total": self.total})
        path.write_text(text, encoding="utf-8")


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    tries: int = TRIES,
    pause: float = 1.0,
    timeout: float = 30.0,
    progress: Progress | None = None,
) -> Downloaded:
    """Downloads a file, or what is missing of it.

    Args:
        url: http or https.
        target: The file to make; an existing one is replaced when the new one is whole.
        sha256: What its SHA-256 must be, where that is known.
        tries: Tries in a row without a byte gained before it gives up.
        pause: Seconds before the second try; doubles with each, up to a minute.
        timeout: Seconds without a byte after which a try is given up.
        progress: Is told how far it is.

    Raises:
        InputError: The file is not there, is not what it should be, or the network stays away. What has come is kept
            for the next call, unless it was wrong.
    """
    if not url.startswith(("http://", "https://")):
        raise InputError(f"expected a URL that starts with http:// or https://, got {url!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    part, note = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.json")
    with _alone(part), httpx.Client(timeout=timeout, follow_redirects=True) as client:
        known = _persist(client, url, part, note, tries, pause, progress)
        digest = _checked(part, note, url, sha256)
        part.replace(target)
        note.unlink(missing_ok=True)
    return Downloaded(target, url, target.stat().st_size, digest, known.validator)


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Holds the part file against other processes, where the system can."""
    try:
        import fcntl
    except ImportError:  # Windows: nothing holds others off there
        part.touch()
        yield
        return
    with part.open("ab") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another process is downloading {part}; wait for it") from None
        yield


def _persist(
    client: httpx.Client, url: str, part: Path, note: Path, tries: int, pause: float, progress: Progress | None
) -> _Part:
    """Tries until the part is whole."""
    failures = 0
    while True:
        before = _size(part)
        try:
            return _try(client, url, part, note, progress)
        except (httpx.TransportError, _TryAgain) as error:
            failures = 1 if _size(part) > before else failures + 1
            if failures >= tries:
                reason = str(error) or type(error).__name__
                raise InputError(
                    f"{url}: {reason}; gave up after {failures} tries without a byte gained. "
                    "What has come is kept: run the same command to go on"
                ) from None
            asked = error.pause if isinstance(error, _TryAgain) else None
            time.sleep(min(LONGEST_PAUSE, pause * 2 ** (failures - 1) if asked is None else asked))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InputError(f"{url}: {error}") from None
        except OSError as error:
            raise InputError(f"cannot write {part}: {error.strerror}") from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _try(client: httpx.Client, url: str, part: Path, note: Path, progress: Progress | None) -> _Part:
    """One request: adds what it brings to the part."""
    known = _Part.load(note, url)
    have = _size(part) if known.validator else 0  # bytes of we know not what are of no use
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": known.validator}
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have and have == known.total:
            return known  # it was whole already
        start = _accept(answer, have, known)
        if start is None:
            note.unlink(missing_ok=True)
            raise _TryAgain("the file on the server is another one now", 0)
        if start == 0:
            known = _Part(url, _validator(answer), _length(answer))
            known.save(note)
        with part.open("r+b") as file:
            file.truncate(start)
            file.seek(start)
            _receive(answer, file, known.total, progress)
    return known


def _accept(answer: httpx.Response, have: int, known: _Part) -> int | None:
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
        wait = answer.headers.get("Retry-After", "")
        raise _TryAgain(f"the server answered {status}", float(wait) if wait.isdigit() else None)
    raise InputError(f"{answer.url}: the server answered {status} {answer.reason_phrase}; check the address")


def _validator(answer: httpx.Response) -> str:
    """What identifies the file on the server: its strong entity tag, else its date (RFC 9110, 13.1.5)."""
    tag: str = answer.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", "")


def _length(answer: httpx.Response) -> int | None:
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else None


def _receive(answer: httpx.Response, file: BinaryIO, total: int | None, progress: Progress | None) -> None:
    """Writes the answer's bytes at the file's position."""
    for piece in answer.iter_raw():
        file.write(piece)
        if progress is not None:
            progress(file.tell(), total)
    if total is not None and file.tell() != total:
        excess = file.tell() > total
        if excess:
            file.truncate(0)
        raise _TryAgain(f"expected {total} bytes, got {file.tell()}")


def _checked(part: Path, note: Path, url: str, expected: str | None) -> str:
    """The part's SHA-256, flushed to disk; a wrong one is removed."""
    with part.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    if expected is not None and digest != expected.lower():
        part.unlink()
        note.unlink(missing_ok=True)
        raise InputError(f"{url}: expected SHA-256 {expected.lower()}, got {digest}; the download was removed")
    return digest
