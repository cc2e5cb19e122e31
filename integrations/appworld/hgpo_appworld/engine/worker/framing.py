"""Messages between the processes: JSON objects, each after its length in four bytes. Used in both interpreters."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import socket

_PREFIX: Final = 4
# a program may replace the functions of the module
_encode: Final = json.JSONEncoder().encode


class FramingError(Exception):
    """The other end closed the connection, or announced a message that is too large."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message. All characters outside ASCII are escaped, so that lone surrogates pass.

    Raises:
        OSError: If the connection is broken.
    """
    data = _encode(message).encode("ascii")
    connection.sendall(len(data).to_bytes(_PREFIX, "big") + data)


def receive(
    connection: socket.socket, largest: int, seconds: float | None = None
) -> bytes:
    """Receive a message, whose JSON is not decoded.

    Args:
        connection: A stream socket.
        largest: The maximum size of a message in bytes.
        seconds: The maximum time until the whole message is there. None waits without end and reads no clock: in a
            world all clocks stand still.

    Raises:
        TimeoutError: If it takes longer.
        FramingError: If the connection was closed, or the message is too large.
        OSError: If the connection is broken.
    """
    until = None if seconds is None else time.monotonic() + seconds
    size = int.from_bytes(_read(connection, _PREFIX, until), "big")
    if size > largest:
        raise FramingError(
            f"it sent a message of {size:,} bytes; expected at most {largest:,}"
        )
    return _read(connection, size, until)


def _read(connection: socket.socket, size: int, until: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if until is None:
            connection.settimeout(None)
        else:
            connection.settimeout(max(until - time.monotonic(), 1e-3))
            if time.monotonic() >= until:
                raise TimeoutError
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise FramingError("the connection was closed")
        data += part
    return bytes(data)
