"""Downloads from a local server with the faults of networks and servers."""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from local_server import Quiet

from hgpo_envs.errors import InputError
from hgpo_envs.files import secrets
from hgpo_envs.files.fetch import NoConnection, complete_download, open_partial

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


def fetch(server, folder, **settings):
    """Return the complete download, before it is moved."""
    return fetch_url(server.url, folder, **settings)


def fetch_url(url, folder, **settings):
    with open_partial(folder, url) as part:
        return complete_download(part, url, **{"pause": 0.01, "timeout": 0.5, **settings})


def finish(server, folder):
    """Remove the download, as a caller does after it has used the file."""
    with open_partial(folder, server.url) as part:
        part.remove()


def part_of(server, folder):
    return folder / ".hgpo-downloads" / hashlib.sha256(server.url.encode()).hexdigest()[:16] / "data"


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


def test_whole_file(server, tmp_path):
    seen = []
    result = fetch(server, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert result.path.read_bytes() == BODY
    assert result.sha256 == hashlib.sha256(BODY).hexdigest()
    assert (result.size, result.validator) == (len(BODY), '"one"')
    assert seen[-1] == (len(BODY), len(BODY))
    assert result.path == part_of(server, tmp_path)
    finish(server, tmp_path)
    assert leftovers(tmp_path) == []


def test_credentials_in_an_address_are_neither_stored_nor_printed(server, tmp_path, monkeypatch):
    for name in ("_known", "_lowered", "_registered"):  # what is registered here is forgotten afterwards
        monkeypatch.setattr(secrets, name, getattr(secrets, name))
    url = server.url.replace("http://", "http://me:hunter2-hunter2@") + "?api_key=planted-planted"
    server.faults = ["cut 1000", 404]
    lines = []
    for bad in (url, url.replace("http", "ftp", 1), url.replace(str(server.server_address[1]), "none")):
        with pytest.raises(InputError) as caught:
            fetch_url(bad, tmp_path)
        lines.append(str(caught.value))
    with pytest.raises(InputError) as caught:
        fetch_url(url, tmp_path, sha256="0" * 64)
    server.faults = ["cut 5"]
    with pytest.raises(InputError):
        fetch_url(url, tmp_path, tries=1)
    got = fetch_url(url, tmp_path)
    assert server.requests[-1]["Range"] == "bytes=5-"  # the note without credentials is recognised
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "data")
    for secret in ("hunter2-hunter2", "planted-planted"):
        assert secret not in " ".join([*lines, str(caught.value), repr(got)])
        assert secret.encode() not in stored


def test_lost_connections(server, tmp_path):
    server.faults = ["cut 100000", "cut 0", "cut 1", 503, "cut 50000"]
    assert fetch(server, tmp_path).path.read_bytes() == BODY
    ranges = [request.get("Range") for request in server.requests]
    assert ranges == [None, *["bytes=100000-"] * 2, *["bytes=100001-"] * 2, "bytes=150001-"]
    assert all(request["If-Range"] == '"one"' for request in server.requests[1:])


def test_stalled_connection(server, tmp_path):
    server.faults = ["stall 1000"]
    assert fetch(server, tmp_path).path.read_bytes() == BODY
    assert server.requests[1]["Range"] == "bytes=1000-"


def test_a_server_without_ranges_sends_the_whole_file_again(server, tmp_path):
    server.ranges = False
    server.faults = ["cut 200000", "cut 250000"]
    assert fetch(server, tmp_path).path.read_bytes() == BODY


def test_file_changes_between_tries(server, tmp_path):
    server.faults = ["cut 200000"]
    with pytest.raises(InputError):
        fetch(server, tmp_path, tries=1)
    server.body, server.tag = OTHER, '"two"'
    result = fetch(server, tmp_path)
    assert result.path.read_bytes() == OTHER
    assert result.validator == '"two"'


