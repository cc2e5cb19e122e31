"""Connections that ask for nothing: they are closed, and do not keep others from being answered."""

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow

SERVER = """
import resource, sys
from hgpo_train.view import connections
connections.SECONDS = float(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from hgpo_train.cli import main
main()
"""


@pytest.fixture
def server(small_run, request):
    """Serve with few open files and a deadline, and return the address; it ends by Ctrl-C, with nothing on stderr."""
    words = [
        sys.executable,
        "-c",
        SERVER,
        str(request.param),
        "view",
        str(small_run),
        "--no-browser",
    ]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = re.search(r"http://\S+", process.stdout.readline())
    assert address
    yield address[0]
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)


def connected(address, sent):
    host, port = address.split("/")[2].split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(sent)
    return connection


def is_answered(address):
    with urllib.request.urlopen(f"{address}api/runs", timeout=60) as answer:
        return bool(answer.status == 200)


def drip(connection):
    """Send a byte twenty times a second, for a minute."""
    for _ in range(1200):
        connection.sendall(b"x")
        time.sleep(0.05)


@pytest.mark.parametrize("server", [3600], indirect=True)
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 9\r\n",
    ],
)
def test_a_thousand_half_open_connections(server, sent):
    """There are four times as many as the server may open files, and no deadline helps."""
    waiting = [connected(server, sent) for _ in range(1000)]
    assert is_answered(server)
    for connection in waiting:
        connection.close()
    assert is_answered(server)


@pytest.mark.parametrize("server", [1.0], indirect=True)
@pytest.mark.parametrize("first", ["", "GET /x/ HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_header_that_does_not_end(server, first):
    """It comes byte by byte, alone or after a whole request."""
    connection = connected(server, first.encode())
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        drip(connection)
    assert is_answered(server)
