"""Compare served environments with local ones: the same bytes, and what a session and a step cost over the network.

    python integrations/openenv/benchmarks/serve.py        about two minutes

`hgpo serve` runs in a process of its own, the clients in this one. 256 sessions play random episodes at the same time,
first as fast as they can, then with a pause before each step, as a language model makes. The same episodes are then
played in this process. Digests of all observations, rewards and infos must be equal. The processor's time per step of
server and local environment is what other programs on the machine change least. Results: benchmarks/results/serve.json.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np
import orjson
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import connect

import hgpo_envs  # noqa: F401 - registers the environments
from benchmarks.runner import add_keep, store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from websockets.asyncio.client import ClientConnection

ENVIRONMENTS: Final = {"ALFWorld": "HGPO/ALFWorld-v0", "WebShop": "HGPO/WebShop-v0"}
QUERY: Final = "search[<your query>]"


class Play:
    """One episode of random actions, the same for the same seed, and the digest of everything that was observed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._digest = hashlib.blake2b(digest_size=16)

    def action(self, info: dict[str, Any]) -> str:
        """Draw an admissible action."""
        actions = info["admissible_actions"]
        action = actions[self._draw.randrange(len(actions))] if actions else "look"
        words = info["task"].split()
        return (
            f"search[{' '.join(self._draw.sample(words, min(3, len(words))))}]"
            if action == QUERY
            else action
        )

    def observe(
        self,
        observation: dict[str, Any],
        reward: float,
        done: tuple[bool, bool],
        info: dict[str, Any],
    ) -> None:
        """Add what one step returned, as bytes that do not depend on the order of keys."""
        shown = {
            **observation,
            "history_hash": np.asarray(observation["history_hash"], np.int64).tolist(),
        }
        self._digest.update(
            orjson.dumps([shown, reward, done, info], option=orjson.OPT_SORT_KEYS)
        )

    def digest(self) -> str:
        """Return the digest."""
        return self._digest.hexdigest()


def play_locally(
    env_id: str, tasks: list[str], seeds: range, steps: int
) -> tuple[list[str], int, float]:
    """Play one episode per seed in this process: digests, number of steps, seconds."""
    env = gym.make(env_id)
    digests = []
    taken = 0
    env.reset(options={"task": tasks[0]})
    start = time.perf_counter()
    for seed in seeds:
        play = Play(seed)
        observation, info = env.reset(options={"task": tasks[seed % len(tasks)]})
        play.observe(observation, 0.0, (False, False), info)
        for _ in range(steps):
            observation, reward, terminated, truncated, info = env.step(
                play.action(info)
            )
            play.observe(observation, float(reward), (terminated, truncated), info)
            taken += 1
            if terminated or truncated:
                break
        digests.append(play.digest())
    return digests, taken, time.perf_counter() - start


async def ask(connection: ClientConnection, message: dict[str, Any]) -> dict[str, Any]:
    """Send a message and return the data of the answer."""
    await connection.send(orjson.dumps(message), text=True)
    answer = orjson.loads(await connection.recv(decode=False))
    assert answer["type"] == "observation", answer
    data: dict[str, Any] = answer["data"]
    return data


async def play_served(
    url: str,
    task: str,
    seed: int,
    steps: int,
    pause: float,
    waits: list[float],
    ready: asyncio.Barrier,
) -> tuple[str, int]:
    """Play one episode in a session: digest and number of steps. The waits for steps are added to `waits`."""
    play = Play(seed)
    async with connect(
        url, compression=None, ping_interval=None, max_size=None, open_timeout=60
    ) as connection:
        await ready.wait()
        data = await ask(connection, {"type": "reset", "data": {"task": task}})
        taken = 0
        for step in range(steps + 1):
            seen = data["observation"]
            observation = {
                name: seen[name] for name in ("state", "prompt", "history_hash")
            }
            play.observe(
                observation,
                data["reward"] or 0.0,
                (seen["terminated"], seen["truncated"]),
                seen["info"],
            )
            if data["done"] or step == steps:
                break
            action = play.action(seen["info"])
            if pause:
                await asyncio.sleep(random.uniform(0, 2 * pause))
            start = time.perf_counter()
            data = await ask(connection, {"type": "step", "data": {"action": action}})
            waits.append(time.perf_counter() - start)
            taken += 1
    return play.digest(), taken


async def play_all(
    url: str, tasks: list[str], seeds: range, steps: int, pause: float
) -> dict[str, Any]:
    """Play one episode per seed, all at the same time."""
    waits: list[float] = []
    ready = asyncio.Barrier(len(seeds) + 1)
    began = time.perf_counter()
    games = [
        asyncio.create_task(
            play_served(url, tasks[seed % len(tasks)], seed, steps, pause, waits, ready)
        )
        for seed in seeds
    ]
    await ready.wait()
    start = time.perf_counter()
    played = await asyncio.gather(*games)
    seconds = time.perf_counter() - start
    return {
        "digests": [digest for digest, _ in played],
        "connect_per_s": len(seeds) / (start - began),
        "steps": sum(taken for _, taken in played),
        "steps_per_s": sum(taken for _, taken in played) / seconds,
        "p50_ms": 1000 * float(np.percentile(waits, 50)),
        "p95_ms": 1000 * float(np.percentile(waits, 95)),
    }


