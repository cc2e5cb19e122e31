"""Engines in subprocesses, for environments that are slow, leak memory or may crash.

Each engine has its own process, so a crash aborts only one rollout. The rollout is stored as aborted, with the reason.
The process is replaced when its slot is used again. Processes are spawned, not forked: a fork would copy the policy's
threads and devices.

Each slot has a thread that starts its process, sends commands and receives states. A process that is stopped, or that
dies while it writes a message, blocks only this thread. The collector never reads from or writes to a pipe. It waits
for the threads' results and kills processes that exceed the time limit, which unblocks their threads.

No process outlives the collector. Linux kills it when its parent ends, even if it is stopped or hangs. Other systems
have no such call: there a process ends when it next reads its pipe, whose other end is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from time import perf_counter
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError
from hgpo_train.policies.base import Failure, attempt
from hgpo_train.rollout.slots import SlotResult

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from hgpo_envs.engine import Engine, State
    from hgpo_envs.sources import SharedSource

_SPAWN = multiprocessing.get_context("spawn")
_CLOSING_S = 5.0
_READY = "ready"
_PDEATHSIG = 1
"""Linux's PR_SET_PDEATHSIG. The signal is sent when the thread that started the process ends, which is the slot's."""


@dataclass
class _Call:
    """A start or a command that is queued for a slot's thread."""

    method: str
    text: str
    number: int


@dataclass
class _Worker:
    """A slot's thread, and its process while there is one. The lock guards process, connection and times."""

    calls: queue.SimpleQueue[_Call | None] = field(default_factory=queue.SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None
    process: SpawnProcess | None = None
    connection: Connection | None = None
    asked: int = 0  # the number of the open call; 0 if there is none
    since: float = 0.0  # when the call was sent, or when its process began to start
    starting: bool = False
    doomed: bool = False  # killed because of the time limit: not to be used again
    restarts: int = 0


class WorkerSlots:
    """Slots whose engines run in one subprocess each.

    At most as many processes as there are processors, but at least four, start at the same time.

    Args:
        shared: The task source. It is pickled, and opened again in each process.
        count: Number of slots.
        timeout_s: Maximum seconds for a start or a command; a process that takes longer is killed.
        opening_s: Maximum seconds until a process has started and opened the task source, for which it imports packages
            and reads data. Default: twice `timeout_s` plus a minute.

    Raises:
        InputError: The task source cannot be pickled.
    """

    def __init__(
        self, shared: SharedSource, count: int, *, timeout_s: float = 300.0, opening_s: float | None = None
    ) -> None:
        self.count = count
        self._closing = False
        self._opening = threading.BoundedSemaphore(max(4, os.cpu_count() or 1))
        self._timeout_s = timeout_s
        self._opening_s = 2 * timeout_s + 60 if opening_s is None else opening_s
        self._calls_made = 0
        self._done: queue.SimpleQueue[tuple[int, int, State | Failure, float]] = queue.SimpleQueue()
        pickled = attempt("", ForkingPickler.dumps, shared)
        if isinstance(pickled, Failure):
            raise InputError(f"the environment cannot be sent to worker processes ({pickled.line}); remove --workers")
        self._pickled = bytes(pickled)
        self._workers = [_Worker() for _ in range(count)]
        for slot, worker in enumerate(self._workers):
            worker.thread = threading.Thread(target=self._run, args=(slot, worker), name="hgpo-worker", daemon=True)
            worker.thread.start()

    @property
    def restarts(self) -> int:
        """Number of processes that were ended, because they failed or at `close`."""
        return sum(worker.restarts for worker in self._workers)

    @property
    def busy(self) -> int:
        """See `Slots`."""
        return sum(worker.asked > 0 for worker in self._workers)

    def engine(self, slot: int) -> Engine | None:
        """Return None: the engine runs in another process."""
        del slot
        return None

    def process_id(self, slot: int) -> int | None:
        """Return the process id of a slot's process; None if there is none."""
        process = self._workers[slot].process
        return None if process is None else process.pid

    def start(self, slot: int, task_id: str) -> None:
        """See `Slots`. A process that died between two rollouts is replaced without a failure."""
        self._ask(slot, "start", task_id)

    def act(self, slot: int, command: str) -> None:
        """See `Slots`."""
        self._ask(slot, "act", command)

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """See `Slots`."""
        return [*self._received(timeout), *self._overdue()]

    def close(self) -> None:
        """Kill every process. Returns within a few seconds, even if a process hangs."""
        until = perf_counter() + _CLOSING_S
        self._closing = True
        for worker in self._workers:
            worker.calls.put(None)
        for worker in self._workers:
            with worker.lock:
                process = worker.process
                if process is not None:
                    process.kill()  # engines have nothing to close, and a process may be stopped or hang
        for worker in self._workers:
            if worker.thread is not None:
                worker.thread.join(max(0.0, until - perf_counter()))
        self._workers.clear()

    def _ask(self, slot: int, method: str, text: str) -> None:
        worker = self._workers[slot]
        self._calls_made += 1
        with worker.lock:
            worker.asked, worker.since = self._calls_made, perf_counter()
        worker.calls.put(_Call(method, text, self._calls_made))

    def _received(self, timeout: float) -> list[SlotResult]:
        arrived: list[SlotResult] = []
        with contextlib.suppress(queue.Empty):
            if self.busy:
                arrived += self._accepted(self._done.get(timeout=timeout) if timeout > 0 else self._done.get_nowait())
            while True:
                arrived += self._accepted(self._done.get_nowait())
        return arrived

    def _accepted(self, result: tuple[int, int, State | Failure, float]) -> list[SlotResult]:
        """Return the result of the open call. The list is empty if the call has already timed out."""
        slot, number, outcome, seconds = result
        worker = self._workers[slot]
        if worker.asked != number:
            return []
        worker.asked = 0
        return [SlotResult(slot, outcome, seconds)]

    def _overdue(self) -> list[SlotResult]:
        arrived = []
        now = perf_counter()
        for slot, worker in enumerate(self._workers):
            with worker.lock:
                allowed = self._opening_s if worker.starting else self._timeout_s
                if not worker.asked or now - worker.since <= allowed:
                    continue
                what = "it did not start" if worker.starting else "no answer from the environment"
                worker.asked = 0
                if worker.process is not None:
                    worker.doomed = True
                    worker.process.kill()  # unblocks the slot's thread, which waits for the process
            failure = Failure("WorkerTimedOut", f"{what} within {allowed:g} s")
            arrived.append(SlotResult(slot, failure, now - worker.since))
        return arrived

    def _run(self, slot: int, worker: _Worker) -> None:
        """Run a slot's thread: make its calls one after the other, in a process that it starts on demand."""
        if hasattr(signal, "pthread_sigmask"):  # the process inherits the mask: only the collector handles Ctrl-C
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        while (call := worker.calls.get()) is not None:
            outcome, seconds = self._make(worker, call)
            self._done.put((slot, call.number, outcome, seconds))
        self._discard(worker)

    def _make(self, worker: _Worker, call: _Call) -> tuple[State | Failure, float]:
        """Make one call. A process that fails is discarded. A start is retried if a reused process fails at it."""
        began = perf_counter()
        if worker.doomed:
            self._discard(worker)
        while True:
            reused = worker.process is not None
            try:
                return self._exchange(worker, call)
            except Exception as error:  # noqa: BLE001 - it died, or sent data that cannot be unpickled
                failure = self._death(worker, error)
                reused = reused and not worker.doomed
                self._discard(worker)
                if not (reused and call.method == "start") or self._closing:
                    return failure, perf_counter() - began

    def _exchange(self, worker: _Worker, call: _Call) -> tuple[State | Failure, float]:
        if worker.process is None:
            self._spawn(worker)
        with worker.lock:
            worker.since = perf_counter()
        assert worker.connection is not None
        worker.connection.send((call.method, call.text))
        outcome, seconds = worker.connection.recv()
        return outcome, float(seconds)

    def _spawn(self, worker: _Worker) -> None:
        """Start a process, when it is its turn, and wait until it has opened the task source."""
        with worker.lock:
            worker.starting, worker.since = True, math.inf  # the time limit begins when it is its turn
        try:
            while not self._opening.acquire(timeout=0.2):
                if self._closing:
                    raise _UnreadyError("the run ends")
            try:
                self._open(worker)
            finally:
                self._opening.release()
        finally:
            with worker.lock:
                worker.starting = False

    def _open(self, worker: _Worker) -> None:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_serve, args=(self._pickled, theirs), name="hgpo-environment", daemon=True)
        with worker.lock:
            worker.since = perf_counter()
        try:
            process.start()
            with worker.lock:
                worker.process, worker.connection = process, ours
                if self._closing:
                    process.kill()
        finally:
            theirs.close()
        ready = ours.recv()
        if ready != _READY:
            raise _UnreadyError(str(ready))

    @staticmethod
    def _death(worker: _Worker, error: Exception) -> Failure:
        """Return why a process could not make a call."""
        if isinstance(error, _UnreadyError):
            return Failure("EnvironmentFailed", str(error))
        process = worker.process
        if process is None:
            return Failure.of("WorkerDied", error)
        process.join(timeout=1)
        code = process.exitcode
        if code is None:
            return Failure.of("WorkerDied", error)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Failure("WorkerDied", f"the environment's process ended with {how}")

    def _discard(self, worker: _Worker) -> None:
        """End the slot's process, if it has one. The next call starts another."""
        with worker.lock:
            process, connection = worker.process, worker.connection
            worker.process = worker.connection = None
            worker.doomed = False
        if process is not None:
            worker.restarts += 1
            process.kill()
            process.join(timeout=1)
        if connection is not None:
            connection.close()


