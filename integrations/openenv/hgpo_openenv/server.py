"""The server: connections, their limits, and what ends them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import parse_qsl

import msgspec
import orjson
from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response

from hgpo_envs.errors import one_line
from hgpo_envs.files.secrets import redact
from hgpo_openenv.access import Access, Address, Refusal
from hgpo_openenv.environments import MOST_TASKS, SCHEMA
from hgpo_openenv.messages import Close, MessageError, error_message, read_message
from hgpo_openenv.requests import Connection, mcp_reply
from hgpo_openenv.session import Session

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    import h11
    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request

    from hgpo_openenv.environments import ServedEnvironment
    from hgpo_openenv.messages import GetState, Reset, Step

HANDSHAKE_SECONDS: Final = 10.0
PING_SECONDS: Final = 20.0
"""Clients that do not answer a ping for this long are gone."""

NORMAL = 1000
GOING_AWAY = 1001
POLICY = 1008
INTERNAL = 1011
TRY_LATER = 1013
"""Codes that close a WebSocket connection (RFC 6455)."""


_HEADERS: Final = ("origin", "host", "authorization")


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Attributes:
        sessions: The most sessions at the same time.
        idle_seconds: A session that sends nothing, or reads nothing, for so long is closed.
        message_bytes: The largest message of a client.
        call_seconds: The longest call of an environment that runs in a thread.
    """

    sessions: int = 4096
    idle_seconds: float = 600.0
    message_bytes: int = 1 << 18
    call_seconds: float = 300.0


