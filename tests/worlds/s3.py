"""A server of the S3 protocol on this machine (moto), and runs that are uploaded to it."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hgpo_datasets import object_store


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Yield the environment variables with which Polars and object_store use the server. It has the bucket `bucket`."""
    server = pytest.importorskip("moto.server")
    pytest.importorskip("obstore")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    serving = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    serving.start()
    try:
        host, port = serving.get_host_and_port()
        httpx.put(f"http://{host}:{port}/bucket").raise_for_status()
        yield {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
    finally:
        serving.stop()


def options_of(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment variables as storage options."""
    return {name.lower(): value for name, value in environment.items()}


def upload(run: Path, url: str, environment: dict[str, str]) -> None:
    """Upload a run's manifest and shards."""
    for path in (run / "manifest.jsonl", *sorted(run.glob("steps/*"))):
        object_store.put(f"{url}/{path.relative_to(run)}", path.read_bytes(), options_of(environment))


def download(url: str, environment: dict[str, str]) -> dict[str, bytes]:
    """Return the objects below a URL."""
    import obstore

    store = object_store._store(url, options_of(environment))
    return {name: bytes(obstore.get(store, name).bytes()) for name in object_store.names(url, options_of(environment))}
