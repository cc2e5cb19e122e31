"""Where environments run. In this process: `LocalSlots`. In subprocesses that may die: `hgpo_train.rollout.workers`."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hgpo_train.policies.base import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.engine import Engine, State
    from hgpo_envs.sources import SharedSource
    from hgpo_train.policies.base import Failure


class SlotResult(NamedTuple):
    """The result of a reset or step in a slot.

    Attributes:
        slot: Which.
        outcome: The state that a start or a command led to, or why there is none.
        seconds: Time that the engine took.
    """

    slot: int
    outcome: State | Failure
    seconds: float


class Slots(Protocol):
    """A fixed number of engines, each playing one task at a time."""

    count: int
    """How many."""

    @property
    def busy(self) -> int:
        """How many starts and commands have not come back yet."""
        ...

    def engine(self, slot: int) -> Engine | None:
        """The slot's engine, for experts that look into it; None when it is in another process."""
        ...

    def start(self, slot: int, task_id: str) -> None:
        """Begins a task; the first state arrives by `collect`."""
        ...

    def act(self, slot: int, command: str) -> None:
        """Carries out a command; the next state arrives by `collect`."""
        ...

    def collect(self, timeout: float) -> Sequence[SlotResult]:
        """What has come back; waits at most `timeout` seconds for the first."""
        ...

    def close(self) -> None:
        """Frees what the slots hold."""
        ...


class LocalSlots:
    """Engines in this process, all over one task source.

    Args:
        shared: The task source.
        count: How many engines.
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
