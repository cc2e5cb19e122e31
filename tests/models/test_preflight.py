"""Checks before a download, against a hub on the loopback interface."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from local_server import Quiet

pytest.importorskip("huggingface_hub", reason="needs the extra `train`")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHECK = """
import sys
from hgpo_envs.errors import InputError
from hgpo_train.models.preflight import check_model_source
try:
    check_model_source(sys.argv[1])
except InputError as error:
    print(error)
"""


class Hub(ThreadingHTTPServer):
    """A hub with one model of two files, whose sizes it states."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.size = 1000
        self.downloads: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(Quiet, BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/me/tiny/tree/"):
            size = {"type": "file", "oid": "0" * 40, "size": self.server.size}
            self.reply(200, [{"path": name, **size} for name in ("config.json", "model.safetensors", "other.bin")])
        elif self.path.startswith("/api/models/me/tiny"):
            files = [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}]
            self.reply(200, {"id": "me/tiny", "sha": COMMIT, "siblings": files})
        elif self.path.startswith("/api/models/me/gated"):
            self.reply(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        elif self.path.startswith("/api/models/"):
            self.reply(401, {"error": "no"}, {"X-Error-Code": "RepoNotFound"})
        else:
            self.server.downloads += [self.path] if "/resolve/" in self.path else []
            self.reply(500, {})

    def do_HEAD(self) -> None:
        size = {"X-Linked-Size": str(self.server.size), "X-Linked-Etag": '"a"'}
        self.reply(200, None, {"X-Repo-Commit": COMMIT, "ETag": '"a"', **size})

    def reply(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        given = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def checked(name: str, home: Path, **environment: str) -> str:
    """Return the error of the check in a new process, which reads the hub's address when it starts."""
    given = {**os.environ, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", CHECK, name], env=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") <= 1
    return done.stdout


@pytest.mark.slow
def test_a_download_that_fits_passes_and_one_that_does_not_is_refused(hub: Hub, tmp_path: Path) -> None:
    assert checked("me/tiny", tmp_path, HF_ENDPOINT=hub.url) == ""
    hub.size = 10**15
    told = checked("me/tiny", tmp_path, HF_ENDPOINT=hub.url)
    assert told.startswith("the download of me/tiny needs 2,000,000.0 GB in ")
    assert hub.downloads == []
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("me/unknown", "the hub has no public model 'me/unknown'"),
        ("me/gated", "the model 'me/gated' requires a permission"),
        ("./no/folder", "no folder './no/folder'"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_line(hub: Hub, tmp_path: Path, name: str, line: str) -> None:
    assert line in checked(name, tmp_path, HF_ENDPOINT=hub.url)


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_one_line_unless_the_model_is_in_the_cache(hub: Hub, tmp_path: Path) -> None:
    dead = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert "neither a folder nor in the cache" in checked("me/tiny", tmp_path, **dead)
    assert "HF_HUB_OFFLINE is set" in checked("me/tiny", tmp_path, HF_HUB_OFFLINE="1", **dead)
    snapshot = tmp_path / "hub" / "models--me--tiny" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = tmp_path / "hub" / "models--me--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    assert checked("me/tiny", tmp_path, **dead) == ""
