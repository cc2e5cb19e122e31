"""Downloads from a local server with the faults of networks and servers."""

import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from local_server import Quiet

from hgpo_envs.errors import InputError
from hgpo_envs.files.download import NoConnection, download, forget

BODY = random.Random(5).randbytes(300_000)
OTHER = random.Random(6).randbytes(280_000)


class Server(ThreadingHTTPServer):
    """A server of one file. Each request takes the next of `faults`."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.tag = BODY, '"one"'
        self.ranges, self.validators = True, True
        self.faults = []
        self.requests = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/games.zip"


class Handler(Quiet, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.requests.append(dict(self.headers))
        fault = server.faults.pop(0) if server.faults else ""
        if isinstance(fault, int):
            self.status(fault)
        elif fault.startswith("retry "):
            self.status(503, {"Retry-After": fault.removeprefix("retry ")})
        elif fault == "redirect":
            self.status(302, {"Location": server.url})
        else:
            self.send_file(fault)

    def start(self):
        """Return the first requested byte if ranges are supported."""
        asked = self.headers.get("Range")
        if not asked or not self.server.ranges or self.headers.get("If-Range") != self.server.tag:
            return 0
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def send_file(self, fault):
        body, start = self.server.body, self.start()
        if start >= len(body):
            return self.status(416, {"Content-Range": f"bytes */{len(body)}"})
        self.send_response(206 if start else 200)
        if start:
            shift = 7 if fault == "wrong range" else 0
            self.send_header("Content-Range", f"bytes {start + shift}-{len(body) - 1}/{len(body)}")
        if self.server.validators:
            self.send_header("ETag", self.server.tag)
        return self.send_chunks(body) if fault == "chunked" else self.send_rest(body[start:], fault)

    def send_chunks(self, body):
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(0, len(body), 50_000):
            piece = body[i : i + 50_000]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def send_rest(self, rest, fault):
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        kind, _, amount = fault.partition(" ")
        self.wfile.write(rest[: int(amount)] if amount.isdigit() else rest)
        self.wfile.flush()
        if kind == "cut":
            self.close_connection = True
            self.connection.shutdown(2)
        elif kind == "stall":
            time.sleep(20)

    def status(self, status, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def fetch(url, folder, **settings):
    path = download(url, folder, **{"pause": 0.01, "timeout": 0.5, **settings})
    assert [file.name for file in path.parent.parent.iterdir()] == [path.parent.name]
    return path.read_bytes()


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
    assert fetch(server.url, tmp_path, progress=lambda done, total: progress.append((done, total))) == BODY
    assert len(server.requests) == requests
    assert progress[-1] == (len(BODY), None if "chunked" in faults else len(BODY))
    assert fetch(server.url, tmp_path) == BODY
    assert len(server.requests) == requests, "a complete download is not requested again"
    forget(server.url, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_without_ranges_or_validators_sends_the_whole_file_again(server, tmp_path):
    server.ranges, server.faults = False, ["cut 100000"]
    assert fetch(server.url, tmp_path) == BODY
    forget(server.url, tmp_path)
    server.ranges, server.validators, server.faults = True, False, ["cut 100000"]
    assert fetch(server.url, tmp_path) == BODY
    assert not any("Range" in request for request in server.requests[2:])


@pytest.mark.parametrize("error", [KeyboardInterrupt, "gives up"])
def test_the_next_call_resumes_unless_the_file_has_changed(server, tmp_path, error):
    def interrupt(done, total):
        if done > 100_000 and error is KeyboardInterrupt:
            raise KeyboardInterrupt

    server.faults = ["cut 150000", 503, 503]
    expected = error if error is KeyboardInterrupt else InputError
    with pytest.raises(expected, match="" if error is KeyboardInterrupt else "run the same command again to resume"):
        fetch(server.url, tmp_path, tries=3, progress=interrupt)
    server.faults = ["cut 1000"]
    with pytest.raises(InputError):
        fetch(server.url, tmp_path, tries=1)
    assert int(server.requests[-1]["Range"].removeprefix("bytes=").removesuffix("-")) > 50_000
    server.body, server.tag = OTHER, '"two"'
    assert fetch(server.url, tmp_path) == OTHER


def test_a_missing_file_is_not_requested_again_and_leaves_nothing(server, tmp_path):
    server.faults = [404]
    with pytest.raises(InputError, match="the server answered 404 Not Found; check the address"):
        fetch(server.url, tmp_path)
    assert len(server.requests) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/games.zip", "http://no-such-host.invalid/games.zip"])
def test_no_connection_is_said_after_two_tries_and_leaves_nothing(tmp_path, url):
    with pytest.raises(NoConnection, match="no connection to"):
        fetch(url, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["ftp://host/x", "games.zip", "http://", "http://[x"])
def test_an_address_that_is_not_http(tmp_path, url):
    with pytest.raises(InputError) as caught:
        fetch(url, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_too_large_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr("hgpo_envs.files.download.LARGEST", 200_000)
    with pytest.raises(InputError, match="expected at most 200,000 bytes, received more"):
        fetch(server.url, tmp_path)


def test_credentials_in_an_address_are_neither_stored_nor_printed(server, tmp_path):
    server.faults = ["cut 150000", 503]
    url = server.url.replace("http://", "http://me:hunter-2222@") + "?token=hunter-3333"
    with pytest.raises(InputError) as caught:
        fetch(url, tmp_path, tries=1)
    assert "hunter" not in str(caught.value)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hunter" not in stored
