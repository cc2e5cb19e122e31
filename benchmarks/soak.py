"""Soak test of rollouts: a server with random faults, and worker processes that are killed.

    python benchmarks/soak.py                        # 64 environments, 30 minutes
    python benchmarks/soak.py --minutes 10 --slots 64 --kill-every 3

A local server in its own process answers most requests, and sends one of `FAULTS` to the others. Each environment has
its own process; every few seconds one of them is killed or stopped permanently. Throughput, memory, threads and open
files are recorded. At the end the run is verified and searched for the key, which the server repeats.

Exits with 1 if the run is damaged, a rollout is lost, the key is found, there is no progress for a minute, or memory or
open files grow after the first third of the time: memory by more than 10% and 30 MB, open files by more than 10%.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from record import add_keep, store
from rich.console import Console
from rich.table import Table

from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, collect_groups

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from hgpo_train.rollout.collector import Tally

KEY = "sk-soak-4f9c81d2e7b3"
CONSOLE = Console()
EVERY_S = 10.0
ACTIONS = ("look", "inventory", "go to shelf 1", "go to desk 1", "open drawer 1", "take book 1 from desk 1")

FAULTS = {
    "error 500": 0.03,
    "rate limit": 0.03,
    "cut connection": 0.03,
    "drip": 0.004,
    "hang": 0.004,
    "flood": 0.001,
    "no JSON": 0.004,
    "odd types": 0.004,
    "wrong counts": 0.004,
    "NaN": 0.004,
    "large ids": 0.004,
    "lone surrogates": 0.02,
    "key in the text": 0.01,
    "key in an error": 0.004,
    "nothing": 0.004,
}
"""The server's faults and the fraction of requests that get each; other requests get an answer."""


class Handler(BaseHTTPRequestHandler):
    """A request handler that sends an answer or a randomly drawn fault."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    draw = random.Random(1)

    def log_message(self, *_: object) -> None:
        """Suppress log output."""

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        (fault,) = self.draw.choices([*FAULTS, ""], [*FAULTS.values(), 1 - sum(FAULTS.values())])
        with suppress(OSError):
            self._misbehave(fault, body) if fault else self._send(200, self._completion(body["seed"]))

    def _misbehave(self, fault: str, body: dict[str, Any]) -> None:
        if fault in ("drip", "hang", "flood", "cut connection"):
            self._on_the_wire(fault)
            return
        sound, sent = self._completion(body["seed"]), self.headers["Authorization"]
        choice = sound["choices"][0]
        answers: dict[str, tuple[int, Any]] = {
            "error 500": (500, {"error": {"message": "out of memory"}}),
            "rate limit": (429, {"error": {"message": "slow down"}}),
            "no JSON": (200, b"<html>one moment</html>"),
            "odd types": (200, _with(sound, {"message": {"content": {"a": [3]}}, "finish_reason": 3})),
            "wrong counts": (200, _with(sound, {"token_ids": [*choice["token_ids"], 1]})),
            "NaN": (200, _with(sound, {"logprobs": {"content": [{"logprob": float("nan")}] * 4}})),
            "large ids": (200, _with(sound, {"token_ids": [1 << 31] * 4})),
            "lone surrogates": (200, _with(sound, {"message": {"content": "<action>\ud800 look \udfff</action>"}})),
            "key in the text": (200, _with(sound, {"message": {"content": f"<action>look {sent}</action>"}})),
            "key in an error": (400, {"error": {"message": f"cannot read {sent}"}}),
            "nothing": (200, {"choices": []}),
        }
        self._send(*answers[fault])

    def _on_the_wire(self, fault: str) -> None:
        self.close_connection = True
        if fault == "cut connection":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault == "hang":
            time.sleep(10)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        until = time.monotonic() + 10
        while time.monotonic() < until:  # the client closes the connection earlier
            self.wfile.write(b" " if fault == "drip" else b" " * 65536)
            self.wfile.flush()
            if fault == "drip":
                time.sleep(0.05)

    @staticmethod
    def _completion(seed: int) -> dict[str, Any]:
        text = f"<think></think><action>{ACTIONS[seed % len(ACTIONS)]}</action>"
        logprobs = {"content": [{"token": "a", "logprob": -0.5}] * 4}
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"choices": [{**choice, "token_ids": [1, 2, 3, 4], "logprobs": logprobs}], "prompt_token_ids": [1, 2]}

    def _send(self, status: int, body: Any) -> None:  # noqa: ANN401 - JSON, or invalid bytes
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", "0.1")
        self.end_headers()
        self.wfile.write(data)


def _with(completion: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    return {**completion, "choices": [{**completion["choices"][0], **changed}]}


class Server(ThreadingHTTPServer):
    """A server for clients that may close their connection at any time."""

    request_queue_size = 512
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of closed connections."""


def serve(port: Connection) -> None:
    """Run the server in its own process."""
    server = Server(("127.0.0.1", 0), Handler)
    port.send(server.server_port)
    server.serve_forever()


@dataclass(frozen=True)
class Sample:
    """The state of the process at one time."""

    seconds: float
    steps: int
    rollouts: int
    failed: int
    memory_mb: float
    workers_mb: float
    open_files: int
    threads: int


class Watch(threading.Thread):
    """A thread that records the state of the process periodically."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self.tally: Tally | None = None
        self.done = threading.Event()
        self.began = time.monotonic()

    def run(self) -> None:
        while not self.done.wait(EVERY_S):
            if self.tally is not None:
                self.samples.append(self._sample(self.tally))
                CONSOLE.print(self.samples[-1], highlight=False)

    def _sample(self, tally: Tally) -> Sample:
        workers = [child.pid for child in multiprocessing.active_children() if child.name == "hgpo-environment"]
        return Sample(
            seconds=round(time.monotonic() - self.began, 1),
            steps=tally.steps,
            rollouts=tally.trajectories,
            failed=tally.aborted,
            memory_mb=round(resident_mb(os.getpid()), 1),
            workers_mb=round(sum(resident_mb(pid) for pid in workers if pid), 1),
            open_files=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - not a folder of files
            threads=threading.active_count(),
        )


class Killer(threading.Thread):
    """A thread that kills a worker every few seconds; every fourth one is stopped (SIGSTOP) instead."""

    def __init__(self, every_s: float) -> None:
        super().__init__(daemon=True)
        self.every_s, self.draw = every_s, random.Random(2)
        self.killed = self.stopped = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(self.draw.uniform(0.5, 1.5) * self.every_s):
            workers = [child for child in multiprocessing.active_children() if child.name == "hgpo-environment"]
            if not workers or (pid := self.draw.choice(workers).pid) is None:
                continue
            stop = self.draw.random() < 0.25
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)
                self.stopped += stop
                self.killed += not stop


def resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


def play(folder: Path, port: int, minutes: float, slots: int, kill_every: float) -> tuple[Watch, Killer, float]:
    """Collect rollouts until the time is over."""
    os.environ["OPENAI_API_KEY"] = KEY
    options = {"base_url": f"http://127.0.0.1:{port}/v1", "timeout_s": 2.0, "retries": 2}
    options |= {"logprobs": True, "token_ids": True}
    handle = open_env("HGPO/ALFWorld-v0", action_format="response", max_steps=12)
    policy = make_policy("openai:tiny", PolicyContext(handle.shared.source.name, "response", options))
    watch, killer = Watch(), Killer(kill_every)
    until = time.monotonic() + 60 * minutes

    def progress(tally: Tally) -> None:
        watch.tally = tally

    def should_stop() -> bool:
        if time.monotonic() > until:
            watch.done.set()
            killer.done.set()
        return watch.done.is_set()

    watch.start()
    killer.start()
    with StepWriter(folder, run="soak", config={}) as writer:
        collect_groups(
            handle,
            policy,
            writer,
            RolloutSpec(tasks=10**6, group_size=4, seed=1),
            ExecutionOptions(
                slots=slots, workers=True, worker_timeout_s=10.0, policy_timeout_s=60.0, groups_per_shard=32
            ),
            progress=progress,
            should_stop=should_stop,
        )
    began = time.monotonic()
    policy.close()
    return watch, killer, time.monotonic() - began


def findings(folder: Path, watch: Watch) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of the run, and the list of problems."""
    report = verify(folder)
    steps = scan_steps(folder)
    reasons = steps.filter("aborted").group_by(pl.col("error").str.replace_all(r"\d+", "0").str.head(90)).len()
    by_reason = dict(reasons.sort("len", descending=True).collect().iter_rows())
    sizes = steps.group_by("task_id", "group").agg(pl.col("trajectory").n_unique()).collect()["trajectory"]
    totals = steps.select(pl.len(), pl.col("trajectory").n_unique(), pl.col("aborted").sum()).collect().row(0)
    wrong = [problem.message for problem in report.problems]
    if set(sizes) != {4}:
        wrong.append(f"groups of other sizes than 4: {sorted(set(sizes))}")
    data = b"".join(path.read_bytes() for path in folder.rglob("*.*"))
    texts = json.dumps(
        [path for file in folder.glob("steps/*.parquet") for path in pl.read_parquet(file).to_dicts()], default=str
    )
    if KEY.encode() in data or KEY in texts.lower():
        wrong.append("the key is in the run")
    samples = watch.samples
    wrong += [
        f"no step from {one.seconds} s to {other.seconds} s"
        for one, other in zip(samples, samples[6:], strict=False)
        if one.steps == other.steps
    ]
    early, late = samples[len(samples) // 3 : len(samples) // 2], samples[-max(1, len(samples) // 6) :]
    growth = {}
    for name, slack in (("memory_mb", 30.0), ("open_files", 0.0), ("threads", 0.0), ("workers_mb", 0.0)):
        before, after = (statistics.median(getattr(one, name) for one in part) for part in (early, late))
        growth[name] = {"before": before, "after": after, "growth": round(after / before - 1, 4)}
        if name != "workers_mb" and after > 1.1 * before and after > before + slack:
            wrong.append(f"{name} grew from {before} to {after}")
    figures = {
        "rows": totals[0],
        "rollouts": totals[1],
        "failed": totals[2],
        "reasons": by_reason,
        "growth": growth,
        "samples": [asdict(sample) for sample in samples],
    }
    return figures, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--kill-every", type=float, default=3.0, metavar="SECONDS")
    add_keep(parser)
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    folder = Path(tempfile.mkdtemp(prefix="hgpo-soak-"))
    try:
        watch, killer, closing_s = play(folder / "soak", ours.recv(), given.minutes, given.slots, given.kill_every)
        figures, wrong = findings(folder / "soak", watch)
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
    last = watch.samples[-1]
    figures = {
        "minutes": given.minutes,
        "slots": given.slots,
        "workers_killed": killer.killed,
        "workers_stopped": killer.stopped,
        "steps_per_second": round(last.steps / last.seconds, 1),
        "closing_s": round(closing_s, 2),
        "wrong": wrong,
        **figures,
    }
    table = Table("reason", "rollouts", title=f"{figures['failed']:,} of {figures['rollouts']:,} rollouts failed")
    for reason, times in figures["reasons"].items():
        table.add_row(reason, f"{times:,}")
    CONSOLE.print(table, {name: value for name, value in figures.items() if name not in ("reasons", "samples")})
    CONSOLE.print(store("soak", figures, keep=given.keep))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
