"""The gateway: forwards requests and answers unchanged, and reads what passes.

    /v1/…                     the server's address, with the paths below it
    /v1/t/TASK/r/ROLLOUT/…    the same, for a rollout of a task; X-HGPO-Task and X-HGPO-Rollout name them in headers
    /reward, /v1/…/reward     a reward; not forwarded

A call is recorded before the program has the end of its answer, so that a reward can follow at once. Keys are headers,
which are forwarded and not read.
"""

from __future__ import annotations

import asyncio
import io
import re
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import aiohttp
import msgspec
import orjson
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.secrets import register
from hgpo_record.recording.calls import PROMPTS, with_token_ids
from hgpo_record.recording.rollouts import Call, RefusedError, Reward
from hgpo_record.recording.streams import EVENTS, is_whole, may_end
from hgpo_train.local_server import is_known_host, known_hosts
from hgpo_train.policies.http_client import LARGEST_ANSWER, environment_proxy

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

    from hgpo_record.recording.rollouts import Recording

_PATH: Final = re.compile(
    r"/v1(?:/t/(?P<task>[^/]*))?(?:/r/(?P<rollout>[^/]*))?(?:/(?P<rest>.*))?"
)
_HOP: Final = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
"""The headers of one connection, which are not forwarded (RFC 9110, 7.6.1)."""
_OWN: Final = _HOP | {
    "host",
    "content-length",
    "accept-encoding",
    "expect",
    "x-hgpo-task",
    "x-hgpo-rollout",
}
_AUTOMATIC: Final = ("User-Agent", "Accept", "Content-Type")
_LARGE: Final = 1 << 20
_CONNECT_S: Final = 30.0
_REWARD: Final = msgspec.json.Decoder(Reward)


