"""HTTP downloads of gigabytes, which the same call resumes after a lost connection, Ctrl-C or a kill.

The target's parent folder contains a folder that only this program uses, until the caller has what it needs (`forget`):

    .hgpo-downloads/
      <16 hexadecimal digits>/    one download, named after the SHA-256 of its address
        .lock                     locked by the downloading process
        validator                 the server's entity tag or date of the file (RFC 9110, 13.1.5)
        part                      the bytes so far
        data                      the complete file

The rest of a file is requested on the condition that the remote file has not changed (Range with If-Range); otherwise
the server sends the whole file. Passwords and keys in an address are neither stored nor printed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import httpx

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import FolderLock
from hgpo_envs.files.secrets import redact, register_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Progress = Callable[[int, int | None], object]
    """Called after each chunk with the number of bytes on disk, and the file's size if the server sends it."""

FOLDER: Final = ".hgpo-downloads"
TRIES: Final = 8
"""The number of consecutive tries without progress after which a download fails."""
FIRST_TRIES: Final = 2
"""The number of tries after which it fails if no connection could be made: there is probably no network."""
LONGEST_PAUSE: Final = 60.0
"""The maximum pause between two tries in seconds."""
LARGEST: Final = 64 << 30
"""The maximum size of a file in bytes. All data sets of this project are smaller."""
_RETRY_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class NoConnection(InputError):  # noqa: N818 (a condition of the network)
    """No connection to the server could be made."""


class _TryAgain(Exception):  # noqa: N818 (handled internally)
    """A failed try that may be repeated."""


def download(
    url: str,
    beside: Path,
    *,
    tries: int = TRIES,
    pause: float = 1.0,
    timeout: float = 30.0,
    progress: Progress | None = None,
) -> Path:
    """Download a file, or the rest of it. A complete file is not downloaded again.

    Args:
        url: The address, http or https.
        beside: The target's parent folder.
        tries: The number of consecutive tries without progress after which the download fails.
        pause: Seconds before the second try. The pause doubles with each try, up to `LONGEST_PAUSE`.
        timeout: Seconds without data after which a try fails.
        progress: Called after each chunk.

    Returns:
        The complete file, which stays there until `forget`.

    Raises:
        InputError: If the address is wrong, the remote file does not exist, or all tries fail. The bytes so far are
            kept for the next call.
        NoConnection: If no connection could be made.
        OSError: If the folder cannot be written, or the disk is full.
    """
    register_url(url)
    if not url.startswith(("http://", "https://")):
        raise InputError(f"expected a URL that starts with http:// or https://, received {redact(url)!r}")
    folder = _folder(url, beside)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FolderLock(folder, "downloading"), httpx.Client(timeout=timeout, follow_redirects=True) as client:
            if not (folder / "data").exists():
                _persist(client, url, folder, tries, pause, progress)
    except BaseException:
        if not _size(folder / "part"):
            forget(url, beside)
        raise
    return folder / "data"


def _persist(client: httpx.Client, url: str, folder: Path, tries: int, pause: float, progress: Progress | None) -> None:
    """Repeat tries until the download is complete."""
    failures, part = 0, folder / "part"
    while True:
        before = _size(part)
        try:
            _try(client, url, folder, progress)
        except (httpx.TransportError, _TryAgain) as error:
            failures = 1 if _size(part) > before else failures + 1
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) and failures >= FIRST_TRIES:
                reason = redact(str(error)) or "timed out"
                raise NoConnection(f"no connection to {httpx.URL(url).host} ({reason})") from None
            if failures >= tries:
                raise InputError(
                    f"{redact(url)}: {redact(str(error)) or type(error).__name__}; stopped after {failures} tries "
                    "without progress. The bytes so far are kept: run the same command again to resume"
                ) from None
            time.sleep(min(LONGEST_PAUSE, pause * 2 ** (failures - 1)))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InputError(redact(f"{url}: {error}")) from None
        else:
            part.replace(folder / "data")
            return


def forget(url: str, beside: Path) -> None:
    """Remove the download of an address, if there is one, and the folder of downloads if it was the last."""
    shutil.rmtree(_folder(url, beside), ignore_errors=True)
    with suppress(OSError):  # there is none, or it contains other downloads
        (beside / FOLDER).rmdir()


def _folder(url: str, beside: Path) -> Path:
    return beside / FOLDER / hashlib.sha256(url.encode("utf-8", "replace")).hexdigest()[:16]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _try(client: httpx.Client, url: str, folder: Path, progress: Progress | None) -> None:
    """Send one request and append the received bytes to the download."""
    part, validator = folder / "part", folder / "validator"
    start = _size(part) if validator.exists() else 0  # without a validator, a download cannot be resumed
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": validator.read_text("ascii")}
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code in _RETRY_STATUS:
            raise _TryAgain(f"the server answered {answer.status_code}")
        resumes = answer.status_code == httpx.codes.PARTIAL_CONTENT
        if start and answer.status_code != httpx.codes.OK:
            span = answer.headers.get("Content-Range", "")
            if not resumes or not span.startswith(f"bytes {start}-"):
                part.unlink()
                raise _TryAgain(f"the server answered {answer.status_code} to a request for the rest")
        elif answer.status_code != httpx.codes.OK:
            raise InputError(
                f"{redact(url)}: the server answered {answer.status_code} {answer.reason_phrase}; check the address"
            )
        else:
            start = 0
            validator.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            if value := _validator(answer):
                validator.write_text(value, "ascii")
        length = answer.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        with part.open("ab") as file:
            for piece in answer.iter_raw():
                if file.tell() + len(piece) > LARGEST:
                    raise InputError(f"{redact(url)}: expected at most {LARGEST:,} bytes, received more")
                file.write(piece)
                if progress is not None:
                    progress(file.tell(), total)
            file.flush()
            os.fsync(file.fileno())


def _validator(answer: httpx.Response) -> str:
    """Return the validator of the remote file: its strong entity tag or else its date."""
    tag: str = answer.headers.get("ETag", "")
    value = tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", "")
    return value if value.isascii() else ""
