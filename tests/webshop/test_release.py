"""Installation of the official files from a folder and from faulty HTTP sources."""

import json
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest
from local_server import Quiet, serving

from hgpo_envs.errors import InputError
from hgpo_envs.files.download import NoConnection
from hgpo_envs.webshop.data import release

CONTENT = {file.name: json.dumps([1] if file.begins == b"[" else {}).encode() for file in release.FILES["small"]}
BY_DRIVE = {file.drive: file.name for file in release.FILES["small"]}


@pytest.fixture
def server():
    """`/ok/` has the files, `/page/` answers with a web page, `/none/` has nothing; `?id=` goes by Drive identifier."""
    asked = []

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self):
            url = urlsplit(self.path)
            asked.append(self.path)
            identifier = parse_qs(url.query).get("id", [""])[0]
            name = BY_DRIVE.get(identifier) or url.path.rsplit("/", 1)[-1]
            kind = url.path.split("/")[1]
            body = b"<!DOCTYPE html> Too many users have viewed this file" if kind == "page" else CONTENT.get(name, b"")
            self.send_response(404 if kind == "none" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as address:
        yield address, asked


def test_from_a_folder(tmp_path):
    (tmp_path / "have").mkdir()
    for name, data in CONTENT.items():
        (tmp_path / "have" / name).write_bytes(data)
    paths = release.fetch_release("small", tmp_path / "out", local=tmp_path / "have")
    assert [path.name for path in paths] == list(CONTENT)
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    (tmp_path / "have/items_human_ins.json").unlink()
    with pytest.raises(InputError, match=r"no items_human_ins\.json in"):
        release.fetch_release("small", tmp_path / "other", local=tmp_path / "have")
    with pytest.raises(InputError, match="size: expected 'small' or 'full', received 'huge'"):
        release.fetch_release("huge", tmp_path / "other")


@pytest.mark.parametrize("first", ["page", "none"])
def test_the_mirror_is_used_if_drive_refuses(tmp_path, server, first):
    root, _ = server
    sources = (f"{root}/{first}/download?id=", f"{root}/ok/")
    paths = release.fetch_release("small", tmp_path, sources=sources, tries=1)
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    with pytest.raises(InputError, match=r"^no source provides items_shuffle_1000.json[^\n]*--from FOLDER[^\n]*$"):
        release.fetch_release("small", tmp_path / "none", sources=sources[:1], tries=1)
    assert not (tmp_path / "none").exists()


def test_without_a_network_one_line_says_what_to_do_and_nothing_is_left(tmp_path):
    sources = ("http://no-such-host.invalid/?id=", "http://127.0.0.1:9/")
    with pytest.raises(NoConnection) as caught:
        release.fetch_release("small", tmp_path / "new/webshop", sources=sources)
    for part in ("no-such-host.invalid", "127.0.0.1", "--from FOLDER", "bundled catalogue"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []
