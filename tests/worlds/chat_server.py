"""An OpenAI-compatible server on the loopback interface whose replies, delays, refusals and failures a test sets."""

import json
import threading
from collections.abc import Callable  # noqa: TC003
from http.server import ThreadingHTTPServer

from local_server import QuietHandler


class Api(ThreadingHTTPServer):
    """A chat server with replies set by a test: `answer(body, attempt)` returns (status, body, headers)."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict] = []
        self.headers: list[dict] = []
        self.paths: list[str] = []
        self.answer: Callable[[dict, int], tuple] = lambda body, attempt: completion(
            "<action>look</action>"
        )
        self._lock = threading.Lock()
        self.models: tuple[int, dict] = (
            200,
            {"object": "list", "data": [{"id": "tiny", "object": "model"}]},
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(QuietHandler):
    server: Api
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if callable(self.server.models):
            self.server.models(self)
        else:
            self.send(*self.server.models, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server._lock:
            self.server.bodies.append(body)
            self.server.paths.append(self.path)
            self.server.headers.append(
                {name.lower(): value for name, value in self.headers.items()}
            )
        prompt = body["messages"][0]["content"]
        attempt = sum(b["messages"][0]["content"] == prompt for b in self.server.bodies)
        answer = self.server.answer(body, attempt)
        if callable(answer):
            answer(self)
            return
        if answer == "cut":
            self.close_connection = True
            self.connection.close()
            return
        self.send(*answer)

    def send(self, status: int, body: object, headers: dict | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answer(
            data, status, **{"Content-Type": "application/json", **(headers or {})}
        )


def completion(
    text: str | None, finish: str = "stop", **more: object
) -> tuple[int, dict]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
        **more,
    }
    return 200, {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [choice],
    }


ACTIONS = ("open door", "go on", "look", "open door", "go on", "press switch")


def by_seed(body: dict, attempt: int = 0) -> tuple[int, dict]:
    """Return an action in the house of doors that depends only on the request's seed."""
    action = ACTIONS[body["seed"] % len(ACTIONS)]
    return completion(f"<think></think><action>{action}</action>")
