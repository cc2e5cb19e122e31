"""HTTP downloads that handle lost connections, stalls, wrong lengths and changed files.

The bytes are stored by `hgpo_envs.files.partial_download` together with a validator that identifies the remote file.
After an interruption, by the network or by Ctrl-C, the next try requests the rest on the condition that the remote file
has not changed (RFC 9110, Range with If-Range). If it has changed, or if the server does not support ranges, the server
sends the whole file again. A download is complete only with the right length and checksum. Passwords and keys in an
address
are neither stored nor printed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import httpx

from hgpo_envs.errors import InputError
from hgpo_envs.files.partial_download import Partial
from hgpo_envs.files.secrets import redact, register_url

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

TRIES: Final = 8
"""The number of consecutive tries without progress after which a download fails."""
FIRST_TRIES: Final = 2
"""The number of tries after which a download fails if no connection was made at all: there is probably no network."""
CONNECT_TIMEOUT: Final = 5.0
"""The maximum time in seconds to make a connection."""
LONGEST_PAUSE: Final = 60.0
"""The maximum pause between two tries in seconds."""
LARGEST: Final = 64 << 30
"""The maximum size of a file in bytes. All data sets of this project are smaller."""
RETRY_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


class NoConnection(InputError):  # noqa: N818 (a condition of the network)
    """No connection to the server could be made, so that the download did not begin or continue."""


class Progress(Protocol):
    """A callback for the progress of a download."""

    def __call__(self, done: int, total: int | None) -> None:
        """Report the progress after a chunk.

        Args:
            done: The number of bytes on disk.
            total: The size of the file in bytes, or None if the server does not send it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A complete download.

    Attributes:
        path: The path of the data (`hgpo_envs.files.partial_download`).
        url: The address, redacted.
        size: The size in bytes.
        sha256: The SHA-256 as hexadecimal digits.
        validator: The server's entity tag or date for the file. Empty if the server sent none.
    """

    path: Path
    url: str
    size: int
    sha256: str
    validator: str


class _TryAgain(Exception):  # noqa: N818 (handled internally)
    """A failed try that may be repeated."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


