"""Engines in subprocesses, for environments that are slow, leak memory or may crash.

Each engine has its own process, so a crash costs one rollout. The process is replaced when its slot is used again.
Processes are spawned, not forked: a fork would copy the policy's threads and devices. Those that exceed their time
limit are killed.

No process outlives the collector. Linux kills it when its parent ends, even if it is stopped or hangs. Other systems
have no such call: there a process ends when it next reads its connection, whose other end is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import selectors
import signal
import sys
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_train.policies.base import Failure, attempt
from hgpo_train.rollout.slots import SlotResult, Slots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from hgpo_envs.engine import Engine
    from hgpo_envs.sources import SharedSource
    from hgpo_train.rollout.branch_points import BranchPoint, Replay

_SPAWN: Final = multiprocessing.get_context("spawn")
_PDEATHSIG: Final = 1
"""Linux's PR_SET_PDEATHSIG. The signal is sent when the thread that started the process ends."""
_CLOSING_S: Final = 10.0
"""The time in which the processes must have closed their task sources."""


@dataclass(eq=False, slots=True)
class _Worker:
    """The process of a slot.

    Attributes:
        slot: Number of the slot.
        process: The process.
        connection: The connection to it.
        limit_s: Maximum seconds for the present call. The first one includes the start of the process.
        called_at: Time of the present call; None if there is none.
    """

    slot: int
    process: SpawnProcess
    connection: Connection
    limit_s: float
    called_at: float | None = None


class WorkerSlots(Slots):
    """Slots whose engines run in one subprocess each.

    Args:
        shared: The task source. It is pickled, and opened again in each process.
        count: Number of slots.
        timeout_s: Maximum seconds for a start or a command; a process that takes longer is killed. It has three times
            as long, and a minute, for its first start, in which it imports packages and reads data.

    Raises:
        InputError: The task source cannot be pickled.
    """

    def __init__(
        self, shared: SharedSource, count: int, *, timeout_s: float = 300.0
    ) -> None:
        pickled = attempt("", ForkingPickler.dumps, shared)
        if isinstance(pickled, Failure):
            raise InputError(
                f"the environment cannot be sent to worker processes ({pickled.message}); remove --workers"
            )
        super().__init__([None] * count)
        self._pickled = bytes(pickled)
        self._timeout_s = timeout_s
        self._closes = hasattr(shared.source, "close")
        self._workers: dict[int, _Worker] = {}
        self._selector = selectors.DefaultSelector()

    def call(self, slot: int, method: str, argument: str | BranchPoint) -> None:
        """See `Slots`."""
        # A process that ended after its last rollout costs nobody anything: the next start gets a new one. During a
        # rollout a dead process stays, so that `collect` reports it.
        worker = self._workers.get(slot)
        if worker is not None and method == "start" and not worker.process.is_alive():
            self._discard(worker)
            worker = None
        if worker is None:
            worker = self._open(slot)
        worker.called_at = perf_counter()
        self.busy += 1
        sent: str | Replay
        if isinstance(argument, str):
            sent = argument
        else:
            sent = argument.replay()
            worker.limit_s += self._timeout_s * len(sent.actions)
        with contextlib.suppress(OSError):  # it has died, as `collect` finds out
            worker.connection.send((method, sent))

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """See `Slots`. Kill processes that exceed the time limit."""
        ready = {
            key.data.slot
            for key, _ in self._selector.select(timeout if self.busy else 0)
        }
        now = perf_counter()
        results = []
        for worker in list(self._workers.values()):
            # 1. Idle processes: only their end makes a connection readable.
            if worker.called_at is None:
                # it died after its last rollout, which is complete
                if worker.slot in ready:
                    self._discard(worker)
                continue
            # 2. A result, or a call that takes too long; the others are still at work.
            seconds = now - worker.called_at
            if worker.slot in ready:
                outcome = self._receive(worker)
            elif seconds > worker.limit_s:
                outcome = Failure(
                    "WorkerTimedOut",
                    f"no answer from the environment within {worker.limit_s:g} s",
                )
                self._discard(worker)
            else:
                continue
            worker.called_at = None
            worker.limit_s = self._timeout_s
            self.busy -= 1
            results.append(SlotResult(worker.slot, outcome, seconds))
        return results

    def close(self) -> None:
        """See `Slots`. A process may be stopped or hang, so it has little time to close its task source."""
        for worker in self._workers.values():
            if self._closes and worker.called_at is None:
                with contextlib.suppress(OSError):  # it has died
                    worker.connection.send(None)
            else:
                worker.process.kill()
        # All share one deadline, so that closing does not take longer with more processes.
        until = perf_counter() + _CLOSING_S
        for worker in self._workers.values():
            worker.process.join(timeout=max(0.0, until - perf_counter()))
        for worker in list(self._workers.values()):
            self._discard(worker)
        self._selector.close()

    def _open(self, slot: int) -> _Worker:
        """Start the process of a slot."""
        ours, theirs = _SPAWN.Pipe()
        with theirs:
            process = _SPAWN.Process(
                target=_serve,
                args=(self._pickled, theirs),
                name="hgpo-environment",
                daemon=True,
            )
            process.start()
        worker = self._workers[slot] = _Worker(
            slot,
            process,
            ours,
            3 * self._timeout_s + 60,
        )
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _discard(self, worker: _Worker) -> None:
        """End the process. The next call of its slot starts another."""
        del self._workers[worker.slot]
        self._selector.unregister(worker.connection)
        worker.connection.close()
        worker.process.kill()
        worker.process.join(timeout=1)

    def _receive(self, worker: _Worker) -> Any:  # noqa: ANN401 - whatever the engine returned
        """Return the result of the call, or a failure that says why the process ended."""
        try:
            data = worker.connection.recv_bytes()
        except (EOFError, OSError):
            worker.process.join(timeout=1)
            code = worker.process.exitcode
            self._discard(worker)
            if code is None:
                return Failure(
                    "WorkerDied", "the environment's process closed its connection"
                )
            cause = (
                f"signal {signal.Signals(-code).name}"
                if code < 0
                else f"exit code {code}"
            )
            return Failure(
                "WorkerDied", f"the environment's process ended with {cause}"
            )
        return attempt("WorkerDied", pickle.loads, data)


