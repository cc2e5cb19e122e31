"""Read a remote file up to a fixed size, regardless of the size that the server or object store reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets.shards import first_line
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN: Final = {"Accept-Encoding": "identity"}


def read_lines(url: str, most: int, options: Mapping[str, Any]) -> bytes:
    """Read the lines of a remote text file.

    A file on a web server is read up to the limit at most. Object stores are read by Polars, which buffers a few chunks
    beyond the limit and always reads complete lines.

    Args:
        url: URL on a web server (`http://`, `https://`) or in an object store.
        most: Largest accepted size in bytes.
        options: Options of the object store, as in `polars.scan_lines`.

    Raises:
        InputError: The file is larger, or the request to a web server failed.
        OSError, polars.exceptions.PolarsError: The request to an object store failed.
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
    import httpx  # takes as long to import as all other modules of this package

    content = bytearray()
    try:
        with httpx.stream("GET", url, headers=_PLAIN, follow_redirects=True) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes(1 << 16):
                content += piece
                _check(url, len(content), most)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"{url} cannot be read: {first_line(error)}") from error
    return bytes(content)


def _check(url: str, size: int, most: int) -> None:
    if size > most:
        raise InputError(f"{url}: expected at most {most:,} bytes, received more")
