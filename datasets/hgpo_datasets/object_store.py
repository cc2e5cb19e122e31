"""Write to object stores: whole objects, which become visible only when they are complete.

Polars reads object stores, but writes only tables of its own. The options are the same, because both use the Rust
package object_store: `aws_access_key_id`, `aws_endpoint_url` and so on, or the same names as environment variables.
Requires the package obstore (extra `ray`).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hgpo_datasets.shards import first_line
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def put(url: str, data: bytes | Path, options: Mapping[str, Any]) -> None:
    """Write an object. An existing one is replaced, at once.

    Args:
        url: The URL of the object, for example ``s3://bucket/name``.
        data: Its content, or a file with it.
        options: Options of the object store.

    Raises:
        InputError: The object store refuses it.
    """
    import obstore

    folder, _, name = url.rpartition("/")
    with _errors(url):
        obstore.put(_store(folder, options), name, data)


def exists(url: str, options: Mapping[str, Any]) -> bool:
    """Return whether there is an object at a URL.

    Raises:
        InputError: The object store refuses it.
    """
    import obstore

    folder, _, name = url.rpartition("/")
    with _errors(url):
        try:
            obstore.head(_store(folder, options), name)
        except FileNotFoundError:
            return False
    return True


def names(folder: str, options: Mapping[str, Any]) -> list[str]:
    """Return the names of the objects below a URL, relative to it, in order.

    Raises:
        InputError: The object store refuses it.
    """
    import obstore

    with _errors(folder):
        pages = obstore.list(_store(folder, options))
        return sorted(each["path"] for page in pages for each in page)


def remove(url: str, options: Mapping[str, Any]) -> None:
    """Remove an object.

    Raises:
        InputError: The object store refuses it.
    """
    import obstore

    folder, _, name = url.rpartition("/")
    with _errors(url):
        obstore.delete(_store(folder, options), name)


def uses_http(options: Mapping[str, Any]) -> bool:
    """Return whether the endpoint of the options or of the environment has no encryption, as on one's own machine."""
    endpoint = next((str(value) for name, value in options.items() if "endpoint" in name.lower()), None)
    return (endpoint or os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http://")


def _store(folder: str, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 (a store of any kind)
    """Return the object store of a URL. Like Polars, it accepts an endpoint without encryption."""
    from obstore.store import from_url

    config: Any = {name: value for name, value in options.items() if not name.lower().endswith("allow_http")}
    client: Any = {"allow_http": True} if uses_http(options) else None
    return from_url(folder, config=config or None, client_options=client)


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """Convert the errors of the object store to one line."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise InputError(f"{url}: {first_line(error)}") from error
