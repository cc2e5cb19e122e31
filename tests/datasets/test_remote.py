"""Manifests of other people's servers are read up to the limit of local ones."""

import http.server
from collections.abc import Iterator

import pytest
from local_server import Quiet, serving

from hgpo_datasets import manifest, scan_steps
from hgpo_envs.errors import InputError


class Endless(Quiet, http.server.BaseHTTPRequestHandler):
    """Sends an endless manifest, as one line or as many; reports a size only for a range request."""

    line = b"x"
    whole = 64 << 20

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        first, last = map(int, wanted.removeprefix("bytes=").split("-")) if wanted else (0, -1)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{self.whole}")
            self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        left = last - first + 1 if wanted else 1 << 40
        piece = (self.line * (1 << 16))[: 1 << 16]
        try:
            while left:
                left -= self.wfile.write(piece[:left])
        except OSError:
            return


@pytest.fixture
def url() -> Iterator[str]:
    with serving(Endless) as address:
        yield f"{address}/run"


@pytest.mark.parametrize("line", [b"x", b'{"check":"0"}\n'], ids=["one line", "lines"])
def test_an_endless_manifest_is_refused_at_the_limit(url: str, monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    monkeypatch.setattr(manifest, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(Endless, "line", line)
    with pytest.raises(InputError, match=r"^.*manifest\.jsonl: expected at most 1,048,576 bytes, received more$"):
        scan_steps(url)


def test_a_server_that_is_not_there_is_one_line() -> None:
    for address in ("http://127.0.0.1:9/run", "http://", "https://[/run"):
        with pytest.raises(InputError, match=r"^.*cannot be read.*$"):
            scan_steps(address)
