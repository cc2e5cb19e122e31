"""Reads a file of a URL up to a size, whatever the server or the object store says about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx
import polars as pl

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN: Final = {"Accept-Encoding": "identity"}


def read_lines(url: str, most: int, options: Mapping[str, Any]) -> bytes:
    """The lines of a text file.

    A file of a web server is never read further than to the limit. Polars, which reads object stores, holds some chunks
    more, and a single line as a whole.

    Args:
        url: Of a file that a web server (`http://`, `https://`) or an object store has.
        most: The largest size accepted, in bytes.
        options: How to reach the store, as `polars.scan_lines` takes it.

    Raises:
        InputError: The file is larger, or a web server does not send it.
        OSError, polars.exceptions.PolarsError: An object store does not send it.
    """
    if url.startswith(("http://", "https://")) and not options:
        return _from_web(url, most)
    content = bytearray()
    lines = pl.scan_lines(url, storage_options=dict(options) or None)
    for batch in lines.collect_batches(lazy=True, engine="streaming"):
        for line in batch["line"]:
            content += f"{line}\n".encode()
            _check(url, len(content), most)
    return bytes(content)


def _from_web(url: str, most: int) -> bytes:
    content = bytearray()
    try:
        with httpx.stream("GET", url, headers=_PLAIN, follow_redirects=True) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes(1 << 16):
                content += piece
                _check(url, len(content), most)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(f"{url} cannot be read: {reason}") from error
    return bytes(content)


def _check(url: str, size: int, most: int) -> None:
    if size > most:
        raise InputError(f"{url} has more than {most:,} bytes; expected at most {most:,}")