@dataclass(slots=True)
class _Known:
    """The metadata of an incomplete download.

    Attributes:
        url: The address, redacted.
        validator: The server's entity tag or date for the file. Empty if the server sent none.
        total: The size in bytes, or None if the server does not send it.
        sha256: The SHA-256 as hexadecimal digits. Empty until the download is complete and checked.
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
            return cls(redact(url))  # without a valid note, start again
        return cls(redact(url), validator, total if type(total) is int else None, digest)

    def save(self, part: Partial) -> None:
        part.save(url=self.url, validator=self.validator, total=self.total, sha256=self.sha256)


def open_partial(beside: Path, url: str) -> Partial:
    """Return the incomplete download of an address.

    Args:
        beside: The target's parent folder.
        url: The address, http or https.

    Raises:
        InputError: If the address is not an HTTP URL, or if the folder cannot be written or locked.
    """
    register_url(url)
    if not url.startswith(("http://", "https://")):
        raise InputError(f"expected a URL that starts with http:// or https://, received {redact(url)!r}")
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
    """Download the missing part of a file. A complete file is not downloaded again.

    Args:
        part: The incomplete download from `open_partial`. The complete file stays there until the caller moves it.
        url: The same address, http or https.
        sha256: The expected SHA-256 as hexadecimal digits, if it is known.
        tries: The number of consecutive tries without progress after which the download fails.
        pause: Seconds before the second try. The pause doubles with each try, up to `LONGEST_PAUSE`.
        timeout: Seconds without data after which a try fails.
        progress: Called after each chunk with the number of bytes so far.

    Returns:
        The complete download.

    Raises:
        InputError: If the remote file does not exist or has another checksum, if it does not fit on the disk, or if all
            tries fail. The bytes so far
            are kept for the next call unless the checksum is wrong.
        NoConnection: If no connection could be made, after `FIRST_TRIES` tries.
    """
    known = _Known.load(part, url)
    if known.sha256 and part.size == known.total and sha256 in (None, known.sha256):
        return Downloaded(part.path, known.url, part.size, known.sha256, known.validator)
    limits = httpx.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT))
    with httpx.Client(timeout=limits, follow_redirects=True) as client:
        known = _persist(client, url, part, tries, pause, progress)
    known.sha256, known.total = _checked(part, url, sha256), part.size
    known.save(part)
    return Downloaded(part.path, known.url, part.size, known.sha256, known.validator)


def _persist(
    client: httpx.Client, url: str, part: Partial, tries: int, pause: float, progress: Progress | None
) -> _Known:
    """Repeat tries until the download is complete."""
    failures, connected = 0, False
    while True:
        before = part.size
        try:
            return _try(client, url, part, progress)
        except (httpx.TransportError, _TryAgain) as error:
            failures = 1 if part.size > before else failures + 1
            connected = connected or not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            if not connected and (failures >= FIRST_TRIES or isinstance(error, httpx.ConnectTimeout)):
                raise _no_connection(url, part, error) from None
            if failures >= tries:
                reason = str(error) or type(error).__name__
                raise InputError(
                    f"{redact(url)}: {redact(reason)}; stopped after {failures} tries without progress. "
                    "The bytes so far are kept: run the same command again to resume"
                ) from None
            asked = error.pause if isinstance(error, _TryAgain) else None
            time.sleep(min(LONGEST_PAUSE, pause * 2 ** (failures - 1) if asked is None else asked))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InputError(redact(f"{url}: {error}")) from None
        except OSError as error:
            raise InputError(f"cannot write {part.path}: {error.strerror}") from None


def _no_connection(url: str, part: Partial, error: Exception) -> NoConnection:
    kept = "the bytes so far are kept" if part.size else "nothing was downloaded"
    reason = redact(str(error)) or "timed out"
    return NoConnection(f"no connection to {httpx.URL(url).host} ({reason}); {kept}")


def _try(client: httpx.Client, url: str, part: Partial, progress: Progress | None) -> _Known:
    """Send one request and append the received bytes to the download."""
    known = _Known.load(part, url)
    have = part.size if known.validator else 0  # without a validator, a download cannot be resumed
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": known.validator}
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have and have == known.total:
            return known  # the download was already complete
        start = _accept(answer, have, known)
        if start is None:
            part.clear()
            raise _TryAgain("the file on the server has changed", 0)
        if start == 0:
            known = _Known(known.url, _validator(answer), _number(answer, "Content-Length"))
            known.save(part)
        _check_space(part, known, start)
        with part.path.open("r+b") as file:
            file.truncate(start)
            file.seek(start)
            _receive(answer, file, known, progress)
    return known


def _check_space(part: Partial, known: _Known, start: int) -> None:
    """Raise InputError if the rest of the file does not fit on the disk."""
    free = shutil.disk_usage(part.folder).free + part.size - start  # bytes after `start` are overwritten
    if known.total is not None and known.total - start > free:
        raise InputError(
            f"{known.url} has {known.total:,} bytes, of which {known.total - start:,} are missing, and "
            f"{part.folder.parent.parent} has {free:,} free; free some space, or use another folder"
        )


def _accept(answer: httpx.Response, have: int, known: _Known) -> int | None:
    """Return the offset of the answer's bytes in the file, or None if they do not match the bytes so far."""
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
    """Return the validator of the remote file: its strong entity tag or else its date (RFC 9110, 13.1.5)."""
    tag: str = answer.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", "")


def _number(answer: httpx.Response, header: str) -> int | None:
    number: str = answer.headers.get(header, "")
    return int(number) if _NUMBER.fullmatch(number) else None


def _receive(answer: httpx.Response, file: BinaryIO, known: _Known, progress: Progress | None) -> None:
    """Write the answer's bytes at the file's position."""
    total = known.total
    for piece in answer.iter_raw():
        if file.tell() + len(piece) > LARGEST:
            raise InputError(f"{known.url}: expected at most {LARGEST:,} bytes, received more; check the address")
        file.write(piece)
        if progress is not None:
            progress(file.tell(), total)
    got = file.tell()
    if total is not None and got != total:
        if got > total:
            file.truncate(0)
        raise _TryAgain(f"expected {total} bytes, received {got}")


def _checked(part: Partial, url: str, expected: str | None) -> str:
    """Flush the download to disk and return its SHA-256. A download with a wrong checksum is removed."""
    with part.path.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    if expected is not None and digest != expected.lower():
        part.remove()
        raise InputError(
            f"{redact(url)}: expected SHA-256 {expected.lower()}, received {digest}; the download was removed"
        )
    return digest
