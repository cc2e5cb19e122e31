"""Engines in subprocesses: for environments that are slow, that leak, or that may die.

One process an engine, so that a process that dies takes one rollout with it and no other. It is replaced at once; the
rollout is kept as aborted, with what happened in its row. Processes are spawned, not forked: a fork would copy threads
and devices that the policy holds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from dataclasses import dataclass
from multiprocessing.connection import wait
from time import perf_counter
from typing import TYPE_CHECKING

from hgpo_train.policies.base import Failure
from hgpo_train.rollout.slots import Arrival

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from hgpo_envs.engine import Engine
    from hgpo_envs.sources import SharedSource

_SPAWN = multiprocessing.get_context("spawn")


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    asked_at: float = 0.0  # 0 while nothing is asked


class WorkerSlots:
    """Each slot's engine in a process of its own.

    Args:
        shared: The task source; it is pickled, and opened again in each process.
        count: How many processes.
        timeout_s: A start or a command that takes longer costs the process its life.
    """

    def __init__(self, shared: SharedSource, count: int, *, timeout_s: float = 300.0) -> None:
        self.count = count
        self.restarts = 0
        self._shared, self._timeout_s = shared, timeout_s
        self._workers = [self._spawn() for _ in range(count)]

    @property
    def busy(self) -> int:
        """See `Slots`."""
        return sum(worker.asked_at > 0 for worker in self._workers)

    def engine(self, slot: int) -> Engine | None:
        """None: the engine is elsewhere."""
        del slot
        return None

    def process_id(self, slot: int) -> int | None:
        """The operating system's number of a slot's process."""
        return self._workers[slot].process.pid

    def start(self, slot: int, task_id: str) -> None:
        """See `Slots`. A process that died between two rollouts is replaced first: it costs nobody anything."""
        if not self._workers[slot].process.is_alive():
            self._renew(slot)
        self._ask(slot, "start", task_id)

    def act(self, slot: int, command: str) -> None:
        """See `Slots`."""
        self._ask(slot, "act", command)

    def collect(self, timeout: float) -> Sequence[Arrival]:
        """See `Slots`."""
        asked = {worker.connection: slot for slot, worker in enumerate(self._workers) if worker.asked_at}
        if not asked:
            return []
        arrived = [self._receive(asked[connection]) for connection in wait(list(asked), timeout)]  # type: ignore[index]
        late = perf_counter() - self._timeout_s
        for slot, worker in enumerate(self._workers):
            if 0 < worker.asked_at < late:
                failure = Failure("WorkerTimedOut", f"no answer from the environment within {self._timeout_s:g} s")
                arrived.append(self._replace(slot, failure))
        return arrived

    def close(self) -> None:
        """Ends every process."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()

    def _spawn(self) -> _Worker:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_serve, args=(self._shared, theirs), name="hgpo-environment", daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _ask(self, slot: int, method: str, text: str) -> None:
        worker = self._workers[slot]
        worker.asked_at = perf_counter()
        with contextlib.suppress(OSError):  # a process that is gone is found by `collect`
            worker.connection.send((method, text))

    def _receive(self, slot: int) -> Arrival:
        worker = self._workers[slot]
        try:
            outcome, seconds = worker.connection.recv()
        except Exception:  # noqa: BLE001 - it died, or died while it wrote
            return self._replace(slot, self._death(worker))
        worker.asked_at = 0.0
        return Arrival(slot, outcome, seconds)

    @staticmethod
    def _death(worker: _Worker) -> Failure:
        worker.process.join(timeout=1)
        code = worker.process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return Failure("WorkerDied", f"the environment's process ended with {how}")

    def _replace(self, slot: int, failure: Failure) -> Arrival:
        """A new process for the slot, and the old one's failure as what came back."""
        seconds = perf_counter() - self._workers[slot].asked_at
        self._renew(slot)
        return Arrival(slot, failure, seconds)

    def _renew(self, slot: int) -> None:
        self._workers[slot].process.kill()
        self._workers[slot].connection.close()
        self._workers[slot] = self._spawn()
        self.restarts += 1


def _serve(shared: SharedSource, connection: Connection) -> None:
    """The process: plays what it is asked until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the collector, which ends its processes itself
    engine = shared.source.engine()
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, text = connection.recv()
            began = perf_counter()
            try:
                outcome = getattr(engine, method)(text)
            except Exception as error:  # noqa: BLE001 - an environment that fails costs its own trajectory
                outcome = Failure.of("EnvironmentFailed", error)
            connection.send((outcome, perf_counter() - began))
