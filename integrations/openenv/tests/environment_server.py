"""An environment server in a thread of this process, and a raw client."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson
from websockets.sync.client import ClientConnection, connect

from hgpo_openenv.access import Access
from hgpo_openenv.environments import ServedEnvironment
from hgpo_openenv.server import EnvironmentServer, Limits
from hgpo_train.local_server import bound_socket, known_hosts

TOKEN = "a-token-of-tests"


class Running:
    """A server that runs."""

    def __init__(
        self,
        server: EnvironmentServer,
        port: int,
        log: list[str],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.server = server
        self.port = port
        self.log = log
        self._loop = loop

    def url(self, name: str = "", scheme: str = "http") -> str:
        """The address of an environment, with the token."""
        return f"{scheme}://127.0.0.1:{self.port}/{TOKEN}" + (
            f"/{name}" if name else ""
        )

    def connect(self, name: str = "", **options) -> ClientConnection:
        """Open a session."""
        return connect(
            f"{self.url(name, 'ws')}/ws", compression=None, legacy=True, **options
        )

    def playing(self, task: str = "good") -> ClientConnection:
        """Open a session and start a task."""
        client = self.connect()
        assert ask(client, "reset", task=task)["type"] == "observation"
        return client

    def stop(self) -> int:
        """Stop the server."""
        return asyncio.run_coroutine_threadsafe(
            self.server.stop("the server was stopped"), self._loop
        ).result(30)

    def wait_for(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Wait until the server is in a state."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.005)


@contextmanager
def running(
    *served: ServedEnvironment, limits: Limits | None = None
) -> Iterator[Running]:
    """Run a server."""
    log: list[str] = []
    environments = {one.name: one for one in served}
    server = EnvironmentServer(
        environments,
        Access(TOKEN, known_hosts([]), tuple(environments)),
        limits,
        log.append,
    )
    listener = bound_socket("127.0.0.1", 0)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(listener), loop).result(30)
    run = Running(server, listener.getsockname()[1], log, loop)
    try:
        yield run
    finally:
        run.stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def ask(connection: ClientConnection, kind: str, **data) -> dict:
    """Send a message and return the whole answer."""
    connection.send(orjson.dumps({"type": kind, "data": data}), text=True)
    return orjson.loads(connection.recv(timeout=30))
