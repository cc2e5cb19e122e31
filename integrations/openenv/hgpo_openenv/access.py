"""Who may ask for what: the token, the host, and the addresses of a server.

``/health`` answers everybody. All other addresses need the token, as the header ``Authorization: Bearer TOKEN`` or as
the first part of the path, for clients that cannot send headers::

    /ALFWorld/ws    /ALFWorld/schema    /ALFWorld/metadata    /ALFWorld/tasks?start=0&stop=100
    /ALFWorld/health    /ALFWorld/openapi.json    /ALFWorld/mcp
    /TOKEN/ALFWorld/ws    …

A server of one environment also answers without its name: ``/ws``, ``/TOKEN/ws``.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from hgpo_envs.errors import InputError
from hgpo_train.local_server import is_known_host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOKEN_VARIABLE: Final = "HGPO_SERVE_TOKEN"  # noqa: S105 - a name, not a token
"""The environment variable that may contain the token."""

RESOURCES: Final = (
    "ws",
    "schema",
    "metadata",
    "tasks",
    "health",
    "openapi.json",
    "mcp",
)


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is refused.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Address:
    """What a request asks for.

    Attributes:
        resource: One of `RESOURCES`.
        environment: The environment's name; empty for ``health`` of the server.
        query: The query.
    """

    resource: str
    environment: str = ""
    query: str = ""


@dataclass(frozen=True)
class Access:
    """The rules of a server.

    Attributes:
        token: The token.
        hosts: The names that requests may be addressed to, beside addresses.
        environments: The names of the environments.
    """

    token: str
    hosts: frozenset[str]
    environments: Sequence[str]

    def address(self, path: str, headers: Mapping[str, Sequence[str]]) -> Address:
        """Return what a request asks for.

        Args:
            path: Path and query.
            headers: All values of ``origin``, ``host`` and ``authorization``.

        Raises:
            Refusal: The request is not allowed.
        """
        if headers.get("origin"):
            raise Refusal(HTTPStatus.FORBIDDEN, "requests of web pages are refused")
        hosts = headers.get("host", ())
        if len(hosts) != 1 or not is_known_host(hosts[0], self.hosts):
            raise Refusal(
                HTTPStatus.BAD_REQUEST, "unknown host; name it with --allow-host"
            )
        names, _, query = path.partition("?")
        parts = [unquote(part) for part in names.split("/") if part]
        if parts == ["health"]:
            return Address("health")
        parts = self._checked(parts, headers.get("authorization", ()))
        resource = parts.pop() if parts else ""
        if resource not in RESOURCES:
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                f"expected an address that ends in {', '.join(RESOURCES)}",
            )
        if resource == "health" and not parts:
            return Address("health")
        if not parts and len(self.environments) == 1:
            parts = [self.environments[0]]
        if len(parts) != 1 or parts[0] not in self.environments:
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                f"expected one of {', '.join(self.environments)} before /{resource}",
            )
        return Address(resource, parts[0], query)

    def _checked(self, parts: list[str], authorization: Sequence[str]) -> list[str]:
        """Return the parts of a path without the token."""
        given, rest = (
            (authorization[0], parts)
            if authorization
            else (f"Bearer {parts[0]}" if parts else "", parts[1:])
        )
        scheme, _, token = given.partition(" ")
        right = secrets.compare_digest(
            token.strip().encode("utf-8", "replace"), self.token.encode()
        )
        if len(authorization) > 1 or scheme.lower() != "bearer" or not right:
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "expected the token of `hgpo serve`, as Authorization: Bearer TOKEN",
            )
        return rest


def token_from_environment() -> str | None:
    """Return the token in `TOKEN_VARIABLE`, or None.

    Raises:
        InputError: It is too short, or has characters that cannot be part of an address.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token is None:
        return None
    if not re.fullmatch(r"[A-Za-z0-9._~-]{16,256}", token):
        raise InputError(
            f"{TOKEN_VARIABLE}: expected 16 to 256 letters, digits and any of . _ ~ -, received {len(token)} "
            "characters of which some may be others; leave it unset for a token that `hgpo serve` makes"
        )
    return token
