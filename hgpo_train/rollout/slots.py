"""Slots, which run environments in this process or in subprocesses.

`LocalSlots` run engines in the collector's thread, `ThreadSlots` engines that wait for processes of their own, and
`hgpo_train.rollout.workers` engines in subprocesses.
"""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hgpo_train.policies.base import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.engine import Engine, State
    from hgpo_envs.sources import SharedSource
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


class Slots(Protocol):
    """A fixed number of engines, each playing one task at a time."""

    count: int
    """Number of slots."""

    @property
    def busy(self) -> int:
        """Number of starts and commands whose results have not been collected."""
        ...

    def engine(self, slot: int) -> Engine | None:
        """Return the slot's engine, for experts that inspect it; None if it runs in another process."""
        ...

    def start(self, slot: int, task_id: str) -> None:
        """Start a task. `collect` returns its first state."""
        ...

    def act(self, slot: int, command: str) -> None:
        """Execute a command. `collect` returns the next state."""
        ...

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """Return the results that are ready. Wait at most `timeout` seconds for the first one."""
        ...

    def close(self) -> None:
        """Release the resources of all slots."""
        ...


class LocalSlots:
    """Slots whose engines run in this process and share one task source.

    Args:
        shared: The task source.
        count: Number of slots.
    """

    def __init__(self, shared: SharedSource, count: int) -> None:
        self.count = count
        self._engines = [shared.source.engine() for _ in range(count)]
        self._arrived: deque[SlotResult] = deque()

    @property
    def busy(self) -> int:
        """See `Slots`."""
        return len(self._arrived)

    def engine(self, slot: int) -> Engine | None:
        """See `Slots`."""
        return self._engines[slot]

    def start(self, slot: int, task_id: str) -> None:
        """See `Slots`."""
        self._run(slot, self._engines[slot].start, task_id)

    def act(self, slot: int, command: str) -> None:
        """See `Slots`."""
        self._run(slot, self._engines[slot].act, command)

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """See `Slots`."""
        del timeout
        arrived = list(self._arrived)
        self._arrived.clear()
        return arrived

    def close(self) -> None:
        """See `Slots`."""
        self._engines.clear()

    def _run(self, slot: int, call: Callable[[str], State], text: str) -> None:
        began = perf_counter()
        outcome = attempt("EnvironmentFailed", call, text)
        self._arrived.append(SlotResult(slot, outcome, perf_counter() - began))


class ThreadSlots:
    """Slots whose engines wait for other processes (`hgpo_envs.engine.TaskSource`), each called in a thread.

    Args:
        shared: The task source.
        count: Number of slots.
    """

    def __init__(self, shared: SharedSource, count: int) -> None:
        self.count = count
        self.busy = 0
        self._engines = [shared.source.engine() for _ in range(count)]
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="hgpo-engine")
        self._done: queue.SimpleQueue[SlotResult] = queue.SimpleQueue()

    def engine(self, slot: int) -> Engine | None:
        """See `Slots`. The engine must not be used while the slot is busy."""
        return self._engines[slot]

    def start(self, slot: int, task_id: str) -> None:
        """See `Slots`."""
        self._submit(slot, self._engines[slot].start, task_id)

    def act(self, slot: int, command: str) -> None:
        """See `Slots`."""
        self._submit(slot, self._engines[slot].act, command)

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """See `Slots`."""
        arrived: list[SlotResult] = []
        with contextlib.suppress(queue.Empty):
            if self.busy:
                arrived.append(self._done.get(timeout=timeout) if timeout > 0 else self._done.get_nowait())
            while True:
                arrived.append(self._done.get_nowait())
        self.busy -= len(arrived)
        return arrived

    def close(self) -> None:
        """Close all engines, which ends the calls that are under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for engine in self._engines:
            close = getattr(engine, "close", None)
            if close is not None:
                close()
        self._engines.clear()

    def _submit(self, slot: int, call: Callable[[str], State], text: str) -> None:
        self.busy += 1
        self._threads.submit(self._run, slot, call, text)

    def _run(self, slot: int, call: Callable[[str], State], text: str) -> None:
        began = perf_counter()
        outcome = attempt("EnvironmentFailed", call, text)
        self._done.put(SlotResult(slot, outcome, perf_counter() - began))
