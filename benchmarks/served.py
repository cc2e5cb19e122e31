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
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson

from benchmarks.runner import Row, in_turns
from hgpo_envs.engine import State, Task
from hgpo_train.policies.base import Request
from hgpo_train.policies.registry import PolicyContext, make_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from multiprocessing.connection import Connection

    from hgpo_train.policies.server import ServerPolicy

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
    """Serve on a free port and send its number."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            Answering, "127.0.0.1", 0, backlog=4096
        )
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def start_server() -> tuple[multiprocessing.process.BaseProcess, int]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there,), daemon=True)
    process.start()
    return process, here.recv()


def make_client(port: int) -> ServerPolicy:
    options = {
        "base_url": f"http://127.0.0.1:{port}/v1",
        "check_model": False,
        "concurrency": CONCURRENCY,
    }
    policy: Any = make_policy(
        "openai:m", PolicyContext("ALFWorld", "response", options)
    )
    return policy


def request(number: int) -> Request:
    state = State("a room", ["look"], True, False, False, 0.0, 0.0, {})
    return Request(
        number,
        PROMPT,
        number,
        number,
        0,
        Task("t", "train", "do it", "kind"),
        state,
        None,
        str,
    )


async def concurrently(
    count: int, ask: Callable[[int], Coroutine[Any, Any, None]]
) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await ask(number)

    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))


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


def with_aiohttp(port: int, count: int) -> int:
    """Ask with aiohttp alone; return the number of replies."""

    async def run() -> None:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0)
        ) as session:

            async def ask(number: int) -> None:
                async with session.post(
                    f"http://127.0.0.1:{port}/v1/chat/completions",
                    data=body(number),
                ) as response:
                    orjson.loads(await response.read())["choices"][0]["message"][
                        "content"
                    ]

            await concurrently(count, ask)

    asyncio.run(run())
    return count


def with_policy(port: int, count: int) -> int:
    """Ask the policy as the collector does; return the number of replies."""
    policy = make_client(port)
    policy.submit([request(number) for number in range(CONCURRENCY)])
    begun = CONCURRENCY
    done = 0
    while done < count:
        replies = policy.collect(10.0)
        done += len(replies)
        again = min(len(replies), count - begun)
        policy.submit([request(begun + number) for number in range(again)])
        begun += again
    policy.close()
    return done


LOOPS: Final[dict[str, Callable[[int, int], int]]] = {
    "aiohttp": with_aiohttp,
    "policy": with_policy,
}


def play(loop: str, port: int, count: int) -> tuple[float, float]:
    """Return the CPU seconds and the wall seconds of a reply."""
    began = time.process_time()
    wall = time.perf_counter()
    replies = LOOPS[loop](port, count)
    return (time.process_time() - began) / replies, (
        time.perf_counter() - wall
    ) / replies


def run(rounds: int = 5, replies: int = 4_000) -> Iterator[Row]:
    """Measure rounds of `replies` replies."""
    server, port = start_server()
    found = in_turns(
        rounds + 1, {name: partial(play, name, port, replies) for name in LOOPS}
    )
    server.terminate()
    # The first round warms up. Of the others, the least counts.
    times = {
        name: [min(values) for values in zip(*each[1:], strict=True)]
        for name, each in found.items()
    }
    cpu, wall = times["policy"]
    yield Row(
        f"Rollouts: CPU of a reply of an OpenAI-compatible server, {CONCURRENCY} at a time",
        cpu,
        "s",
        floor=("aiohttp alone", times["aiohttp"][0]),
        note=f"{1 / wall:,.0f} replies a second",
        shown="readme",
    )
