"""HTTP requests with retries, a deadline for every attempt, and a limit on the size of every answer.

A server may send its answer byte by byte, never stop sending, break connections, or ask for patience (`Retry-After`).
Proxies and certificates are those of the environment: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE,
SSL_CERT_DIR. A redirect is an error that names the new address, so credentials are sent to no other server.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.request import getproxies, proxy_bypass

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.secrets import redact, register_url
from hgpo_train.policies.server_errors import ServerError, read_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import aiohttp
    from yarl import URL

T = TypeVar("T")

LARGEST_ANSWER: Final = 64 << 20
"""The largest answer, in bytes: that of a long prompt and response with the log-probabilities of alternatives."""

LONGEST_PAUSE_S: Final = 60.0
"""The longest pause between two attempts, whatever the server asks for."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 - an address to connect to
"""The names of this machine: no key is needed, and no proxy is used."""

# uvicorn closes idle connections after 5 s: a request sent at that moment would be lost
_KEEP_ALIVE_S: Final = 4.0


class RequestError(Exception):
    """A request without a usable answer, described in one line of at most 300 characters, without secrets.

    Attributes:
        status: The HTTP status; None if there was no complete answer.
        transient: Whether another attempt may succeed.
        retry_after: The header `Retry-After`.
        reported: What the server reports; None if there was no complete answer.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        *,
        transient: bool = False,
        retry_after: str | None = None,
        reported: ServerError | None = None,
    ) -> None:
        # in this order: half a secret would not be found
        super().__init__(one_line(redact(message), 300))
        self.status = status
        self.transient = transient
        self.retry_after = retry_after
        self.reported = reported


class HttpClient:
    """A client of one server. Its coroutines run in one event loop.

    Args:
        headers: Headers of all requests.
        timeout_s: Maximum seconds from sending a request to the last byte of its answer.
        retries: How often a request is sent again after a transient error: a timeout, a broken connection, a rate
            limit, or another status that stands for a temporary condition.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        retries: int,
    ) -> None:
        self._headers = headers
        self._timeout_s = timeout_s
        self._retries = retries
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        url: URL,
        read: Callable[[bytes], T],
        body: bytes | None = None,
    ) -> T:
        """Return what `read` makes of the body of the answer.

        Args:
            method: The HTTP method.
            url: The address.
            read: Reads the body. It raises `RequestError` if the server reports an error with a status of success.
            body: The body of the request.

        Raises:
            RequestError: There is no answer with a status of success, it is too large, or it reports an error.
        """
        # `read` is part of the attempt: an error that arrives with a status of success is tried again like any other.
        attempt = 0
        while True:
            try:
                return read(await self._send(method, url, body))
            except RequestError as error:
                if not error.transient or attempt == self._retries:
                    raise
                pause = pause_s(attempt, error.retry_after)
            await asyncio.sleep(pause)
            attempt += 1

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _send(self, method: str, url: URL, body: bytes | None) -> bytes:
        import aiohttp

        # a session belongs to the event loop in which it is created
        if self._session is None:
            self._session = self._open(environment_proxy(url))
        try:
            async with self._session.request(
                method, url, data=body, allow_redirects=False
            ) as response:
                answer = await _read(response)
        except TimeoutError:
            message = f"timed out: no complete answer within {self._timeout_s:g} s"
            raise RequestError(message, transient=True) from None
        except (aiohttp.ClientError, OSError) as error:
            # A certificate or an address that is wrong stays wrong.
            transient = not isinstance(
                error, aiohttp.ClientSSLError | aiohttp.InvalidURL
            )
            message = f"the connection failed: {type(error).__name__}: {error}"
            raise RequestError(message, transient=transient) from None

        status = response.status
        if 200 <= status < 300:
            return answer
        if 300 <= status < 400 and "Location" in response.headers:
            address = response.headers["Location"]
            raise RequestError(
                f"HTTP {status}: redirected to {address}; use that address", status
            )
        reported = read_error(answer, status)
        raise RequestError(
            f"HTTP {status}: {reported.message or response.reason}",
            status,
            transient=reported.transient,
            retry_after=response.headers.get("Retry-After"),
            reported=reported,
        )

    def _open(self, proxy: str | None) -> aiohttp.ClientSession:
        import aiohttp

        return aiohttp.ClientSession(
            headers={**self._headers, "Accept-Encoding": "identity"},
            # The number of concurrent requests is limited by those who send them.
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=_KEEP_ALIVE_S,
                ssl=ssl.create_default_context(),
            ),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a small compressed answer could expand to any size
            # `trust_env` looks it up for every request, in a thread: twice the CPU time
            proxy=proxy,
        )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    # The header Content-Length may be missing or wrong: what arrives is counted.
    answer = bytearray()
    async for part in response.content.iter_any():
        answer += part
        if len(answer) > LARGEST_ANSWER:
            raise RequestError(f"the answer is larger than {LARGEST_ANSWER >> 20} MB")
    return bytes(answer)


def pause_s(attempt: int, retry_after: str | None) -> float:
    """Return the seconds to wait after a failed attempt.

    That is what the server asks for, if it is more than 0; otherwise 0.5, 1, 2, 4, 8, 8, … seconds. A random quarter
    separates requests that failed together.

    Args:
        attempt: The number of attempts before the failed one.
        retry_after: The header `Retry-After`: seconds, or a date.
    """
    jitter = random.random() / 4
    # A header that cannot be read asks for nothing.
    requested = 0.0
    if retry_after is not None:
        with suppress(ValueError, OverflowError):
            date = parsedate_to_datetime(retry_after)
            if date.tzinfo is None:  # a form of RFC 9110 without a zone, or with -0000
                date = date.replace(tzinfo=UTC)
            requested = date.timestamp() - time.time()
        with suppress(ValueError):
            requested = float(retry_after)
    if requested > 0:
        return min(requested * (1 + jitter), LONGEST_PAUSE_S)
    # A date in the past is that of a clock that differs: without a pause, all attempts would be used up at once.
    return min(0.5 * 2.0**attempt, 8.0) * (1 - jitter)


def environment_proxy(url: URL) -> str | None:
    """Return the proxy of the environment for an address; None if there is none.

    Raises:
        InputError: It is no HTTP proxy.
    """
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    # A proxy on another machine cannot reach this one. Entries of NO_PROXY can have a port.
    if (
        not proxy
        or url.host in LOCAL_HOSTS
        or proxy_bypass(url.host_port_subcomponent or "")
    ):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    register_url(proxy)
    if not proxy.startswith(("http://", "https://")):
        raise InputError(
            f"expected an HTTP proxy in the environment, received {redact(proxy)}"
        )
    return proxy
