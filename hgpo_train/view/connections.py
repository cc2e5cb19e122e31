"""Connections of the viewer's server: how many there may be, and how long one may take with its request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

MOST: Final = 32
"""Connections at a time; a browser opens six. The process's limit of open files must not be reached."""
BACKLOG: Final = 48
"""Connections that wait to be accepted. asyncio accepts all of them in each of the three turns of its loop between a
connection and its close, so that `MOST` and three times `BACKLOG` can be open."""
SECONDS: Final = 10.0
"""How long a connection may be without a complete header of a request."""


class Connection(H11Protocol):
    """A connection that is closed if it is idle for `SECONDS`, or if it has waited longest of more than `MOST`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Begin, and close a connection that waits if there are too many."""
        super().connection_made(transport)
        self.began = self.loop.time()
        if len(self.connections) > MOST:
            waiting = [
                other
                for other in self.connections
                if isinstance(other, Connection) and other.waits()
            ]
            min(waiting, key=lambda other: other.began).transport.abort()
        self.loop.call_later(SECONDS, self._close_if_idle, None)

    def waits(self) -> bool:
        """Return whether the connection is open and no request is being answered."""
        return (
            bool(getattr(self.cycle, "response_complete", True))
            and not self.transport.is_closing()
        )

    def _close_if_idle(self, last: object) -> None:
        if self.waits() and self.cycle is last:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(SECONDS, self._close_if_idle, self.cycle)
