"""Engines in subprocesses, for environments that are slow, leak memory or may crash.

Each engine has its own process, so a crash costs one rollout. The process is replaced when its slot is used again.
Processes are spawned, not forked: a fork would copy the policy's threads and devices.

The collector's thread sends all commands and receives all states, of whichever processes are ready, without ever
waiting for one of them: a process that is stopped, or that dies while it writes, delays no other. Messages are pickles
behind their length. Processes that exceed their time limit are killed.

No process outlives the collector. Linux kills it when its parent ends, even if it is stopped or hangs. Other systems
have no such call: there a process ends when it next reads its socket, whose other end is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
from multiprocessing.reduction import ForkingPickler
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_train.policies.base import Failure, attempt
from hgpo_train.rollout.slots import SlotResult

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import SpawnProcess

    from hgpo_envs.engine import Engine
    from hgpo_envs.sources import SharedSource

_SPAWN: Final = multiprocessing.get_context("spawn")
_LENGTH: Final = struct.Struct("!Q")
_READ: Final = 1 << 18
_READY: Final = "ready"
_PENDING: Final = object()
_PDEATHSIG: Final = 1
"""Linux's PR_SET_PDEATHSIG. The signal is sent when the thread that started the process ends."""


class WorkerSlots:
    """Slots whose engines run in one subprocess each (`hgpo_train.rollout.slots.Slots`).

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
            raise InputError(
                f"the environment cannot be sent to worker processes ({pickled.message}); remove --workers"
            )
        self.engines: list[Engine | None] = [None] * count
        self._selector = selectors.DefaultSelector()
        self._workers = [Worker(slot, bytes(pickled), self._selector) for slot in range(count)]
        self._called: dict[int, Worker] = {}  # by slot, in the order of calls
        self._timeout_s = timeout_s
        self._opening_s = 2 * timeout_s + 60 if opening_s is None else opening_s
        self._most_opening = max(4, os.cpu_count() or 1)

    @property
    def busy(self) -> int:
        """See `Slots`."""
        return len(self._called)

    def call(self, slot: int, method: str, text: str) -> None:
        """See `Slots`."""
        worker = self._called[slot] = self._workers[slot]
        worker.call(method, text)

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """See `Slots`. Kill processes that exceed the time limit."""
        opening = sum(worker.opening for worker in self._called.values())
        for worker in self._called.values():
            if worker.process is None and opening < self._most_opening:
                opening += 1
                worker.open()
        results = []
        for key, _ in self._selector.select(timeout if self._called else 0):
            worker = key.data
            outcome = worker.exchange()
            if outcome is not _PENDING:
                del self._called[worker.slot]
                results.append(SlotResult(worker.slot, outcome, perf_counter() - worker.since))
        now = perf_counter()
        for slot, worker in list(self._called.items()):
            allowed = self._opening_s if worker.opening else self._timeout_s
            if worker.process is not None and now - worker.since > allowed:
                reason = "it did not start" if worker.opening else "no answer from the environment"
                worker.discard()
                del self._called[slot]
                failure = Failure("WorkerTimedOut", f"{reason} within {allowed:g} s")
                results.append(SlotResult(slot, failure, now - worker.since))
        return results

    def close(self) -> None:
        """See `Slots`. Engines have nothing to close, and a process may be stopped or hang."""
        processes = [worker.process for worker in self._workers if worker.process is not None]
        for process in processes:
            process.kill()
        for worker in self._workers:
            worker.discard()
        self._selector.close()


class Worker:
    """The process of a slot, which starts on demand and is replaced when it has failed.

    Args:
        slot: Number of the slot.
        pickled: The pickled `SharedSource`.
        selector: Contains the process's socket while a call is under way.

    Attributes:
        process: The process; None if a call needs a new one.
        opening: Whether the process has not opened the task source yet.
        since: When the call was sent, or the process began to start.
    """

    def __init__(self, slot: int, pickled: bytes, selector: selectors.BaseSelector) -> None:
        self.slot, self._pickled, self._selector = slot, pickled, selector
        self.process: SpawnProcess | None = None
        self.opening, self.since = False, 0.0
        self._socket: socket.socket | None = None
        self._call = b""
        self._replaceable = False  # whether another process takes over if this one has died
        self._unsent = memoryview(b"")
        self._received = bytearray()

    def call(self, method: str, text: str) -> None:
        """Call the engine. `exchange` returns the result; without a process, `open` must come before."""
        self._call = _framed((method, text))
        self._replaceable = method == "start"  # it may have died since its last rollout
        if self._socket is not None:
            self._selector.register(self._socket, selectors.EVENT_READ, self)
            self._send(self._call)

    def open(self) -> None:
        """Start a process, which opens the task source and then receives the call."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = _SPAWN.Process(target=_serve, args=(self._pickled, theirs), name="hgpo-environment", daemon=True)
            process.start()
        ours.setblocking(False)
        self.process, self._socket = process, ours
        self.opening, self.since, self._replaceable = True, perf_counter(), False
        self._selector.register(ours, selectors.EVENT_READ, self)

    def exchange(self) -> Any:  # noqa: ANN401 - whatever the engine returned
        """Send and receive what is possible now. Return the result of the call, or `_PENDING`."""
        assert self._socket is not None
        try:
            if self._unsent:
                self._send(self._unsent)
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return _PENDING
        except OSError:
            data = b""
        if not data:
            return self._died()
        self._received += data
        if len(self._received) < _LENGTH.size:
            return _PENDING
        end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return _PENDING
        outcome = attempt("WorkerDied", pickle.loads, bytes(self._received[_LENGTH.size : end]))
        self._received.clear()
        if not self.opening:
            self._selector.unregister(self._socket)
            return outcome
        if outcome != _READY:
            self.discard()
            return Failure("EnvironmentFailed", str(outcome))
        self.opening, self.since = False, perf_counter()
        self._send(self._call)
        return _PENDING

    def discard(self) -> None:
        """End the process, if there is one. The next call needs another."""
        if self.process is None or self._socket is None:
            return
        self.process.kill()
        self.process.join(timeout=1)
        with contextlib.suppress(KeyError):  # no call is under way
            self._selector.unregister(self._socket)
        self._socket.close()
        self.process = self._socket = None
        self.opening, self._unsent = False, memoryview(b"")
        self._received.clear()

    def _send(self, data: bytes | memoryview) -> None:
        """Send as much of the data as the socket takes now; `exchange` sends the rest when it takes more."""
        assert self._socket is not None
        self._unsent = memoryview(data)
        with contextlib.suppress(OSError):  # BlockingIOError; or it has died, as `exchange` finds out
            self._unsent = self._unsent[self._socket.send(data) :]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self._socket).events != events:
            self._selector.modify(self._socket, events, self)

    def _died(self) -> object:
        """Return why the process ended; `_PENDING` if another one takes over."""
        assert self.process is not None
        self.process.join(timeout=1)
        code = self.process.exitcode
        self.discard()
        if self._replaceable:
            return _PENDING
        if code is None:
            return Failure("WorkerDied", "the environment's process closed its connection")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Failure("WorkerDied", f"the environment's process ended with {how}")


def _framed(value: object) -> bytes:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def _serve(pickled: bytes, connection: socket.socket) -> None:
    """Run a worker process: execute calls until the other end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the collector handles Ctrl-C and ends its processes
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        parent = multiprocessing.parent_process()
        if parent is not None and os.getppid() != parent.pid:  # the parent ended before the call
            os._exit(1)
    with contextlib.suppress(OSError), connection, connection.makefile("rb") as calls:
        engine = attempt("EnvironmentFailed", _engine, pickled)
        connection.sendall(_framed(engine.message if isinstance(engine, Failure) else _READY))
        while not isinstance(engine, Failure) and (header := calls.read(_LENGTH.size)):
            method, text = pickle.loads(calls.read(*_LENGTH.unpack(header)))  # noqa: S301 - from the collector
            outcome = attempt("EnvironmentFailed", getattr(engine, method), text)
            data = attempt("EnvironmentFailed", _framed, outcome)
            if isinstance(data, Failure):
                data = _framed(Failure(data.category, f"its state cannot be sent between processes: {data.message}"))
            connection.sendall(data)


def _engine(pickled: bytes) -> Engine:
    shared: SharedSource = pickle.loads(pickled)  # noqa: S301 - pickled by the parent process
    return shared.source.engine()
