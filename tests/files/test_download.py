"""Downloads from a local server with the faults of networks and servers."""

import random
import time
from itertools import count
from unittest.mock import patch

import pytest
from local_server import QuietHandler, serving
from refusals import refused

from hgpo_envs.files.download import NoConnection, download

BODY = random.Random(5).randbytes(300_000)
OTHER = random.Random(6).randbytes(280_000)


class Server:
    """What a server of one file answers. Each request takes the next of `faults`."""

    def __init__(self):
        self.body = BODY
        self.tag = '"one"'
        self.ranges = True
        self.validators = True
        self.faults = []
        self.requests = []


class Handler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.answers
        server.requests.append(dict(self.headers))
        fault = server.faults.pop(0) if server.faults else ""
        if isinstance(fault, int):
            self.answer(b"", fault)
        elif fault == "redirect":
            self.answer(b"", 302, Location=server.url)
        else:
            self.send_file(fault)

    def start(self):
        """Return the first requested byte if ranges are supported."""
        asked = self.headers.get("Range")
        if (
            not asked
            or not self.answers.ranges
            or self.headers.get("If-Range") != self.answers.tag
        ):
            return 0
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def send_file(self, fault):
        body = self.answers.body
        start = self.start()
        if start >= len(body):
            return self.answer(b"", 416, Content_Range=f"bytes */{len(body)}")
        headers = {"ETag": self.answers.tag} if self.answers.validators else {}
        if start:
            shift = 7 if fault == "wrong range" else 0
            headers["Content-Range"] = (
                f"bytes {start + shift}-{len(body) - 1}/{len(body)}"
            )
        if fault == "chunked":
            return self.send_chunks(body, headers)
        return self.send_rest(body[start:], 206 if start else 200, headers, fault)

    def send_chunks(self, body, headers):
        self.begin(200, Transfer_Encoding="chunked", **headers)
        for i in range(0, len(body), 50_000):
            piece = body[i : i + 50_000]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def send_rest(self, rest, status, headers, fault):
        self.begin(status, Content_Length=len(rest), **headers)
        kind, _, amount = fault.partition(" ")
        self.wfile.write(rest[: int(amount)] if amount.isdigit() else rest)
        self.wfile.flush()
        if kind == "cut":
            self.close_connection = True
            self.connection.shutdown(2)
        elif kind == "stall":
            time.sleep(20)


@pytest.fixture
def server():
    answers = Server()
    with serving(type("OwnHandler", (Handler,), {"answers": answers})) as address:
        answers.url = f"{address}/games.zip"
        yield answers


def fetch(url, folder, progress=None, **constants):
    constants = {"FIRST_PAUSE": 0.01, "TIMEOUT": 0.5, **constants}
    with patch.multiple("hgpo_envs.files.download", **constants):
        download(url, folder / "file", progress)
    return (folder / "file").read_bytes()


@pytest.mark.parametrize(
    ("faults", "requests"),
    [
        ([], 1),
        (["redirect"], 2),
        (["chunked"], 1),
        ([503, 429, 500], 4),
        (["cut 1000", "cut 100000", "cut 50000"], 4),
        (["stall 100000"], 2),
        (["cut 100000", 416], 3),
        (["cut 100000", "wrong range"], 3),
    ],
)
def test_the_whole_file_arrives_whatever_happens(server, tmp_path, faults, requests):
    server.faults = list(faults)
    progress = []
    assert (
        fetch(
            server.url,
            tmp_path,
            progress=lambda done, total: progress.append((done, total)),
        )
        == BODY
    )
    assert len(server.requests) == requests
    assert progress[-1] == (len(BODY), None if "chunked" in faults else len(BODY))


def test_a_server_without_ranges_or_validators_or_with_another_file_sends_the_whole_file_again(
    server, tmp_path
):
    server.ranges = False
    server.faults = ["cut 100000"]
    assert fetch(server.url, tmp_path) == BODY
    server.ranges = True
    server.validators = False
    server.faults = ["cut 100000"]
    assert fetch(server.url, tmp_path) == BODY
    assert not any("Range" in request for request in server.requests[2:])

    def change(done, total):
        server.body = OTHER
        server.tag = '"two"'

    server.validators = True
    server.faults = ["cut 100000"]
    assert fetch(server.url, tmp_path, progress=change) == OTHER


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(
    server, tmp_path, monkeypatch
):
    hours = count(0, 3600)  # between two pieces of the file
    monkeypatch.setattr("hgpo_envs.files.download.monotonic", lambda: next(hours))
    line = "fewer than 1,024 bytes a second arrive; stopped after 2 tries"
    with refused(line):
        fetch(server.url, tmp_path, TRIES=2)


def test_a_file_that_is_missing_or_too_large_is_not_requested_again(
    server, tmp_path, monkeypatch
):
    server.faults = [404]
    with refused("the server answered 404 Not Found; check the address"):
        fetch(server.url, tmp_path)
    monkeypatch.setattr("hgpo_envs.files.download.LARGEST", 200_000)
    with refused("expected at most 200,000 bytes, received more"):
        fetch(server.url, tmp_path)
    assert len(server.requests) == 2


@pytest.mark.slow
def test_addresses_without_a_server(tmp_path):
    for url in (
        "http://127.0.0.1:9/games.zip",
        "http://no-such-host.invalid/games.zip",
    ):
        with pytest.raises(NoConnection, match="no connection to"):
            fetch(url, tmp_path)
    for url in ("ftp://host/x", "games.zip", "http://", "http://[x"):
        with refused(r"^[^\n]+$"):
            fetch(url, tmp_path)


def test_credentials_in_an_address_are_not_printed(server, tmp_path):
    server.faults = ["cut 150000", 503]
    url = server.url.replace("http://", "http://me:hunter-2222@") + "?token=hunter-3333"
    with refused("stopped after 1 tries") as caught:
        fetch(url, tmp_path, TRIES=1)
    assert "hunter" not in str(caught.value)