def test_without_a_validator_the_download_starts_again(server, tmp_path):
    server.validators = False
    server.faults = ["cut 200000"]
    assert fetch(server, tmp_path).path.read_bytes() == BODY
    assert [request.get("Range") for request in server.requests] == [None, None]


def test_a_range_that_was_not_requested(server, tmp_path):
    server.faults = ["cut 200000", "wrong range"]
    assert fetch(server, tmp_path).path.read_bytes() == BODY
    assert server.requests[-1].get("Range") is None


def test_a_partial_file_longer_than_the_remote_file(server, tmp_path):
    server.faults = ["cut 200000"]
    with pytest.raises(InputError):
        fetch(server, tmp_path, tries=1)
    with part_of(server, tmp_path).open("ab") as part:
        part.write(b"x" * 200_000)
    assert fetch(server, tmp_path).path.read_bytes() == BODY


def make_part(server, folder, data, note):
    part = part_of(server, folder)
    part.parent.mkdir(parents=True)
    part.write_bytes(data)
    (part.parent / "note.json").write_text(note)


def test_a_partial_file_that_is_already_complete(server, tmp_path):
    make_part(server, tmp_path, BODY, json.dumps({"url": server.url, "validator": '"one"', "total": len(BODY)}))
    assert fetch(server, tmp_path).path.read_bytes() == BODY
    assert len(server.requests) == 1


def test_a_complete_download_is_not_requested_again(server, tmp_path):
    """A command that was killed between the download and its use resumes without the network."""
    first = fetch(server, tmp_path)
    assert fetch(server, tmp_path) == first
    assert fetch(server, tmp_path, sha256=first.sha256) == first
    assert len(server.requests) == 1
    assert first.path.read_bytes() == BODY


BROKEN_NOTES = ["", "{", "[]", '{"url": 3}', '{"url": "http://elsewhere/"}', "[" * 100_000, "x" * 100_000]


@pytest.mark.parametrize("note", [*BROKEN_NOTES, '{"url": "URL", "validator": 3, "total": "x", "sha256": []}'])
def test_a_partial_file_with_a_damaged_note(server, tmp_path, note):
    make_part(server, tmp_path, b"x" * 1000, note.replace("URL", server.url))
    assert fetch(server, tmp_path).path.read_bytes() == BODY


