"""A server as a process: its socket, its open files, and the signals that end it."""

from __future__ import annotations

import asyncio
import secrets
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import register
from hgpo_openenv.access import Access, token_from_environment
from hgpo_openenv.server import EnvironmentServer, Limits
from hgpo_train.local_server import address_of, bound_socket, known_hosts

if TYPE_CHECKING:
    import socket
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_openenv.environments import ServedEnvironment

SPARE_FILES: Final = 256
"""Open files beside the sessions' connections: data, libraries, requests."""


@dataclass(frozen=True)
class Ready:
    """A server that answers.

    Attributes:
        address: Its address, with the token if the server has made it.
        own_token: Whether the server has made the token.
    """

    address: str
    own_token: bool


@dataclass(frozen=True)
class Ended:
    """A server that was stopped.

    Attributes:
        interrupted: Whether it was Ctrl-C, and not SIGTERM.
        closed: The sessions that were open.
        counts: `EnvironmentServer.counts`.
    """

    interrupted: bool
    closed: int
    counts: Counter[str]


def run_server(
    environments: Mapping[str, ServedEnvironment],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    hosts: Sequence[str] = (),
    limits: Limits | None = None,
    ready: Callable[[Ready], object] = print,
    log: Callable[[str], object] = print,
) -> Ended:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        environments: The environments by their names in addresses.
        host: The address to listen on. Other machines reach it only if it is not one of loopback.
        port: The port; 0 for a free one.
        hosts: Names that requests may be addressed to, beside addresses, this machine's name and `host`.
        limits: The limits.
        ready: Called as soon as clients can connect.
        log: Called with each line of the server's log.

    Raises:
        InputError: The host, the port, the token or the number of sessions cannot be used.
    """
    limits = limits or Limits()
    given = token_from_environment()
    if given is not None:
        register(given)
    token = given or secrets.token_urlsafe(24)
    allow_open_files(limits.sessions + SPARE_FILES)
    listener = bound_socket(host, port)
    server = EnvironmentServer(
        environments,
        Access(token, known_hosts([host, *hosts]), tuple(environments)),
        limits,
        log,
    )
    address = address_of(host, listener)
    shown = Ready(address if given else f"{address}/{token}", own_token=given is None)
    with listener:
        return asyncio.run(_serve(server, listener, lambda: ready(shown)))


async def _serve(
    server: EnvironmentServer, listener: socket.socket, ready: Callable[[], object]
) -> Ended:
    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop, number)
        except NotImplementedError:  # Windows
            signal.signal(
                number, lambda number, _: loop.call_soon_threadsafe(stop, number)
            )
    await server.start(listener)
    ready()
    ended = await stopped
    closed = await server.stop("the server was stopped")
    return Ended(ended == signal.SIGINT, closed, server.counts)


def allow_open_files(number: int) -> None:
    """Raise this process's limit of open files if it is lower, as far as the system allows.

    Raises:
        InputError: The system allows fewer.
    """
    with suppress(ModuleNotFoundError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= number:
            return
        if hard != resource.RLIM_INFINITY and hard < number:
            raise InputError(
                f"--max-sessions: expected at most {max(hard - SPARE_FILES, 1):,}, because this process may open "
                f"{hard:,} files, received {number - SPARE_FILES:,}; raise `ulimit -Hn`, or start several servers"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
