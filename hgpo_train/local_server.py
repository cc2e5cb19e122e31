"""What the servers of this package share: where they listen, and the names that requests may be addressed to."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens on an address or a name of this machine; port 0 is a free one.

    Raises:
        InputError: The host or the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = (
            str(getattr(error, "strerror", None) or error)
            .partition(" (")[0]
            .rstrip(".")
        )
        raise InputError(
            f"cannot listen on {host!r}, port {port}: {reason}; change --host or --port"
        ) from None


def address_of(host: str, listener: socket.socket) -> str:
    """Return the address of a bound socket, such as ``http://127.0.0.1:8000``."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def known_hosts(hosts: Sequence[str]) -> frozenset[str]:
    """Return the names that a request may be addressed to: loopback's, this machine's, and further ones."""
    return frozenset(
        name.lower() for name in ("localhost", socket.gethostname(), *hosts)
    )


@lru_cache(maxsize=64)
def is_known_host(header: str, known: frozenset[str]) -> bool:
    """Return whether a `Host` header is an address or a known name, so that no other site's name can lead here.

    >>> is_known_host("127.0.0.1:8000", frozenset()), is_known_host("[::1]:8000", frozenset())
    (True, True)
    >>> is_known_host("evil.example:8000", frozenset({"localhost"}))
    False
    """
    name = (
        header.rpartition("]")[0].lstrip("[")
        if header.startswith("[")
        else header.partition(":")[0]
    )
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() in known
    return True
