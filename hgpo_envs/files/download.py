"""HTTP downloads of gigabytes, which continue after a lost connection.

The rest of a file is requested on the condition that the remote file has not changed (Range with If-Range, RFC 9110,
13.1.5); otherwise the server sends the whole file. Passwords and keys in an address are not printed.
"""

from __future__ import annotations

import time
from time import monotonic
from typing import IO, TYPE_CHECKING, Final

import httpx

from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact, register_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Progress = Callable[[int, int | None], object]
    """Called after each chunk with the number of bytes on disk, and the file's size if the server sends it."""

TRIES: Final = 8
"""The number of consecutive tries without progress after which a download fails."""
FIRST_TRIES: Final = 2
"""The number of tries after which it fails if no connection could be made: there is probably no network."""
FIRST_PAUSE: Final = 1.0
"""Seconds before the second try. The pause doubles with each try."""
LONGEST_PAUSE: Final = 60.0
"""The maximum pause between two tries in seconds."""
TIMEOUT: Final = 30.0
"""Seconds without data, or with fewer than `SLOWEST` bytes a second, after which a try fails."""
SLOWEST: Final = 1024
"""The fewest bytes a second with which a try goes on."""
LARGEST: Final = 64 << 30
"""The maximum size of a file in bytes. All data sets of this project are smaller."""
_RETRY_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class NoConnection(InputError):  # noqa: N818 (a condition of the network)
    """No connection to the server could be made."""


class _TryAgain(Exception):  # noqa: N818 (handled internally)
    """A failed try that may be repeated."""


class _TooSlow(_TryAgain):
    """A try whose bytes are too few to count as progress."""


def download(url: str, path: Path, progress: Progress | None = None) -> None:
    """Download a file. If the download fails, `path` contains a part of it.

    Args:
        url: The address, http or https.
        path: The file to write, usually one of `hgpo_envs.files.atomic.new_path`.
        progress: Called after each chunk.

    Raises:
        InputError: If the address is wrong, the remote file does not exist, or all tries fail.
        NoConnection: If no connection could be made.
        OSError: If the file cannot be written, or the disk is full.
    """
    register_url(url)
    if not url.startswith(("http://", "https://")):
        raise InputError(
            f"expected a URL that starts with http:// or https://, received {redact(url)!r}"
        )
    unchanged: dict[str, str] = {}  # the condition on which the rest is requested
    failures = 0
    with (
        path.open("wb") as file,
        httpx.Client(timeout=TIMEOUT, follow_redirects=True) as client,
    ):
        while True:
            before = file.tell()
            try:
                return _receive(client, url, file, unchanged, progress)
            except (httpx.TransportError, _TryAgain) as error:
                has_more = file.tell() > before and not isinstance(error, _TooSlow)
                failures = 1 if has_more else failures + 1
                if (
                    isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                    and failures >= FIRST_TRIES
                ):
                    reason = redact(str(error)) or "timed out"
                    raise NoConnection(
                        f"no connection to {httpx.URL(url).host} ({reason})"
                    ) from None
                if failures >= TRIES:
                    reason = redact(str(error)) or type(error).__name__
                    raise InputError(
                        f"{redact(url)}: {reason}; stopped after {failures} tries without progress"
                    ) from None
                time.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1)))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise InputError(redact(f"{url}: {error}")) from None


def _receive(
    client: httpx.Client,
    url: str,
    file: IO[bytes],
    unchanged: dict[str, str],
    progress: Progress | None,
) -> None:
    """Send one request and append the received bytes to the file, or start over if the server sends all of them."""
    start = file.tell() if unchanged else 0
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", **unchanged}
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code in _RETRY_STATUS:
            raise _TryAgain(f"the server answered {answer.status_code}")
        partial = answer.status_code == httpx.codes.PARTIAL_CONTENT
        if (
            not start
            or not partial
            or not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        ):
            file.seek(0)
            file.truncate()
            unchanged.clear()
            if start and answer.status_code != httpx.codes.OK:
                raise _TryAgain(
                    f"the server answered {answer.status_code} to a request for the rest"
                )
            if answer.status_code != httpx.codes.OK:
                raise InputError(
                    f"{redact(url)}: the server answered {answer.status_code} {answer.reason_phrase}; check the address"
                )
            if validator := _validator(answer):
                unchanged["If-Range"] = validator
        length = answer.headers.get("Content-Length", "")
        total = file.tell() + int(length) if length.isdecimal() else None
        for piece in _pieces(answer):
            if file.tell() + len(piece) > LARGEST:
                raise InputError(
                    f"{redact(url)}: expected at most {LARGEST:,} bytes, received more"
                )
            file.write(piece)
            if progress is not None:
                progress(file.tell(), total)


def _pieces(answer: httpx.Response) -> Iterator[bytes]:
    """Yield what arrives; a byte now and then would keep a try alive for ever."""
    since = monotonic()
    received = 0
    for piece in answer.iter_raw():
        yield piece
        received += len(piece)
        seconds = monotonic() - since
        if seconds > TIMEOUT:
            if received < seconds * SLOWEST:
                raise _TooSlow(f"fewer than {SLOWEST:,} bytes a second arrive")
            since += seconds
            received = 0


def _validator(answer: httpx.Response) -> str:
    """Return the validator of the remote file: its strong entity tag or else its date."""
    tag: str = answer.headers.get("ETag", "")
    return (
        tag
        if tag and not tag.startswith("W/")
        else answer.headers.get("Last-Modified", "")
    )
