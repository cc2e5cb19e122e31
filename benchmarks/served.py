"""Measure what a reply of an OpenAI-compatible server costs the client.

    python benchmarks/served.py                   # a minute
    python benchmarks/served.py --processes 8     # up to 8 client processes, on a machine with as many cores

A server in another process answers every request at once, with a completion of a hundred tokens. CPU times are those of
the client's process, threads included; the loops take turns, so that other programs affect all of them alike:

raw asyncio    the bytes of a prepared request, and the end of the answer found by its length: no client library
aiohttp        its session, `orjson` for request and answer, no limits, no retries
policy         `openai:MODEL` as the collector uses it: submit, wait, replies with deadline, size limit and retries
rollout        `hgpo_train.rollout.collect_groups` with it: the environment, its prompts, and rows too

Client processes are measured together: each has its own server process, since one client can saturate one.
Results: benchmarks/results/served.json and served.png.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from itertools import repeat
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson
from record import in_turns, make_parser, print_table, results_folder, store

from hgpo_datasets import StepWriter
from hgpo_envs.engine import State, Task
from hgpo_train.policies.base import Request
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
from hgpo_train.rollout.run import collect_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from multiprocessing.connection import Connection
    from threading import Barrier

    from hgpo_train.policies.server import ServerPolicy

CONCURRENCY: Final = (64, 256)
PROMPT: Final = "You are an expert agent operating in a household. " * 50
ANSWER: Final = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": f"<think>{'I look. ' * 50}</think><action>look</action>"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 700, "completion_tokens": 100, "total_tokens": 800},
    }
).encode()
RESPONSE: Final = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 23 Nov 2026 20:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n" % len(ANSWER)
) + ANSWER


class Answering(asyncio.Protocol):
    """A server's connection, which answers every request with the same bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.received = transport, b""

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
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0, backlog=4096)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def start_server() -> tuple[multiprocessing.process.BaseProcess, int]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there,), daemon=True)
    process.start()
    return process, here.recv()


def make_client(port: int, concurrency: int) -> ServerPolicy:
    options = {"base_url": f"http://127.0.0.1:{port}/v1", "check_model": False, "concurrency": concurrency}
    policy: Any = make_policy("openai:m", PolicyContext("ALFWorld", "response", options))
    return policy


def request(number: int) -> Request:
    state = State("a room", ["look"], True, False, False, 0.0, 0.0, {})
    return Request(number, PROMPT, number, number, 0, Task("t", "train", "do it", "kind"), state, None, str)