class Gateway:
    """A gateway to one server.

    Args:
        upstream: The server's address up to /v1.
        recording: Takes the calls.
        most_body: The largest request, in bytes.
        token_ids: Whether requests ask for token ids and log-probabilities, the only change of a request.
    """

    def __init__(
        self, upstream: URL, recording: Recording, *, most_body: int, token_ids: bool
    ) -> None:
        self._upstream = upstream
        self._recording = recording
        self._most_body = most_body
        self._token_ids = token_ids
        self._hosts = known_hosts(["localhost"])
        self._keys: set[str] = set()
        self._session: aiohttp.ClientSession

    @asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serve at a bound socket while the block runs. Calls that are open at its end are cancelled."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            proxy=environment_proxy(self._upstream),
        ) as self._session:
            # A call that the program does not wait for is not paid for either.
            runner = web.ServerRunner(
                web.Server(self._answer, handler_cancellation=True, access_log=None),
                shutdown_timeout=0.5,
            )
            await runner.setup()
            await web.SockSite(runner, listener).start()
            try:
                yield
            finally:
                await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._route(request)
        except RefusedError as error:
            body = {
                "error": {
                    "message": f"hgpo record: {error}",
                    "type": "hgpo_record",
                    "code": error.status,
                }
            }
            return web.Response(
                status=error.status,
                body=orjson.dumps(body),
                content_type="application/json",
            )

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = request.headers
        # Pages in a browser must not spend the user's key.
        if "Origin" in headers:
            raise RefusedError(403, "requests of web pages are refused")
        if not is_known_host(headers.get("Host", ""), self._hosts):
            raise RefusedError(400, "unknown host")
        body = await self._body(request)
        path = request.rel_url.raw_path
        match = _PATH.fullmatch("/v1/reward" if path == "/reward" else path)
        if match is None:
            return await self._pass_on(request, path, body)
        rest = match["rest"] or ""
        task = _named(match["task"], headers.get("X-HGPO-Task"))
        name = _named(match["rollout"], headers.get("X-HGPO-Rollout"))
        is_post = request.method == "POST"
        if rest == "reward" and is_post:
            return await self._reward(task, name, body)
        path = f"{self._upstream.raw_path.rstrip('/')}/{rest}"
        if rest not in PROMPTS or not is_post:
            return await self._pass_on(request, path, body)
        self._register_key(headers.get("Authorization", "").partition(" ")[2])
        call = Call(self._recording.rollout(task, name), rest, body)
        is_changed = self._token_ids and rest == "chat/completions"
        return await self._forward(
            request, path, with_token_ids(body) if is_changed else body, call
        )

    async def _body(self, request: web.BaseRequest) -> bytes:
        # Nearly every request has arrived whole, and is one part.
        parts = [await request.content.readany()]
        size = len(parts[0])
        while size <= self._most_body and not request.content.at_eof():
            parts.append(await request.content.readany())
            size += len(parts[-1])
        if size > self._most_body:
            raise RefusedError(
                413, f"expected at most {self._most_body:,} bytes; raise --max-body-mb"
            )
        return b"".join(parts)

    def _register_key(self, key: str) -> None:
        """Keep a key out of messages: servers repeat it in errors and replies."""
        if key not in self._keys:
            self._keys.add(key)
            register(key)

    async def _reward(
        self, task: str | None, name: str | None, body: bytes
    ) -> web.StreamResponse:
        try:
            reward = _REWARD.decode(body)
            rollout = self._recording.reward(reward, task, name)
        except (msgspec.DecodeError, InputError) as error:
            fields = ", ".join(Reward.__struct_fields__)
            raise RefusedError(
                400, f"expected a JSON object with {fields}: {error}"
            ) from None
        if reward.done:
            # Shielded: a program that does not wait loses nothing.
            await asyncio.shield(self._recording.end(rollout))
        answer = {
            "trajectory": rollout.trajectory,
            "steps": len(rollout.rows),
            "committed": reward.done,
        }
        return web.Response(body=orjson.dumps(answer), content_type="application/json")

    async def _pass_on(
        self, request: web.BaseRequest, path: str, body: bytes
    ) -> web.StreamResponse:
        """Forward a request that is no recorded call."""
        self._recording.passed[f"{request.method} {request.rel_url.raw_path}"] += 1
        return await self._forward(
            request, path, body, Call(None, "", body, settled=True)
        )

    async def _forward(
        self,
        request: web.BaseRequest,
        path: str,
        body: bytes,
        call: Call,
    ) -> web.StreamResponse:
        queries = [self._upstream.raw_query_string, request.rel_url.raw_query_string]
        query = "&".join(filter(None, queries))
        address = f"{self._upstream.origin()}{path}{'?' if query else ''}{query}"
        headers = _forwarded(request.headers, _OWN)
        headers["Accept-Encoding"] = "identity"  # the answer is read here, too
        missing = [name for name in _AUTOMATIC if name not in headers]
        data: Any = io.BytesIO(body) if len(body) > _LARGE else body or None
        try:
            async with self._session.request(
                request.method,
                URL(address, encoded=True),
                data=data,
                headers=headers,
                skip_auto_headers=missing or None,
                allow_redirects=False,
            ) as upstream:
                if not 200 <= upstream.status < 300:
                    self._failed(call, f"HTTP {upstream.status}")
                encoding = upstream.headers.get("Content-Encoding", "identity")
                if encoding != "identity":
                    self._lost(call, f"the server compressed an answer ({encoding})")
                length = upstream.content_length
                is_short = length is not None and length <= LARGEST_ANSWER
                if (
                    is_short
                    and upstream.content_type != EVENTS
                    and request.method != "HEAD"
                ):
                    return await self._whole(upstream, call)
                return await self._streamed(request, upstream, call)
        except (aiohttp.ClientError, OSError) as error:
            self._failed(call, f"no answer ({type(error).__name__})")
            raise RefusedError(
                502, f"the server did not answer: {one_line(error, 200)}"
            ) from None
        except asyncio.CancelledError:
            self._failed(call, "left by the program")
            raise

    async def _whole(
        self, upstream: aiohttp.ClientResponse, call: Call
    ) -> web.StreamResponse:
        answer = await upstream.read()
        self._record(call, answer, streamed=False)
        return web.Response(
            status=upstream.status,
            reason=upstream.reason,
            body=answer,
            headers=_forwarded(upstream.headers, _HOP | {"content-length"}),
        )

    async def _streamed(
        self,
        request: web.BaseRequest,
        upstream: aiohttp.ClientResponse,
        call: Call,
    ) -> web.StreamResponse:
        """Forward an answer as it comes. A call is recorded before its last part is sent."""
        headers = _forwarded(upstream.headers, _HOP)
        response = web.StreamResponse(
            status=upstream.status, reason=upstream.reason, headers=headers
        )
        await response.prepare(request)
        is_events = upstream.content_type == EVENTS
        stream = bytearray()
        try:
            while chunk := await upstream.content.readany():
                if not call.settled:
                    stream += chunk
                    if is_events and may_end(call.interface, stream, len(chunk)):
                        self._record(call, stream, streamed=True)
                    if len(stream) > LARGEST_ANSWER:
                        self._lost(
                            call, f"an answer is larger than {LARGEST_ANSWER >> 20} MB"
                        )
                await response.write(chunk)
            self._record(call, stream, streamed=is_events)
            self._failed(call, "connection lost")
            await response.write_eof()
        except (aiohttp.ClientError, OSError, asyncio.CancelledError) as error:
            # A program may leave as soon as it has the last token.
            if is_events:
                self._record(call, stream, streamed=True)
            is_left = isinstance(error, ConnectionResetError | asyncio.CancelledError)
            self._failed(call, "left by the program" if is_left else "connection lost")
            # The program sees what the server did: an answer without its end.
            if request.transport is not None:
                request.transport.abort()
            if isinstance(error, asyncio.CancelledError):
                raise
        return response

    def _record(self, call: Call, answer: bytes | bytearray, *, streamed: bool) -> None:
        """Record an answer if it is complete. Whatever it is, the program gets it."""
        if call.settled or call.rollout is None:
            return
        call.seconds = monotonic() - call.began
        call.answer = bytes(answer)
        call.streamed = streamed
        if not streamed or is_whole(call.interface, call.answer):
            call.settled = True
            self._recording.add(call.rollout, call)

    def _failed(self, call: Call, reason: str) -> None:
        """Count a call that has no answer, which is no step."""
        if not call.settled:
            call.settled = True
            self._recording.failed[reason] += 1

    def _lost(self, call: Call, reason: str) -> None:
        """Note that a rollout lacks a call that the server answered."""
        if not call.settled and call.rollout is not None:
            call.settled = True
            call.rollout.problem = reason


def _named(part: str | None, header: str | None) -> str | None:
    """Return a name in an address, or else in a header."""
    return header if part is None else unquote(part)


def _forwarded(headers: Any, without: frozenset[str]) -> CIMultiDict[str]:  # noqa: ANN401 - a mapping of aiohttp
    """Return headers without those of the connection, and those that it names."""
    kept = CIMultiDict(headers)
    named = headers.get("Connection", "").split(",")
    for name in (*without, *named):
        kept.popall(name.strip(), None)
    return kept
