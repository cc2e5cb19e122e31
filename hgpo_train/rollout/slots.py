"""Slots, which run engines: in the collector's thread, or in threads if they wait for other processes."""

from __future__ import annotations

import contextlib
import queue
import signal
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from hgpo_train.policies.base import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.engine import Engine, State
    from hgpo_train.policies.base import Failure


class SlotResult(NamedTuple):
    """The result of a start or a command in a slot.

    Attributes:
        slot: Number of the slot.
        outcome: The new state, or the failure.
        seconds: Duration of the call of the engine.
    """

    slot: int
    outcome: State | Failure
    seconds: float


class Slots(ABC):
    """A fixed number of engines, each playing one task at a time.

    Args:
        engines: One engine per slot.

    Attributes:
        count: Number of slots.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.count = len(engines)
        self._engines = list(engines)

    @property
    @abstractmethod
    def busy(self) -> int:
        """Number of starts and commands whose results have not been collected."""

    def engine(self, slot: int) -> Engine | None:
        """Return the slot's engine, for experts that inspect it; None if it runs in another process.

        It must not be used while the slot is busy.
        """
        return self._engines[slot]

    def start(self, slot: int, task_id: str) -> None:
        """Start a task. `collect` returns its first state."""
        self._call(slot, self._engines[slot].start, task_id)

    def act(self, slot: int, command: str) -> None:
        """Execute a command. `collect` returns the next state."""
        self._call(slot, self._engines[slot].act, command)

    @abstractmethod
    def _call(self, slot: int, method: Callable[[str], State], text: str) -> None:
        """Call an engine, now or soon."""

    @abstractmethod
    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """Return the results that are ready. Wait at most `timeout` seconds for the first one."""

    def close(self) -> None:
        """Release the resources of all slots, and end the calls that are under way."""
        self._engines.clear()


class LocalSlots(Slots):
    """Slots whose engines run in the collector's thread."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        super().__init__(engines)
        self._arrived: list[SlotResult] = []

    @property
    def busy(self) -> int:
        """See `Slots`."""
        return len(self._arrived)

    def _call(self, slot: int, method: Callable[[str], State], text: str) -> None:
        self._arrived.append(_result(slot, method, text))

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """See `Slots`."""
        del timeout
        arrived, self._arrived = self._arrived, []
        return arrived


class ThreadSlots(Slots):
    """Slots whose engines wait for other processes (`hgpo_envs.engine.TaskSource`), each called in a thread.

    Engines may have the method ``close``, which ends a call that is under way.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        super().__init__(engines)
        self._threads = ThreadPoolExecutor(self.count, "hgpo-engine", initializer=_leave_interrupts_to_the_main_thread)
        self._open: dict[int, int] = {}  # slot → number of its open call
        self._calls = 0
        self._done: queue.SimpleQueue[tuple[int, SlotResult]] = queue.SimpleQueue()

    @property
    def busy(self) -> int:
        """See `Slots`."""
        return len(self._open)

    def _call(self, slot: int, method: Callable[[str], State], text: str) -> None:
        self._calls += 1
        number = self._open[slot] = self._calls
        self._threads.submit(lambda: self._done.put((number, _result(slot, method, text))))

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """See `Slots`."""
        arrived: list[SlotResult] = []
        wait = timeout > 0 and bool(self._open)
        with contextlib.suppress(queue.Empty):
            while True:
                number, result = self._done.get(timeout=timeout) if wait else self._done.get_nowait()
                wait = False
                if self._open.get(result.slot) == number:  # otherwise it has timed out
                    del self._open[result.slot]
                    arrived.append(result)
        return arrived

    def close(self) -> None:
        """See `Slots`."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for engine in self._engines:
            if (close := getattr(engine, "close", None)) is not None:
                close()


def _result(slot: int, method: Callable[[str], State], text: str) -> SlotResult:
    began = perf_counter()
    outcome = attempt("EnvironmentFailed", method, text)
    return SlotResult(slot, outcome, perf_counter() - began)


def _leave_interrupts_to_the_main_thread() -> None:
    """Block Ctrl-C in a thread, and in the processes that it starts."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