async def short_sessions(url: str, tasks: list[str], count: int, at_once: int) -> float:
    """Return the sessions per second that connect, reset, take one step and close."""
    turns = asyncio.Semaphore(at_once)

    async def session(number: int) -> None:
        async with (
            turns,
            connect(
                url, compression=None, ping_interval=None, open_timeout=60
            ) as connection,
        ):
            await ask(
                connection,
                {"type": "reset", "data": {"task": tasks[number % len(tasks)]}},
            )
            await ask(connection, {"type": "step", "data": {"action": "look"}})

    start = time.perf_counter()
    await asyncio.gather(*map(session, range(count)))
    return count / (time.perf_counter() - start)


async def memory_per_session(
    url: str, tasks: list[str], count: int, process: int
) -> float:
    """Return the kilobytes that each of `count` open sessions takes in the server's process."""
    before = resident_kb(process)
    connections = []
    for number in range(count):
        connection = await connect(
            url, compression=None, ping_interval=None, open_timeout=60
        )
        connections.append(connection)
        data = await ask(
            connection, {"type": "reset", "data": {"task": tasks[number % len(tasks)]}}
        )
        play = Play(number)
        for _ in range(3):
            action = play.action(data["observation"]["info"])
            data = await ask(connection, {"type": "step", "data": {"action": action}})
            if data["done"]:
                break
    taken = (resident_kb(process) - before) / count
    await asyncio.gather(*[connection.close() for connection in connections])
    return taken


def resident_kb(process: int) -> int:
    """Return the resident memory of a process, in KiB (Linux)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def cpu_seconds(process: int) -> float:
    """Return the processor's time that a process has used (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """Run `hgpo serve`: its address, with the token, and its process."""
    code = "import sys; from hgpo_train.cli import main; sys.argv[0] = 'hgpo'; main()"
    named = [word for env_id in ENVIRONMENTS.values() for word in ("--env", env_id)]
    environment = {
        name: value for name, value in os.environ.items() if name != "HGPO_SERVE_TOKEN"
    }
    command = [
        sys.executable,
        "-u",
        "-c",
        code,
        "serve",
        *named,
        "--max-sessions",
        "5000",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[-1], process.pid
        finally:
            process.terminate()


def measure(
    address: str, process: int, name: str, given: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of one environment."""
    url = f"{address.replace('http', 'ws', 1)}/{name}/ws"
    tasks = [
        gym.make(ENVIRONMENTS[name]).unwrapped.tasks[number] for number in range(64)
    ]  # type: ignore[attr-defined]
    seeds = range(given.sessions)
    asyncio.run(play_all(url, tasks, seeds, 2, 0.0))  # opens what is opened once
    before = cpu_seconds(process)
    fast = asyncio.run(play_all(url, tasks, seeds, given.steps, 0.0))
    server_cpu = cpu_seconds(process) - before
    paced = asyncio.run(play_all(url, tasks, seeds, min(given.steps, 15), given.pause))
    opened = asyncio.run(short_sessions(url, tasks, 4 * given.sessions, given.sessions))
    memory = asyncio.run(memory_per_session(url, tasks, given.open, process))
    before = time.process_time()
    digests, steps, seconds = play_locally(
        ENVIRONMENTS[name], tasks, seeds, given.steps
    )
    local_cpu = time.process_time() - before
    same = digests == fast.pop("digests")
    assert same, "the served episodes differ from the local ones"
    paced.pop("digests")
    return {
        "sessions": given.sessions,
        "same_bytes": same,
        "as_fast_as_possible": fast,
        "paced": {"mean_pause_s": given.pause, **paced},
        "short_sessions_per_s": opened,
        "memory_kb_per_session": memory,
        "open_sessions": given.open,
        "local_steps_per_s": steps / seconds,
        "server_cpu_us_per_step": 1e6 * server_cpu / fast["steps"],
        "local_cpu_us_per_step": 1e6 * local_cpu / steps,
        "served_to_local": fast["steps_per_s"] / (steps / seconds),
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--sessions", type=int, default=256, help="sessions that play at the same time"
    )
    parser.add_argument(
        "--steps", type=int, default=50, help="the most steps of an episode"
    )
    parser.add_argument(
        "--pause", type=float, default=0.5, help="mean pause before a step, in seconds"
    )
    parser.add_argument(
        "--open",
        type=int,
        default=2000,
        help="sessions that are open when memory is measured",
    )
    add_keep(parser)
    given = parser.parse_args()
    with server() as (address, process):
        figures = {
            name: measure(address, process, name, given) for name in ENVIRONMENTS
        }
    table = Table(
        "",
        "steps/s",
        "p50, p95",
        "paced p50, p95",
        "short sessions/s",
        "KB a session",
        "local steps/s",
        "server, local CPU",
    )
    for name, found in figures.items():
        fast = found["as_fast_as_possible"]
        paced = found["paced"]
        table.add_row(
            name,
            f"{fast['steps_per_s']:,.0f}",
            f"{fast['p50_ms']:.1f}, {fast['p95_ms']:.1f} ms",
            f"{paced['p50_ms']:.1f}, {paced['p95_ms']:.1f} ms",
            f"{found['short_sessions_per_s']:,.0f}",
            f"{found['memory_kb_per_session']:.0f}",
            f"{found['local_steps_per_s']:,.0f}",
            f"{found['server_cpu_us_per_step']:.0f}, {found['local_cpu_us_per_step']:.0f} µs",
        )
    Console().print(table)
    print(store("serve", figures, keep=given.keep))


if __name__ == "__main__":
    main()