def test_files_with_similar_names_are_not_removed(server, tmp_path):
    """For a download that succeeds, one that fails, and one of the wrong file."""
    names = ["games.zip.part", "games.zip.part.json", "games.zip.json", "out.downloads/games.zip", "out.new/x"]
    for name in [*names, ".hgpo-downloads/mine", ".hgpo-downloads/0123456789abcdef/data"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("precious")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError):
        fetch(server, tmp_path, sha256="0" * 64)
    server.faults = [404]
    with pytest.raises(InputError):
        fetch(server, tmp_path)
    fetch(server, tmp_path)
    finish(server, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", ["other content", "link"])
def test_a_folder_that_is_not_a_download_is_refused(server, tmp_path, kind):
    place = part_of(server, tmp_path).parent
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        place.parent.mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir(parents=True)
        (place / "thesis.tex").write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="contains something other than a download"):
        fetch(server, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("wait", ["\xb2", "9" * 5000, "-1", "1e9", "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_retry_after_headers(server, tmp_path, wait):
    server.faults = [f"retry {wait}"]
    assert fetch(server, tmp_path).path.read_bytes() == BODY


def test_a_response_without_content_length(server, tmp_path):
    server.faults = ["chunked"]
    seen = []
    result = fetch(server, tmp_path, progress=lambda done, total: seen.append(total))
    assert result.path.read_bytes() == BODY
    assert set(seen) == {None}


def test_redirects_are_followed(server, tmp_path):
    server.faults = ["redirect"]
    assert fetch(server, tmp_path).path.read_bytes() == BODY


def test_checksum(server, tmp_path):
    assert fetch(server, tmp_path, sha256=hashlib.sha256(BODY).hexdigest().upper()).size == len(BODY)


def test_a_wrong_checksum_leaves_no_files(server, tmp_path):
    with pytest.raises(InputError, match=f"expected SHA-256 {'0' * 64}, received {hashlib.sha256(BODY).hexdigest()}"):
        fetch(server, tmp_path, sha256="0" * 64)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_missing_file_is_not_requested_again(server, tmp_path, status):
    server.faults = [status] * 3
    with pytest.raises(InputError, match=f"the server answered {status} .*check the address"):
        fetch(server, tmp_path)
    assert len(server.requests) == 1


def test_a_failed_download_is_resumed_by_the_next_call(server, tmp_path):
    server.faults = ["cut 123456", *[500] * 3]
    with pytest.raises(InputError, match="the server answered 500; stopped after 3 tries"):
        fetch(server, tmp_path, tries=3)
    assert leftovers(tmp_path) == [".hgpo-downloads"]
    assert fetch(server, tmp_path).path.read_bytes() == BODY
    assert server.requests[-1]["Range"] == "bytes=123456-"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/games.zip", "http://no-such-host.invalid/games.zip"])
def test_no_connection_is_said_after_two_tries_and_leaves_nothing(tmp_path, url, monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    host = url.split("/")[2].split(":")[0]
    with pytest.raises(NoConnection, match=f"no connection to {host} .*nothing was downloaded"):
        fetch_url(url, tmp_path, pause=1.0)  # eight tries for a server that answered
    assert pauses == [1.0]
    assert leftovers(tmp_path) == []


def test_a_connection_lost_later_is_retried_as_often_as_before(server, tmp_path):
    """Only a download that never had a connection is given up early."""
    server.faults = ["cut 1000"]

    def stop(done, total):
        server.shutdown()
        server.server_close()

    with pytest.raises(InputError, match="stopped after 5 tries") as caught:
        fetch(server, tmp_path, tries=5, timeout=30, progress=stop)
    assert not isinstance(caught.value, NoConnection)
    with pytest.raises(NoConnection, match="the bytes so far are kept"):
        fetch(server, tmp_path)
    assert part_of(server, tmp_path).read_bytes() == BODY[:1000]


def test_a_file_that_does_not_fit_on_the_disk_is_refused_before_its_first_byte(server, tmp_path, monkeypatch):
    free = len(BODY) - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    with pytest.raises(InputError, match=rf"300,000 bytes.*{tmp_path} has 299,999 free"):
        fetch(server, tmp_path)
    assert leftovers(tmp_path) == []
    server.faults = ["cut 1000"]
    free = len(BODY)
    with pytest.raises(InputError):
        fetch(server, tmp_path, tries=1, timeout=30)
    free = len(BODY) - 1000  # enough for the rest
    assert fetch(server, tmp_path).path.read_bytes() == BODY


@pytest.mark.parametrize("url", ["ftp://host/file", "file:///etc/passwd", "games.zip", "http://"])
def test_an_address_that_is_not_http(tmp_path, url):
    with pytest.raises(InputError):
        fetch_url(url, tmp_path, tries=1)


def _download_slowly(url, folder):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fetch_url(url, folder, timeout=30)


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_then_resume(server, tmp_path):
    server.faults = ["stall 150000"]
    process = multiprocessing.get_context("spawn").Process(target=_download_slowly, args=(server.url, tmp_path))
    process.start()
    part = part_of(server, tmp_path)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (part.exists() and part.stat().st_size):
        time.sleep(0.02)
    time.sleep(0.2)
    with pytest.raises(InputError, match=rf"is in use: process {process.pid} on \S+ is downloading there"):
        fetch(server, tmp_path)
    os.kill(process.pid, signal.SIGINT)
    process.join(30)
    assert process.exitcode == 1
    kept = part.stat().st_size
    assert 0 < kept <= 150_000
    assert fetch(server, tmp_path).path.read_bytes() == BODY
    assert server.requests[-1]["Range"] == f"bytes={kept}-"