class _UnreadyError(Exception):
    """A process that runs could not open the task source."""


def _serve(pickled: bytes, connection: Connection) -> None:
    """Run a worker process: execute calls until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the collector handles Ctrl-C and ends its processes
    _end_with_parent()
    with contextlib.suppress(EOFError, OSError):
        engine = attempt("EnvironmentFailed", _engine, pickled)
        connection.send(engine.line if isinstance(engine, Failure) else _READY)
        while not isinstance(engine, Failure):
            method, text = connection.recv()
            began = perf_counter()
            outcome = attempt("EnvironmentFailed", getattr(engine, method), text)
            connection.send_bytes(_pickled(outcome, perf_counter() - began))


def _end_with_parent() -> None:
    """Let Linux kill this process when its parent ends."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # the parent ended before the call
        os._exit(1)


def _engine(pickled: bytes) -> Engine:
    shared: SharedSource = pickle.loads(pickled)  # noqa: S301 - pickled by the parent process
    return shared.source.engine()


def _pickled(outcome: object, seconds: float) -> bytes:
    """Pickle the result of a call for the pipe; a failure if the state cannot be pickled."""
    data = attempt("EnvironmentFailed", pickle.dumps, (outcome, seconds))
    if isinstance(data, Failure):
        failure = Failure(data.kind, f"its state cannot be sent between processes: {data.line}")
        return pickle.dumps((failure, seconds))
    return data
