"""Engines in subprocesses, for environments that are slow, leak memory or may crash.

Each engine has its own process, so a crash costs one rollout. The process is replaced when its slot is used again.
Processes are spawned, not forked: a fork would copy the policy's threads and devices.

Each call of an engine is made in a thread, which starts its process, sends the command and receives the state. A
process that is stopped, or that dies while it writes a message, blocks only this thread. The collector never reads from
or writes to a pipe. It kills processes that exceed the time limit, which unblocks their threads.

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
import signal
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from time import perf_counter
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError
from hgpo_train.policies.base import Failure, attempt
from hgpo_train.rollout.slots import SlotResult, ThreadSlots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from hgpo_envs.engine import Engine, State
    from hgpo_envs.sources import SharedSource

_SPAWN = multiprocessing.get_context("spawn")
_READY = "ready"
_PDEATHSIG = 1
"""Linux's PR_SET_PDEATHSIG. The signal is sent when the thread that started the process ends, which the slots keep."""


class WorkerSlots(ThreadSlots):
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
        pickled = attempt("", ForkingPickler.dumps, shared)
        if isinstance(pickled, Failure):
            raise InputError(f"the environment cannot be sent to worker processes ({pickled.line}); remove --workers")
        opening = threading.BoundedSemaphore(max(4, os.cpu_count() or 1))
        self._processes = [ProcessEngine(bytes(pickled), opening) for _ in range(count)]
        self._timeout_s = timeout_s
        self._opening_s = 2 * timeout_s + 60 if opening_s is None else opening_s
        super().__init__(self._processes)  # type: ignore[arg-type]  # they also return failures

    def engine(self, slot: int) -> Engine | None:
        """Return None: the engine runs in another process."""
        del slot
        return None

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """See `Slots`. Kill processes that exceed the time limit."""
        arrived = list(super().collect(timeout))
        now = perf_counter()
        for slot in list(self._open):
            process = self._processes[slot]
            allowed = self._opening_s if process.opening else self._timeout_s
            seconds = now - process.since
            if seconds > allowed:
                what = "it did not start" if process.opening else "no answer from the environment"
                del self._open[slot]
                process.kill()
                arrived.append(SlotResult(slot, Failure("WorkerTimedOut", f"{what} within {allowed:g} s"), seconds))
        return arrived


class ProcessEngine:
    """An engine in a process of its own, which starts on demand and is replaced when it has failed.

    Calls are made one after the other, each in some thread; `kill` and `close` may be called during a call.

    Args:
        pickled: The pickled `SharedSource`.
        turn: Limits how many processes start at the same time.

    Attributes:
        since: When the present call was sent, or its process began to start; infinite if neither is the case.
        opening: Whether the process is starting.
    """

    def __init__(self, pickled: bytes, turn: threading.BoundedSemaphore) -> None:
        self._pickled, self._turn = pickled, turn
        self._call = threading.Lock()
        self._connection: Connection | None = None
        self._doomed = self._closed = False
        self.process: SpawnProcess | None = None
        self.since, self.opening = math.inf, False

    def start(self, task_id: str) -> State | Failure:
        """Start a task. A process that died between two rollouts is replaced without a failure."""
        with self._call:
            if self._doomed:
                self._discard()
            if self.process is not None:
                with contextlib.suppress(Exception):
                    return self._exchange("start", task_id)
                if self._doomed or self._closed:
                    return self._failed(EOFError("it was killed"))
                self._discard()
            return self._attempt("start", task_id)

    def act(self, command: str) -> State | Failure:
        """Execute a command."""
        with self._call:
            return self._attempt("act", command)

    def kill(self) -> None:
        """End the process, which unblocks a call. The next call starts another."""
        self._doomed, self.since = True, math.inf
        if self.process is not None:
            self.process.kill()

    def close(self) -> None:
        """End the process for good. Engines have nothing to close, and a process may be stopped or hang."""
        self._closed = True
        self.kill()

    def _attempt(self, method: str, text: str) -> State | Failure:
        try:
            return self._exchange(method, text)
        except Exception as error:  # noqa: BLE001 - it died, or sent data that cannot be unpickled
            return self._failed(error)

    def _exchange(self, method: str, text: str) -> State | Failure:
        try:
            if self.process is None:
                self._open()
            assert self._connection is not None
            self.since = perf_counter()
            self._connection.send((method, text))
            outcome: State | Failure = self._connection.recv()
        finally:
            self.since, self.opening = math.inf, False
        return outcome

    def _open(self) -> None:
        """Start a process, when it is its turn, and wait until it has opened the task source."""
        while not self._turn.acquire(timeout=0.2):
            if self._closed:
                raise _UnreadyError("the run ends")
        try:
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=_serve, args=(self._pickled, theirs), name="hgpo-environment", daemon=True)
            self.since, self.opening = perf_counter(), True
            try:
                process.start()
                self.process, self._connection = process, ours
                if self._doomed or self._closed:  # meanwhile
                    process.kill()
            finally:
                theirs.close()
            if (ready := ours.recv()) != _READY:
                raise _UnreadyError(str(ready))
        finally:
            self._turn.release()

    def _failed(self, error: Exception) -> Failure:
        """End the process after a failed call. Return why it failed."""
        failure = Failure.of("WorkerDied", error)
        if isinstance(error, _UnreadyError):
            failure = Failure("EnvironmentFailed", str(error))
        elif self.process is not None:
            self.process.join(timeout=1)
            code = self.process.exitcode
            if code is not None:
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                failure = Failure("WorkerDied", f"the environment's process ended with {how}")
        self._discard()
        return failure

    def _discard(self) -> None:
        process, connection = self.process, self._connection
        self.process = self._connection = None
        self._doomed = False
        if process is not None:
            process.kill()
            process.join(timeout=1)
        if connection is not None:
            connection.close()


class _UnreadyError(Exception):
    """A process that runs could not open the task source."""


def _serve(pickled: bytes, connection: Connection) -> None:
    """Run a worker process: execute calls until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the collector handles Ctrl-C and ends its processes
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        parent = multiprocessing.parent_process()
        if parent is not None and os.getppid() != parent.pid:  # the parent ended before the call
            os._exit(1)
    with contextlib.suppress(EOFError, OSError):
        engine = attempt("EnvironmentFailed", _engine, pickled)
        connection.send(engine.line if isinstance(engine, Failure) else _READY)
        while not isinstance(engine, Failure):
            method, text = connection.recv()
            outcome = attempt("EnvironmentFailed", getattr(engine, method), text)
            data = attempt("EnvironmentFailed", pickle.dumps, outcome)
            if isinstance(data, Failure):
                line = f"its state cannot be sent between processes: {data.line}"
                data = pickle.dumps(Failure(data.kind, line))
            connection.send_bytes(data)


def _engine(pickled: bytes) -> Engine:
    shared: SharedSource = pickle.loads(pickled)  # noqa: S301 - pickled by the parent process
    return shared.source.engine()
