"""What the servers of this package share: where they listen, and the names that requests may be addressed to."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_port(port: int) -> None:
    """Check the number of a port; 0 is a free one.

    Raises:
        InputError: It is out of range.
    """
    if not 0 <= port <= 65_535:
        raise InputError(f"--port: expected a number from 0 to 65535, received {port}")


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket that is bound and not yet listening.

    Args:
        host: An address or a name of this machine.
        port: The port; 0 for a free one.

    Raises:
        InputError: The host or the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError, UnicodeError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        hint = "use another --port" if _is_local_name(host) else "use an address of this machine as --host"
        raise InputError(f"cannot listen on {host!r}, port {port}: {reason}; {hint}") from None
    return listener


def address_of(host: str, listener: socket.socket) -> str:
    """Return the address of a bound socket, such as ``http://127.0.0.1:8000``."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def known_hosts(hosts: Sequence[str]) -> frozenset[str]:
    """Return the names that a request may be addressed to: loopback's, this machine's, and the given ones."""
    return frozenset(name.lower() for name in ("localhost", socket.gethostname(), *hosts))


def is_known_host(header: str, known: frozenset[str]) -> bool:
    """Return whether a `Host` header is an address or a known name, so that no other site's name can lead here.

    >>> is_known_host("127.0.0.1:8000", frozenset()), is_known_host("[::1]:8000", frozenset())
    (True, True)
    >>> is_known_host("evil.example:8000", frozenset({"localhost"}))
    False
    """
    name = header.rpartition("]")[0].lstrip("[") if header.startswith("[") else header.partition(":")[0]
    return _is_address(name) or name.lower() in known


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_local_name(host: str) -> bool:
    return _is_address(host) or host == "localhost"
