"""Slots, which run engines: in the collector's thread, or in threads if they wait for other processes."""

from __future__ import annotations

import contextlib
import queue
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import methodcaller
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from hgpo_train.policies.base import Failure, attempt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_envs.engine import Engine, State
    from hgpo_train.rollout.branch_points import BranchPoint


class SlotResult(NamedTuple):
    """The result of a call of a slot's engine.

    Attributes:
        slot: Number of the slot.
        outcome: The new state, or the failure.
        seconds: Duration of the call.
    """

    slot: int
    outcome: State | Failure
    seconds: float


@dataclass(eq=False)
class Slots:
    """A fixed number of engines, each playing one task at a time; here in the collector's thread.

    Subclasses call them in threads, or in processes (`hgpo_train.rollout.workers.WorkerSlots`).

    Attributes:
        engines: The engine of each slot, for experts that inspect it between calls; None if it runs in another process.
        busy: Number of calls that are under way; 0 here, where a call has ended when it returns.
    """

    engines: list[Engine | None]
    busy: int = field(default=0, init=False)
    _ready: queue.SimpleQueue[SlotResult] = field(
        default_factory=queue.SimpleQueue, init=False
    )

    def call(self, slot: int, method: str, argument: str | BranchPoint) -> None:
        """Call a slot's engine, now or soon: ``start`` with a task id, or ``act`` with a command.

        ``start`` with a branch's point continues in its state.
        """
        began = perf_counter()
        engine: Any = self.engines[slot]
        outcome: Any
        if isinstance(argument, str):
            outcome = attempt(
                "EnvironmentFailed", methodcaller(method, argument), engine
            )
        else:
            outcome = attempt("EnvironmentFailed", argument.begin, engine)
            if not isinstance(outcome, Failure):
                self.engines[slot], outcome = outcome
        self._ready.put(SlotResult(slot, outcome, perf_counter() - began))

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """Return the results that are ready. Wait at most `timeout` seconds for the first one."""
        results: list[SlotResult] = []
        with contextlib.suppress(queue.Empty):
            if timeout > 0 and self.busy:
                results.append(self._ready.get(timeout=timeout))
            while True:
                results.append(self._ready.get_nowait())
        return results

    def close(self) -> None:
        """Release the resources of all slots, and end the calls that are under way."""


class ThreadSlots(Slots):
    """Slots whose engines wait for other processes (`hgpo_envs.engine.TaskSource`), each called in a thread.

    Engines may have the method ``close``, which ends a call that is under way.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        super().__init__(list(engines))
        self._threads = ThreadPoolExecutor(
            len(engines),
            "hgpo-engine",
            initializer=_leave_interrupts_to_the_main_thread,
        )

    def call(self, slot: int, method: str, argument: str | BranchPoint) -> None:
        """See `Slots`."""
        self.busy += 1
        self._threads.submit(super().call, slot, method, argument)

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """See `Slots`."""
        results = super().collect(timeout)
        self.busy -= len(results)
        return results

    def close(self) -> None:
        """See `Slots`."""
        # Calls that have begun end when their engine is closed; those that have not are cancelled.
        self._threads.shutdown(wait=False, cancel_futures=True)
        for engine in self.engines:
            if (close := getattr(engine, "close", None)) is not None:
                close()


def _leave_interrupts_to_the_main_thread() -> None:
    """Block Ctrl-C in a thread, and in the processes that it starts."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
