"""Measure what a recorded call costs the processor, beside a forwarded one that is not recorded.

    python integrations/record/benchmarks/gateway.py        about half a minute

`hgpo record` runs in a process of its own, and its program is this file: 64 conversations at the same time, of 20 calls
each, in groups of eight, against a stub server that waits 20 ms. The same bodies are also sent to a path that is only
forwarded, and through `pass_through.py`, the least that aiohttp needs. What is measured is the processor's time of each
process (its threads included) per call, in turns. Result: record_gateway.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.runner import add_keep, store

PASS_THROUGH: Final = Path(__file__).with_name("pass_through.py")
STUB: Final = Path(__file__).parents[1] / "tests" / "stub_server.py"
sys.path.append(str(STUB.parent))

from stub_server import chat_message  # noqa: E402 - a module beside the tests

CONCURRENT: Final = 64
CALLS: Final = 20


def cpu_seconds(process: int) -> float:
    """Return the processor's time that a process has used (Linux)."""
    # the clock of a process, as clock_getcpuclockid returns it
    return time.clock_gettime(~process << 3 | 2)


async def conversation(
    client: aiohttp.ClientSession,
    base: str,
    path: str,
    task: int,
    rollout: str,
    *,
    stream: bool,
) -> None:
    """Play one rollout of a growing conversation."""
    names = {
        "X-HGPO-Task": f"{rollout.rpartition(' ')[0]}, task {task}",
        "X-HGPO-Rollout": rollout,
        "Authorization": "Bearer sk-benchmark",
    }
    messages = [
        {"role": "system", "content": "Find the exit. " * 100},
        {"role": "user", "content": "Room 0."},
    ]
    for room in range(CALLS):
        body = {
            "model": "stub",
            "messages": messages,
            "tools": [{"function": {"name": "look"}}],
            "stream": stream,
        }
        async with client.post(f"{base}/{path}", json=body, headers=names) as answer:
            await answer.read()
        user = {"role": "user", "content": f"You are in room {room}. " * 10}
        messages += [chat_message(body), user]
    if rollout.startswith("recorded"):
        async with client.post(
            f"{base}/reward", json={"reward": task % 2}, headers=names
        ) as answer:
            assert answer.status == 200, await answer.text()


async def load(rounds: int, passing: str, passing_process: int) -> None:
    """Be the program: print the processor's time per call, for each kind of call."""
    recorder = os.environ["OPENAI_BASE_URL"], os.getppid()
    kinds = {
        "pass-through": (passing, passing_process, "chat/completions", False),
        "forwarded": (*recorder, "chat/completions/", False),
        "recorded": (*recorder, "chat/completions", False),
        "forwarded, streamed": (*recorder, "chat/completions/", True),
        "recorded, streamed": (*recorder, "chat/completions", True),
    }
    found = dict.fromkeys(kinds, 0.0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        # The first round opens connections, and is not counted.
        for number in range(rounds + 1):
            for kind, (base, process, path, stream) in kinds.items():
                before = cpu_seconds(process)
                plays = [
                    conversation(
                        client,
                        base,
                        path,
                        task // 8,
                        f"{kind} {number} {task}",
                        stream=stream,
                    )
                    for task in range(CONCURRENT)
                ]
                await asyncio.gather(*plays)
                if number:
                    found[kind] += (
                        1000
                        * (cpu_seconds(process) - before)
                        / (rounds * CONCURRENT * CALLS)
                    )
    print(json.dumps(found))


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often all conversations are played"
    )
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    add_keep(parser)
    given = parser.parse_args()
    if given.load:
        asyncio.run(load(given.rounds, given.load[0], int(given.load[1])))
        return
    stub_command = [sys.executable, str(STUB), "0", "0.02"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(stub_command, stdout=subprocess.PIPE, text=True) as stub,
    ):
        assert stub.stdout is not None
        address = stub.stdout.readline().strip()
        passing = subprocess.Popen(
            [sys.executable, PASS_THROUGH, address], stdout=subprocess.PIPE, text=True
        )
        assert passing.stdout is not None
        passing_address = passing.stdout.readline().strip()
        code = (
            "import sys; from hgpo_train.cli import main; sys.argv[0] = 'hgpo'; main()"
        )
        program = [sys.executable, __file__, "--rounds", str(given.rounds)]
        program += ["--load", passing_address, str(passing.pid)]
        command = [
            sys.executable,
            "-c",
            code,
            "record",
            "--upstream",
            address,
            "--out",
            f"{folder}/run",
            "--",
            *program,
        ]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        passing.terminate()
        stub.terminate()
    figures: dict[str, Any] = {
        "cpu_ms_per_call": json.loads(ran.stdout),
        "concurrent": CONCURRENT,
        "calls": CALLS,
    }
    print(json.dumps(figures["cpu_ms_per_call"], indent=1))
    print(store("record_gateway", figures, keep=given.keep))


if __name__ == "__main__":
    main()
