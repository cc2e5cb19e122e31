"""Web servers on this machine, for tests of downloads and of runs at URLs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import (
    BaseHTTPRequestHandler,
    SimpleHTTPRequestHandler,
    ThreadingHTTPServer,
)


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that prints no line per request."""

    def log_message(self, *_: object) -> None:
        pass

    def begin(self, status: int, **headers: object) -> None:
        """Send the status and headers; `_` stands for a hyphen in their names."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def answer(self, body: bytes, status: int = 200, **headers: object) -> None:
        """Send a whole answer."""
        self.begin(status, Content_Length=len(body), **headers)
        self.wfile.write(body)


class Files(QuietHandler, SimpleHTTPRequestHandler):
    """Serves a folder."""


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve within the block; yields the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
