"""Files on web servers and in object stores: lines up to a fixed size, and whole objects.

The options of object stores are those of Polars, because both use the Rust package object_store: `aws_access_key_id`,
`aws_endpoint_url` and so on, or the same names as environment variables. Writing requires the package obstore (extra
`ray`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_datasets.shards import first_line
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_lines(url: str, most: int, options: Mapping[str, Any]) -> bytes:
    """Read the lines of a remote text file, whatever size the server reports.

    Polars buffers a few chunks beyond the limit, and always reads complete lines.

    Args:
        url: URL on a web server (`http://`, `https://`) or in an object store.
        most: Largest accepted size in bytes.
        options: Options of the object store, as in `polars.scan_lines`.

    Raises:
        InputError: The file is larger.
        OSError, polars.exceptions.PolarsError: The request failed.
    """
    content = bytearray()
    lines = pl.scan_lines(url, storage_options=dict(options) or None)
    for batch in lines.collect_batches(lazy=True, engine="streaming"):
        for line in batch["line"]:
            content += f"{line}\n".encode()
            if len(content) > most:
                raise InputError(f"{url}: expected at most {most:,} bytes, received more")
    return bytes(content)


def put(url: str, data: bytes | Path, options: Mapping[str, Any]) -> None:
    """Write an object, which appears when it is complete, and replaces an existing one at once.

    Args:
        url: The URL of the object, for example ``s3://bucket/name``.
        data: Its content, or a file with it.
        options: Options of the object store.

    Raises:
        InputError: The object store refuses it.
    """
    import obstore
    from obstore.exceptions import BaseError

    folder, _, name = url.rpartition("/")
    try:
        obstore.put(store(folder, options), name, data)
    except (BaseError, OSError, ValueError) as error:
        raise InputError(f"{url}: {first_line(error)}") from error


def store(folder: str, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 (a store of any kind)
    """Return the object store of a URL. Like Polars, it accepts an endpoint without encryption."""
    from obstore.store import from_url

    config: Any = {name: value for name, value in options.items() if not name.lower().endswith("allow_http")}
    client: Any = {"allow_http": True} if uses_http(options) else None
    return from_url(folder, config=config or None, client_options=client)


def uses_http(options: Mapping[str, Any]) -> bool:
    """Return whether the endpoint of the options or of the environment has no encryption, as on one's own machine."""
    endpoint = next((str(value) for name, value in options.items() if "endpoint" in name.lower()), None)
    return (endpoint or os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http://")
