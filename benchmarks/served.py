"""Measure what a reply of an OpenAI-compatible server costs the client.

    python -m benchmarks served        a minute

A server in another process answers every request at once, with a completion of a hundred tokens. CPU times are those of
the client's process, threads included; the loops take turns, so that other programs affect all of them alike:

aiohttp        its session, `orjson` for request and answer, no limits, no retries
policy         `openai:MODEL` as the collector uses it: submit, wait, replies with deadline, size limit and retries
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson

from benchmarks.runner import Row, least, seconds
from hgpo_envs.engine import State, Task
from hgpo_train.policies.base import Request
from hgpo_train.policies.registry import PolicyContext, make_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

CONCURRENCY: Final = 256
PROMPT: Final = "You are an expert agent operating in a household. " * 50
TEXT: Final = f"<think>{'I look. ' * 50}</think><action>look</action>"
ANSWER: Final = orjson.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 700,
            "completion_tokens": 100,
            "total_tokens": 800,
        },
    }
)
RESPONSE: Final = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 23 Nov 2026 20:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n" % len(ANSWER)
) + ANSWER


class Answering(asyncio.Protocol):
    """A server's connection, which answers every request with the same bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (end := self.received.find(b"\r\n\r\n") + 4) > 3:
            head = self.received[:end].lower()
            if b"content-length:" in head:
                end += int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(self.received) < end:
                return
            self.received = self.received[end:]
            self.transport.write(RESPONSE)


def serve(ready: Connection) -> None:
    """Serve on a free port and send its address."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            Answering, "127.0.0.1", 0, backlog=4096
        )
        port = server.sockets[0].getsockname()[1]
        ready.send(f"http://127.0.0.1:{port}/v1")
        await server.serve_forever()

    asyncio.run(run())


def request(number: int) -> Request:
    task = Task("t", "train", "do it", "kind")
    state = State("a room", ["look"], True, False, False, 0.0, 0.0, {})
    return Request(number, PROMPT, number, number, 0, task, state, None, str)


def body(number: int) -> bytes:
    messages = [{"role": "user", "content": PROMPT}]
    return orjson.dumps(
        {
            "model": "m",
            "messages": messages,
            "seed": number,
            "max_completion_tokens": 512,
        }
    )


async def with_aiohttp(url: str, count: int) -> None:
    """Ask with aiohttp alone."""
    numbers = iter(range(count))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask() -> None:
            for number in numbers:
                async with session.post(
                    f"{url}/chat/completions", data=body(number)
                ) as response:
                    reply = orjson.loads(await response.read())
                    reply["choices"][0]["message"]["content"]

        await asyncio.gather(*(ask() for _ in range(CONCURRENCY)))


def with_policy(url: str, count: int) -> None:
    """Ask the policy as the collector does."""
    options = {"base_url": url, "check_model": False, "concurrency": CONCURRENCY}
    context = PolicyContext("ALFWorld", "response", options)
    policy: Any = make_policy("openai:m", context)
    requests = map(request, range(count))
    policy.submit(list(islice(requests, CONCURRENCY)))
    done = 0
    while done < count:
        replies = policy.collect(10.0)
        done += len(replies)
        policy.submit(list(islice(requests, len(replies))))
    policy.close()


def run(rounds: int = 5, replies: int = 4_000) -> Iterator[Row]:
    """Measure rounds of `replies` replies."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = here.recv()
    loops: dict[str, Callable[[], object]] = {
        "aiohttp": lambda: asyncio.run(with_aiohttp(url, replies)),
        "policy": partial(with_policy, url, replies),
    }
    walls = []

    def played(loop: str) -> float:
        began = time.perf_counter()
        cpu = seconds(loops[loop])
        if loop == "policy":
            walls.append(time.perf_counter() - began)
        return cpu / replies

    cpu = least(rounds, {name: partial(played, name) for name in loops})
    server.terminate()
    yield Row(
        f"Rollouts: CPU of a reply of an OpenAI-compatible server, {CONCURRENCY} at a time",
        cpu["policy"],
        "s",
        floor=("aiohttp alone", cpu["aiohttp"]),
        note=f"{replies / min(walls):,.0f} replies a second",
        shown="readme",
    )
