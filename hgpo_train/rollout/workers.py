"""Engines in subprocesses: for environments that are slow, that leak, or that may die.

One process per engine, so that a process that dies takes one rollout with it and no other. It is replaced when its slot
is used again; the rollout is kept as aborted, with what happened in its row. Processes are spawned, not forked: a fork
would copy threads and devices that the policy holds.

Each slot has a thread that starts its process, sends commands and receives states. A process that is stopped, or that
dies in the middle of a message, blocks that thread only. The collector never reads or writes a pipe: it waits for the
threads' results, and kills processes that are too late, which ends their threads' waiting.

No process outlives the collector: Linux kills it when its parent ends, also while it is stopped or hangs. Other systems
have no such call; there a process ends when it next reads its pipe, whose other end is then closed.
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
"""Linux's PR_SET_PDEATHSIG. The parent is the thread that starts the process: a slot's, which lives as long as it."""


@dataclass
class _Call:
    """A start or a command, from its thread's point of view."""

    method: str
    text: str
    number: int


@dataclass
class _Worker:
    """A slot: its thread, and its process while there is one. The lock guards process, connection and times."""

    calls: queue.SimpleQueue[_Call | None] = field(default_factory=queue.SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None
    process: SpawnProcess | None = None
    connection: Connection | None = None
    asked: int = 0  # the number of the call that is waited for; 0 while none is
    since: float = 0.0  # when it was sent, or when its process began to start
    starting: bool = False
    doomed: bool = False  # killed for being late: not to be used again
    restarts: int = 0


class WorkerSlots:
    """Each slot's engine in a process of its own.

    Args:
        shared: The task source; it is pickled, and opened again in each process.
        count: How many processes.
        timeout_s: A start or a command that takes longer costs the process its life.
        opening_s: The same for a process that starts and opens the task source, for which it imports packages and reads
            data; twice `timeout_s` and a minute unless given. As many processes as there are processors, but at least
            four, open at a time: the first play while the last wait for their turn.

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
            raise InputError(
                f"the environment cannot be sent to worker processes ({pickled.line}); leave --workers out"
            )
        self._pickled = bytes(pickled)
        self._workers = [_Worker() for _ in range(count)]
        for slot, worker in enumerate(self._workers):
            worker.thread = threading.Thread(target=self._run, args=(slot, worker), name="hgpo-worker", daemon=True)
            worker.thread.start()

    @property
    def restarts(self) -> int:
        """How many processes were replaced."""
        return sum(worker.restarts for worker in self._workers)

    @property
    def busy(self) -> int:
        """See `Slots`."""
        return sum(worker.asked > 0 for worker in self._workers)

    def engine(self, slot: int) -> Engine | None:
        """None: the engine is elsewhere."""
        del slot
        return None

    def process_id(self, slot: int) -> int | None:
        """The operating system's number of a slot's process; None while it has none."""
        process = self._workers[slot].process
        return None if process is None else process.pid

    def start(self, slot: int, task_id: str) -> None:
        """See `Slots`. A process that died between two rollouts is replaced first: it costs no rollout."""
        self._ask(slot, "start", task_id)

    def act(self, slot: int, command: str) -> None:
        """See `Slots`."""
        self._ask(slot, "act", command)

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """See `Slots`."""
        return [*self._received(timeout), *self._overdue()]

    def close(self) -> None:
        """Ends every process; takes a few seconds at most, whatever they do."""
        until = perf_counter() + _CLOSING_S
        self._closing = True
        for worker in self._workers:
            worker.calls.put(None)
        for worker in self._workers:
            with worker.lock:
                process = worker.process
                if process is not None:
                    process.kill()  # an engine holds nothing that needs to be closed, and may be stopped or hang
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
        """The result as an arrival; empty where it came after its call had been given up."""
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
                    worker.process.kill()  # what its thread waits for ends with it
            failure = Failure("WorkerTimedOut", f"{what} within {allowed:g} s")
            arrived.append(SlotResult(slot, failure, now - worker.since))
        return arrived

    def _run(self, slot: int, worker: _Worker) -> None:
        """A slot's thread: makes its calls one after the other, in a process that it starts when it needs one."""
        if hasattr(signal, "pthread_sigmask"):  # inherited by the process: Ctrl-C is for the collector alone
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        while (call := worker.calls.get()) is not None:
            outcome, seconds = self._make(worker, call)
            self._done.put((slot, call.number, outcome, seconds))
        self._discard(worker)

    def _make(self, worker: _Worker, call: _Call) -> tuple[State | Failure, float]:
        """Makes one call. A process that fails is discarded; had it died before a start, another makes the start."""
        began = perf_counter()
        if worker.doomed:
            self._discard(worker)
        while True:
            reused = worker.process is not None
            try:
                return self._exchange(worker, call)
            except Exception as error:  # noqa: BLE001 - it died, died while it wrote, or wrote what cannot be read
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
        """Starts a process, when it is its turn, and waits until it has opened the task source."""
        with worker.lock:
            worker.starting, worker.since = True, math.inf  # waiting for its turn takes none of its time
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
        """Why a process could not make a call."""
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
        """Ends the slot's process, if it has one; the next call starts another."""
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
    """The process lives and cannot open the task source."""


def _serve(pickled: bytes, connection: Connection) -> None:
    """The process: plays what it is asked until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the collector, which ends its processes itself
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
    """Makes Linux kill this process when its parent ends."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it ended before the call
        os._exit(1)


def _engine(pickled: bytes) -> Engine:
    shared: SharedSource = pickle.loads(pickled)  # noqa: S301 - what the parent process has just pickled
    return shared.source.engine()


def _pickled(outcome: object, seconds: float) -> bytes:
    """The answer for the pipe; a failure where the state cannot be pickled."""
    data = attempt("EnvironmentFailed", pickle.dumps, (outcome, seconds))
    if isinstance(data, Failure):
        failure = Failure(data.kind, f"its state cannot be sent between processes: {data.line}")
        return pickle.dumps((failure, seconds))
    return data