def _serve(pickled: bytes, connection: Connection) -> None:
    """Run a worker process: execute calls until the other end of the connection is closed."""
    # the collector handles Ctrl-C and ends its processes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        parent = multiprocessing.parent_process()
        # the parent ended before the call
        if parent is not None and os.getppid() != parent.pid:
            os._exit(1)
    with contextlib.suppress(OSError, EOFError), connection:
        # The source is opened at the first call, whose result can then say why it failed; the next call tries again.
        opened: tuple[SharedSource, Engine] | Failure | None = None
        while (call := connection.recv()) is not None:
            method, argument = call
            # the source could not be opened so far
            if opened is None or isinstance(opened, Failure):
                opened = attempt("EnvironmentFailed", _opened, pickled)
            outcome: Any = opened
            if not isinstance(opened, Failure):
                engine = opened[1]
                if isinstance(argument, str):
                    step = getattr(engine, method)
                    outcome = attempt("EnvironmentFailed", step, argument)
                else:
                    outcome = attempt("EnvironmentFailed", argument.play, engine)
            data = attempt("EnvironmentFailed", ForkingPickler.dumps, outcome)
            if isinstance(data, Failure):
                reason = f"its state cannot be sent between processes: {data.message}"
                data = ForkingPickler.dumps(Failure(data.category, reason))
            connection.send_bytes(data)
        if isinstance(opened, tuple):
            opened[0].close()


def _opened(pickled: bytes) -> tuple[SharedSource, Engine]:
    """Return the task source, which stays open as long as it is referred to, and its engine."""
    shared: SharedSource = pickle.loads(pickled)  # noqa: S301 - pickled by the parent process
    return shared, shared.source.engine()
