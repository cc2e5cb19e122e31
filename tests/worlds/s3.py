"""A server of the S3 protocol on this machine (moto), and runs that are uploaded to it."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("listening", server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until the parent ends
server.stop()
"""


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Yield the environment variables with which Polars and object_store use the server. It has the bucket `bucket`.

    The server is a process of its own, because deltalake does not release Python's lock while it waits for answers.
    """
    for name in ("moto", "flask", "flask_cors", "obstore"):
        pytest.importorskip(name)
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            port = next(
                line.split()[1]
                for line in server.stdout
                if line.startswith("listening")
            )
            address = f"http://127.0.0.1:{port}"
            httpx.put(f"{address}/bucket").raise_for_status()
            yield {
                "AWS_ENDPOINT_URL": address,
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
            }
        finally:
            server.terminate()


def options_of(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment variables as storage options."""
    return {name.lower(): value for name, value in environment.items()}


def upload(run: Path, url: str, environment: dict[str, str]) -> None:
    """Upload a run's manifest and shards."""
    for path in (run / "manifest.jsonl", *sorted(run.glob("steps/*"))):
        address = f"{environment['AWS_ENDPOINT_URL']}/{url.removeprefix('s3://')}/{path.relative_to(run)}"
        httpx.put(address, content=path.read_bytes()).raise_for_status()
