"""Messages between the processes: JSON objects, each after its length in four bytes.

All characters outside ASCII are escaped, so that lone surrogates pass. Used in both interpreters.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import socket

LARGEST: Final = 1 << 24
"""The maximum size of a message in bytes. A worker that announces more has failed."""

_PREFIX: Final = 4
_encode: Final = json.JSONEncoder().encode
_decode: Final = json.JSONDecoder().decode  # a program may replace the functions of the module


class FramingError(Exception):
    """The other end closed the connection, or sent something that is no message."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message.

    Raises:
        OSError: If the connection is broken.
    """
    data = _encode(message).encode("ascii")
    connection.sendall(len(data).to_bytes(_PREFIX, "big") + data)


def receive(connection: socket.socket, seconds: float | None = None) -> dict[str, Any]:
    """Receive a message.

    Args:
        connection: A stream socket.
        seconds: The maximum time until the whole message is there. None waits without end and reads no clock: in a
            world all clocks stand still.

    Raises:
        TimeoutError: If it takes longer.
        FramingError: If the connection was closed, or what arrived is no message.
        OSError: If the connection is broken.
    """
    until = None if seconds is None else time.monotonic() + seconds
    size = int.from_bytes(_read(connection, _PREFIX, until), "big")
    if size > LARGEST:
        raise FramingError(f"a message of {size:,} bytes; expected at most {LARGEST:,}")
    try:
        message = _decode(_read(connection, size, until).decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise FramingError("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise FramingError("a message that is not a JSON object")
    return message


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