async def concurrently(count: int, concurrency: int, ask: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await ask(number)

    await asyncio.gather(*(work() for _ in range(concurrency)))


def body(number: int) -> bytes:
    messages = [{"role": "user", "content": PROMPT}]
    return orjson.dumps({"model": "m", "messages": messages, "seed": number, "max_completion_tokens": 512})


def with_asyncio(port: int, concurrency: int, count: int) -> int:
    """Ask without a client library; return the number of replies."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"

    async def run() -> None:
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(concurrency)]

        async def ask(number: int) -> None:
            reader, writer = connections.pop()
            content = body(number)
            writer.write(head % len(content) + content)
            answer = await reader.readuntil(b"\r\n\r\n")
            size = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            orjson.loads(await reader.readexactly(size))["choices"][0]["message"]["content"]
            connections.append((reader, writer))

        await concurrently(count, concurrency, ask)
        for _, writer in connections:
            writer.close()

    asyncio.run(run())
    return count


def with_aiohttp(port: int, concurrency: int, count: int) -> int:
    """Ask with aiohttp alone; return the number of replies."""

    async def run() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def ask(number: int) -> None:
                async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", data=body(number)) as response:
                    orjson.loads(await response.read())["choices"][0]["message"]["content"]

            await concurrently(count, concurrency, ask)

    asyncio.run(run())
    return count


def with_policy(port: int, concurrency: int, count: int) -> int:
    """Ask the policy as the collector does; return the number of replies."""
    policy = make_client(port, concurrency)
    policy.submit([request(number) for number in range(concurrency)])
    begun, done = concurrency, 0
    while done < count:
        replies = policy.collect(10.0)
        done += len(replies)
        again = min(len(replies), count - begun)
        policy.submit([request(begun + number) for number in range(again)])
        begun += again
    policy.close()
    return done


def with_rollout(port: int, concurrency: int, count: int) -> int:
    """Collect rollouts of ALFWorld; return the number of steps."""
    handle = open_env("HGPO/ALFWorld-v0", action_format="response", max_steps=10)
    policy = make_client(port, concurrency)
    spec = RolloutSpec(tasks=max(1, count // 80), group_size=8, seed=1)
    with tempfile.TemporaryDirectory() as folder, StepWriter(folder) as writer, closing(policy):
        return collect_groups(handle, policy, writer, spec, ExecutionOptions(slots=concurrency)).steps


LOOPS: Final[dict[str, Callable[[int, int, int], int]]] = {
    "raw asyncio": with_asyncio,
    "aiohttp": with_aiohttp,
    "policy": with_policy,
    "rollout": with_rollout,
}


def play(loop: str, port: int, concurrency: int, count: int) -> tuple[float, float]:
    """Return the CPU milliseconds of a reply, and the replies per second."""
    began, wall = time.process_time(), time.perf_counter()
    replies = LOOPS[loop](port, concurrency, count)
    return (time.process_time() - began) / replies * 1e3, replies / (time.perf_counter() - wall)


def cpu_times(rounds: int, count: int) -> list[dict[str, Any]]:
    """Return the CPU milliseconds of a reply by loop and concurrency: the median and the least of several rounds."""
    server, port = start_server()
    rows = []
    for concurrency in CONCURRENCY:
        loops = {name: partial(play, name, port, concurrency, count) for name in LOOPS}
        found = {name: list(zip(*each[1:], strict=True)) for name, each in in_turns(rounds + 1, loops).items()}
        for name, (times, speeds) in found.items():  # without the first, which warms up
            ratios = [mine / other for mine, other in zip(times, found["aiohttp"][0], strict=True)]
            figures = {"cpu_ms": median(times), "least_cpu_ms": min(times), "times_aiohttp": median(ratios)}
            figures |= {"replies_per_cpu_s": 1e3 / min(times), "replies_per_s": max(speeds)}
            rows.append({"loop": name, "concurrency": concurrency, **figures})
    server.terminate()
    return rows


def client(port: int, count: int, start: Barrier) -> tuple[float, float]:
    """Ask `count` times when all clients are ready; return replies per second and per CPU second."""
    with_policy(port, 64, 200)
    start.wait()
    began, wall = time.process_time(), time.perf_counter()
    with_policy(port, 128, count)
    return count / (time.perf_counter() - wall), count / (time.process_time() - began)


def processes(most: int, count: int) -> list[dict[str, Any]]:
    """Return the replies per second of 1, 2, 4, … client processes together."""
    context, rows = multiprocessing.get_context("spawn"), []
    for number in (2**power for power in range(most.bit_length())):
        servers = [start_server() for _ in range(number)]
        with context.Manager() as manager, ProcessPoolExecutor(number, context) as pool:
            ports = [port for _, port in servers]
            speeds = list(pool.map(client, ports, repeat(count), repeat(manager.Barrier(number))))
        here, apart = (sum(each) for each in zip(*speeds, strict=True))
        rows.append({"processes": number, "replies_per_s": here, "replies_per_cpu_s": apart})
        for server, _ in servers:
            server.terminate()
    return rows


def draw(rows: list[dict[str, Any]], scaling: list[dict[str, Any]], path: str) -> None:
    """Draw the replies per CPU second of each loop, and those of several processes."""
    import altair as alt
    import polars as pl

    loops = pl.DataFrame(rows).with_columns(pl.col("concurrency").cast(pl.String))
    points = (
        alt.Chart(loops, title="Replies per CPU second of one client process", width=330, height=150)
        .mark_point(filled=True, size=90)
        .encode(
            x=alt.X("replies_per_cpu_s", title=None).scale(type="log").axis(format=",d", tickCount=6),
            y=alt.Y("loop", sort=list(LOOPS), title=None),
            color=alt.Color("concurrency", title="concurrent", sort=[str(number) for number in CONCURRENCY]),
        )
    )
    target = alt.Chart(pl.DataFrame({"target": [2_000]})).mark_rule(strokeDash=[4, 3]).encode(x="target")
    measured = {"replies_per_cpu_s": "with a core each", "replies_per_s": "on this machine"}
    several = pl.DataFrame(scaling).rename(measured).unpivot(index="processes")
    lines = (
        alt.Chart(several, title="Replies per second of several processes", width=200, height=150)
        .mark_line(point=True)
        .encode(
            x=alt.X("processes:O", title="client processes", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("value", title=None),
            strokeDash=alt.StrokeDash("variable", title=None),
        )
    )
    ((points + target) | lines).save(path, ppi=96)


def main() -> None:
    """Measure, print, draw and store."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replies", type=int, default=4_000, help="replies of a round")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="the most client processes")
    given = parser.parse_args()
    rows = cpu_times(given.rounds, given.replies)
    columns = {"loop": "{loop}", "concurrent": "{concurrency}", "CPU ms a reply": "{cpu_ms:.3f}"}
    columns |= {"least": "{least_cpu_ms:.3f}", "× aiohttp": "{times_aiohttp:.2f}"}
    columns |= {"replies per CPU s": "{replies_per_cpu_s:,.0f}", "replies/s here": "{replies_per_s:,.0f}"}
    print_table(rows, columns)
    scaling = processes(given.processes, given.replies)
    columns = {"client processes": "{processes}", "replies/s here, servers included": "{replies_per_s:,.0f}"}
    print_table(scaling, {**columns, "replies/s with a core each": "{replies_per_cpu_s:,.0f}"})
    print(store("served", {"loops": rows, "processes": scaling}, keep=given.keep))
    draw(rows, scaling, str(results_folder(keep=given.keep) / "served.png"))


if __name__ == "__main__":
    main()