class EnvironmentServer:
    """Serves environments, one session per WebSocket connection.

    Args:
        environments: The environments by their names in addresses.
        access: Who may ask for what.
        limits: The limits.
        log: Called with one line for each new kind of error of an environment.

    Attributes:
        counts: How many sessions, episodes, steps and errors there were.
    """

    def __init__(
        self,
        environments: Mapping[str, ServedEnvironment],
        access: Access,
        limits: Limits | None = None,
        log: Callable[[str], object] = print,
    ) -> None:
        self._environments = environments
        self._access = access
        self._limits = limits or Limits()
        self._log = log
        self._logged = set[str]()
        self._sessions: dict[ServerConnection, Session] = {}
        self._server: Server | None = None
        self.counts: Counter[str] = Counter()

    @property
    def open_sessions(self) -> int:
        """The number of sessions that are open."""
        return len(self._sessions)

    async def start(self, listener: socket.socket) -> None:
        """Begin to serve on a bound socket."""
        # handshakes that fail are not worth a traceback
        silent = logging.getLogger("hgpo_openenv.silent")
        silent.addHandler(logging.NullHandler())
        silent.propagate = False
        most_bytes = self._limits.message_bytes
        connection = partial(
            Connection,
            respond=self._answer_other,
            refuse=self._refused,
            most_bytes=most_bytes,
        )
        self._server = await serve(
            self._connected,
            sock=listener,
            process_request=self._answer,
            create_connection=connection,  # type: ignore[arg-type]  # a factory is enough
            # costs more than a loopback or a local network, and decompression needs limits
            compression=None,
            server_header=None,
            open_timeout=HANDSHAKE_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            max_size=self._limits.message_bytes,
            max_queue=4,  # messages of a session are answered in turn
            logger=silent,
            backlog=4096,
        )

    async def stop(self, reason: str) -> int:
        """Close all sessions, and return how many there were."""
        assert self._server is not None
        # 1. A copy, because sessions leave the dictionary while they are closed. New connections are refused from here.
        sessions = dict(self._sessions)
        self._server.close(close_connections=False)

        # 2. Processes of environments end first: a call that waits for one would hold its session open.
        closing = [
            connection.close(GOING_AWAY, reason[:120]) for connection in sessions
        ]
        for session in sessions.values():
            session.close()

        # 3. Clients may be gone or slow; none of them keeps the others from being told.
        await asyncio.gather(*closing, return_exceptions=True)
        await self._server.wait_closed()
        for served in self._environments.values():
            if served.threads is not None:
                served.threads.shutdown(wait=False, cancel_futures=True)
        return len(sessions)

    # ------------------------------------------------------------------------------------------------- before a session

    def _answer(self, _: ServerConnection, request: Request) -> Response | None:
        """Answer a GET; None lets a session begin."""
        try:
            address = self._address(request)
            return (
                None
                if address.resource == "ws"
                else _response(HTTPStatus.OK, self._document(address))
            )
        except Refusal as refusal:
            return self._refused(refusal.status, str(refusal))

    def _address(self, request: Request) -> Address:
        headers = {name: request.headers.get_all(name) for name in _HEADERS}
        return self._access.address(request.path, headers)

    def _answer_other(self, request: h11.Request, body: bytes) -> Response:
        """Answer a request other than GET."""
        headers: dict[str, list[str]] = {name: [] for name in _HEADERS}
        for name, value in request.headers:
            headers.setdefault(name.decode(), []).append(value.decode("latin-1"))
        try:
            address = self._access.address(request.target.decode("latin-1"), headers)
        except Refusal as refusal:
            return self._refused(refusal.status, str(refusal))
        if request.method == b"POST" and address.resource == "mcp":
            return _response(HTTPStatus.OK, mcp_reply(body))
        return self._refused(
            HTTPStatus.METHOD_NOT_ALLOWED, f"expected GET of …/{address.resource}"
        )

    def _refused(self, status: HTTPStatus, reason: str) -> Response:
        self.counts["refused requests"] += 1
        return _response(status, {"error": reason})

    def _document(self, address: Address) -> object:
        if address.resource == "health":
            return {"status": "healthy"}
        if address.resource == "mcp":
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "expected POST of …/mcp")
        served = self._environments[address.environment]
        if address.resource == "schema":
            return SCHEMA
        if address.resource == "metadata":
            return served.metadata()
        if address.resource == "openapi.json":
            return served.openapi()
        try:
            query = dict(parse_qsl(address.query, max_num_fields=10))
            asked = msgspec.convert(query, _Range, strict=False)
        except (ValueError, msgspec.ValidationError) as error:
            raise Refusal(
                HTTPStatus.BAD_REQUEST,
                f"expected the query start=…&stop=… with numbers, of which at most {MOST_TASKS} ids are returned "
                f"({error})",
            ) from None
        return served.task_list(asked.start, asked.stop)

    # ------------------------------------------------------------------------------------------------------- sessions

    async def _connected(self, connection: ServerConnection) -> None:
        """Serve one connection from its first message to its end."""
        assert connection.request is not None
        served = self._environments[self._address(connection.request).environment]
        # There is no `await` between this check and the new entry, so that the limit holds without a lock.
        if len(self._sessions) >= self._limits.sessions:
            self.counts["refused sessions"] += 1
            text = f"all {self._limits.sessions} sessions are in use (--max-sessions); try again later"
            with suppress(ConnectionClosed):
                await connection.send(
                    error_message("CAPACITY_REACHED", text), text=True
                )
                await connection.close(TRY_LATER, text)
            return
        session = self._sessions[connection] = Session(served, self._report)
        self.counts["sessions"] += 1
        try:
            await self._converse(connection, session, served)
        except ConnectionClosed:  # the client has left, with or without a word
            pass
        finally:
            del self._sessions[connection]
            session.close()

    async def _converse(
        self, connection: ServerConnection, session: Session, served: ServedEnvironment
    ) -> None:
        """Answer messages until the client leaves or a limit is reached."""
        idle = self._limits.idle_seconds
        # Both directions have the limit: a client that does not read lets `send` wait as soon as its buffers are full.
        try:
            while True:
                async with asyncio.timeout(idle):
                    raw = await connection.recv(decode=False)
                reply = await self._reply(session, served, raw)
                if reply is None:
                    return
                async with asyncio.timeout(idle):
                    await connection.send(reply, text=True)
        except TimeoutError:
            self.counts["idle sessions"] += 1
            await connection.close(POLICY, f"idle for {idle:g} s; connect again")
        except _CallTimeoutError:
            session.close()
            text = f"a call took more than {self._limits.call_seconds:g} s (--call-timeout); connect again"
            await connection.send(error_message("EXECUTION_ERROR", text), text=True)
            await connection.close(INTERNAL, text)

    async def _reply(
        self, session: Session, served: ServedEnvironment, raw: bytes
    ) -> bytes | None:
        """Return the reply to a message, or None if it ends the session."""
        try:
            message = read_message(raw)
            if isinstance(message, Close):
                return None
            self.counts[type(message).__name__] += 1
            return await self._call(session, served, message)
        except MessageError as error:
            self.counts[error.code] += 1
            return error_message(error.code, str(error))

    async def _call(
        self,
        session: Session,
        served: ServedEnvironment,
        message: Reset | Step | GetState,
    ) -> bytes:
        if served.threads is None:  # a step is shorter than handing it to a thread
            return session.reply(message)
        # A thread cannot be stopped: `shield` leaves the call alone, and only the session is given up after the limit.
        call = asyncio.get_running_loop().run_in_executor(
            served.threads, session.reply, message
        )
        try:
            return await asyncio.wait_for(
                asyncio.shield(call), self._limits.call_seconds
            )
        except TimeoutError:
            call.add_done_callback(_forget)
            raise _CallTimeoutError from None

    def _report(self, error: BaseException) -> None:
        """Log an error of an environment, each kind once."""
        line = redact(f"{type(error).__name__}: {one_line(error, 500)}")
        if line not in self._logged and len(self._logged) < 1_000:
            self._logged.add(line)
            self._log(line)


class _Range(msgspec.Struct):
    """The query of a list of tasks. Texts of numbers become numbers; other names are ignored."""

    start: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    stop: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 10**9


class _CallTimeoutError(Exception):
    """A call of an environment took too long."""


def _forget(call: asyncio.Future[bytes]) -> None:
    """Take the result of a call that nobody waits for, so that asyncio does not report its error."""
    if not call.cancelled():
        call.exception()


def _response(status: HTTPStatus, document: object) -> Response:
    body = orjson.dumps(document)
    headers = Headers(
        {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
    )
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = "GET, POST"
    return Response(status, status.phrase, headers, body)
