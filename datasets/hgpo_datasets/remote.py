"""Files on web servers and in object stores: lines up to a fixed size, and whole objects.

The options of object stores are environment variables, with Polars' names: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` and
so on. Writing requires the package obstore (extra `ray`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import polars as pl

from hgpo_datasets.shards import first_line
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def read_lines(url: str, most: int) -> bytes:
    """Read the lines of a remote text file, whatever size the server reports.

    Polars buffers a few chunks beyond the limit, and always reads complete lines.

    Args:
        url: URL on a web server (`http://`, `https://`) or in an object store.
        most: Largest accepted size in bytes.

    Raises:
        InputError: The file is larger.
        OSError, polars.exceptions.PolarsError: The request failed.
    """
    content = bytearray()
    lines = pl.scan_lines(url)
    for batch in lines.collect_batches(lazy=True, engine="streaming"):
        for line in batch["line"]:
            content += f"{line}\n".encode()
            if len(content) > most:
                raise InputError(
                    f"{url}: expected at most {most:,} bytes, received more"
                )
    return bytes(content)


def put(url: str, file: Path) -> None:
    """Write a file as an object, which appears when it is complete, and replaces an existing one at once.

    The options of the object store are environment variables. Like Polars, it accepts an endpoint without encryption.

    Raises:
        InputError: The object store refuses it.
    """
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    folder, _, name = url.rpartition("/")
    try:
        obstore.put(
            from_url(folder, client_options={"allow_http": uses_http()}),
            name,
            file,
        )
    except (BaseError, OSError, ValueError) as error:
        raise InputError(f"{url}: {first_line(error)}") from error


def uses_http() -> bool:
    """Return whether the endpoint of the environment has no encryption, as on one's own machine."""
    return os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
