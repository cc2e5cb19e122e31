"""Requests other than GET. The WebSocket library closes their connections without an answer."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import h11
import msgspec
from websockets.asyncio.server import ServerConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from websockets.http11 import Response

INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
"""Codes of errors (JSON-RPC 2.0)."""

_GET: Final = b"GET "


class Connection(ServerConnection):
    """A connection whose first bytes decide who answers: the WebSocket library, or `respond`.

    The time for a handshake (``open_timeout``) limits both.

    Args:
        respond: Called with a request and its body.
        refuse: Called with a status and a reason.
        most_bytes: The largest body.
        given: Arguments of `ServerConnection`.
    """

    def __init__(
        self,
        *given: Any,
        respond: Callable[[h11.Request, bytes], Response],
        refuse: Callable[[HTTPStatus, str], Response],
        most_bytes: int,
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        self._respond = respond
        self._refuse = refuse
        self._most_bytes = most_bytes
        self._is_get: bool | None = None
        self._http = h11.Connection(h11.SERVER)
        self._head: h11.Request | None = None
        self._body = bytearray()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        # The first bytes may be fewer than the method's name; what they begin with decides.
        if self._is_get is None:
            self._is_get = data[: len(_GET)] == _GET[: len(data)]
        if self._is_get:
            super().data_received(data)
            return
        try:
            response = self._read(data)
        except h11.RemoteProtocolError as error:
            response = self._refuse(
                HTTPStatus(error.error_status_hint),
                f"expected an HTTP request: {error}",
            )
        if response is not None:
            self.transport.write(response.serialize())
            self.transport.close()

    def _read(self, data: bytes) -> Response | None:
        """Return the answer to a request that has come completely, or is too large; None before."""
        self._http.receive_data(data)
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._most_bytes:
                    text = f"expected a body of at most {self._most_bytes:,} bytes"
                    return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
            elif isinstance(event, h11.EndOfMessage) and self._head is not None:
                return self._respond(self._head, bytes(self._body))
            else:
                return None


def mcp_reply(body: bytes) -> dict[str, Any]:
    """Return the answer to a call of the Model Context Protocol: an error, because no environment offers its tools so.

    >>> mcp_reply(b'{"jsonrpc": "2.0", "id": 7, "method": "tools/list"}')["error"]["code"]
    -32601
    """
    error = {
        "code": METHOD_NOT_FOUND,
        "message": "Method not found: actions are texts, in a session at …/ws",
    }
    number = None
    try:
        number = msgspec.json.decode(body, type=_Call).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        error = {
            "code": INVALID_REQUEST,
            "message": "Invalid request: expected JSON-RPC with an id and a method",
        }
    return {"jsonrpc": "2.0", "id": number, "error": error}


class _Call(msgspec.Struct):
    id: int | str
    method: str
