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

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson
from record import add_keep, results_folder, store
from rich.console import Console
from rich.table import Table

from hgpo_datasets import StepWriter
from hgpo_envs.engine import State, Task
from hgpo_train.policies.base import Request
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, collect_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from multiprocessing.connection import Connection

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
                "message": {
                    "role": "assistant",
                    "content": "<think>" + "I look. " * 50 + "</think><action>look</action>",
                },
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


def served_policy(port: int, concurrency: int) -> ServerPolicy:
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
    policy = served_policy(port, concurrency)
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
    policy = served_policy(port, concurrency)
    spec = RolloutSpec(tasks=max(1, count // 80), group_size=8, seed=1)
    with tempfile.TemporaryDirectory() as folder, StepWriter(folder) as writer, closing(policy):
        return collect_groups(handle, policy, writer, spec, ExecutionOptions(slots=concurrency)).steps


LOOPS: Final[dict[str, Callable[[int, int, int], int]]] = {
    "raw asyncio": with_asyncio,
    "aiohttp": with_aiohttp,
    "policy": with_policy,
    "rollout": with_rollout,
}


def cpu_times(rounds: int, count: int) -> list[dict[str, Any]]:
    """Return the CPU milliseconds of a reply by loop and concurrency: the median and the least of several rounds."""
    server, port = start_server()
    rows = []
    for concurrency in CONCURRENCY:
        times: dict[str, list[float]] = {name: [] for name in LOOPS}
        walls: dict[str, list[float]] = {name: [] for name in LOOPS}
        for number in range(rounds + 1):  # the first warms up
            for name, loop in LOOPS.items():
                began, wall = time.process_time(), time.perf_counter()
                replies = loop(port, concurrency, count)
                if number:
                    times[name].append((time.process_time() - began) / replies * 1e3)
                    walls[name].append(replies / (time.perf_counter() - wall))
        for name, found in times.items():
            ratios = [mine / other for mine, other in zip(found, times["aiohttp"], strict=True)]
            rows.append(
                {
                    "loop": name,
                    "concurrency": concurrency,
                    "cpu_ms": median(found),
                    "least_cpu_ms": min(found),
                    "times_aiohttp": median(ratios),
                    "replies_per_cpu_s": 1e3 / min(found),
                    "replies_per_s": max(walls[name]),
                }
            )
    server.terminate()
    return rows


def client(port: int, count: int, ready: Any, go: Any, done: Connection) -> None:  # noqa: ANN401 (events of a context)
    """Ask `count` times when all clients are ready, and send the CPU seconds and the seconds that it took."""
    with_policy(port, 64, 200)
    ready.release()
    go.wait()
    began, wall = time.process_time(), time.perf_counter()
    with_policy(port, 128, count)
    done.send((time.process_time() - began, time.perf_counter() - wall))


def processes(most: int, count: int) -> list[dict[str, Any]]:
    """Return the replies per second of 1, 2, 4, … client processes together."""
    context, rows = multiprocessing.get_context("spawn"), []
    number = 1
    while number <= most:
        servers = [start_server() for _ in range(number)]
        ready, go = context.Semaphore(0), context.Event()
        pipes = [context.Pipe() for _ in servers]
        clients = [
            context.Process(target=client, args=(port, count, ready, go, there), daemon=True)
            for (_, port), (_, there) in zip(servers, pipes, strict=True)
        ]
        for process in clients:
            process.start()
        for _ in clients:
            ready.acquire()
        go.set()
        measured = [here.recv() for here, _ in pipes]
        rows.append(
            {
                "processes": number,
                "replies_per_s": sum(count / seconds for _, seconds in measured),
                "replies_per_cpu_s": sum(count / cpu for cpu, _ in measured),
            }
        )
        for process in (*clients, *(server for server, _ in servers)):
            process.terminate()
        number *= 2
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
            x=alt.X(
                "replies_per_cpu_s", title=None, scale=alt.Scale(type="log"), axis=alt.Axis(format=",d", tickCount=6)
            ),
            y=alt.Y("loop", sort=list(LOOPS), title=None),
            color=alt.Color("concurrency", title="concurrent", sort=[str(number) for number in CONCURRENCY]),
        )
    )
    target = alt.Chart(pl.DataFrame({"target": [2_000]})).mark_rule(strokeDash=[4, 3]).encode(x="target")
    measured = {"replies_per_cpu_s": "with a core each", "replies_per_s": "on this machine"}
    lines = (
        alt.Chart(
            pl.DataFrame(scaling).rename(measured).unpivot(index="processes"),
            title="Replies per second of several processes",
            width=200,
            height=150,
        )
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replies", type=int, default=4_000, help="replies of a round")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="the most client processes")
    add_keep(parser)
    given = parser.parse_args()
    console, rows = Console(), cpu_times(given.rounds, given.replies)
    table = Table("loop", "concurrent", "CPU ms a reply", "least", "× aiohttp", "replies per CPU s", "replies/s here")
    for row in rows:
        table.add_row(
            row["loop"],
            str(row["concurrency"]),
            f"{row['cpu_ms']:.3f}",
            f"{row['least_cpu_ms']:.3f}",
            f"{row['times_aiohttp']:.2f}",
            f"{row['replies_per_cpu_s']:,.0f}",
            f"{row['replies_per_s']:,.0f}",
        )
    console.print(table)
    scaling = processes(given.processes, given.replies)
    table = Table("client processes", "replies/s here, servers included", "replies/s with a core each")
    for row in scaling:
        table.add_row(str(row["processes"]), f"{row['replies_per_s']:,.0f}", f"{row['replies_per_cpu_s']:,.0f}")
    console.print(table)
    console.print(store("served", {"loops": rows, "processes": scaling}, keep=given.keep))
    draw(rows, scaling, str(results_folder(keep=given.keep) / "served.png"))


if __name__ == "__main__":
    main()
