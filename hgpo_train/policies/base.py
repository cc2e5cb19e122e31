"""The protocol that every policy keeps, and two bases that most policies are made from.

A policy is a small event source: requests are handed in as they come, answers are taken out as they are ready, in any
order. So nothing ever waits for the slowest of a batch unless the policy itself works in batches.

- `BatchPolicy`: write `respond`, a list of requests to a list of replies. For scripted and in-process policies.
- `AsyncPolicy`: write `reply`, a coroutine for one request. For servers. It runs in an event loop of its own.
- Engines that batch continuously (vLLM) keep the protocol directly: `submit` adds requests, `collect` steps the engine.

A call that fails is a `Failure`, not an exception: it costs the trajectory that asked, and no other.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.engine import Engine, State, Task


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a policy: what to do at this step.

    Attributes:
        id: Names the request; unique in a run of the collector.
        prompt: What to read.
        seed: This step's own seed in [0, 2⁶³), from the run's seed, the task, the group, the member and the step: a
            policy that draws from nothing else is reproducible however many environments run at once.
        slot: Which environment asks; its requests come one after the other, step 0 begins a new trajectory.
        step: Position in the trajectory, from 0.
        task: What is being played.
        state: What the environment shows now, for scripted policies.
        engine: The engine that plays, for experts that look into it; None when it runs in another process.
        shorter: Renders the prompt with at most this many past pairs, for a policy whose budget the prompt exceeds.
    """

    id: int
    prompt: str
    seed: int
    slot: int
    step: int
    task: Task
    state: State
    engine: Engine | None
    shorter: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    Attributes:
        response: What the policy wrote.
        prompt: What it really read, when that is not the request's prompt (chat template, shorter history).
        prompt_token_ids: The prompt in the policy's tokens.
        response_token_ids: The response in the policy's tokens.
        response_logprobs: Log-probability of each response token, in nats.
        finish_reason: Why the response ends: ``stop``, or ``length`` when the limit cut it.
        cut_pairs: How many past pairs were left out of the prompt to keep its budget; None when it has none.
        cut_tokens: How many tokens were dropped from the prompt's beginning to keep it; None likewise.
    """

    response: str
    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    response_token_ids: Sequence[int] | None = None
    response_logprobs: Sequence[float] | None = None
    finish_reason: str = "stop"
    cut_pairs: int | None = None
    cut_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A call or a step that failed.

    Attributes:
        kind: Whose fault it is: ``PolicyFailed``, ``EnvironmentFailed``, ``WorkerDied``, ``WorkerTimedOut`` …
        line: What happened, in one line.
    """

    kind: str
    line: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.line}"

    @classmethod
    def of(cls, kind: str, error: BaseException) -> Failure:
        """The failure that an exception stands for."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return cls(kind, text[:500])


class Policy(Protocol):
    """What the collector asks of a policy."""

    name: str
    """What it is called in tables and reports."""

    reproducible: bool
    """Whether replies depend on requests alone; timings are then left out of the table, which is thus the same bytes
    however the run went."""

    version: int
    """Weight updates that the policy has seen; written into every row."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Takes requests in; returns at once or after little work."""
        ...

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Reply | Failure]]:
        """The replies that are ready, by request id; waits for the first one.

        Args:
            timeout: Seconds to wait at most; None waits until there is one. A policy that works in this thread may
                take longer, and works even when it is 0.
        """
        ...

    def close(self) -> None:
        """Frees what the policy holds."""
        ...


class BatchPolicy(ABC):
    """A policy that answers batches in the caller's thread.

    Attributes:
        batch_size: The most requests that `respond` is given at once; None for all that wait.
    """

    name: str = "policy"
    reproducible: bool = False
    version: int = 0
    batch_size: int | None = None

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()

    @abstractmethod
    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """One reply for each request, in their order."""

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Policy`."""
        self._waiting.extend(requests)

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Reply | Failure]]:
        """See `Policy`."""
        del timeout
        size = len(self._waiting) if self.batch_size is None else min(self.batch_size, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(size)]
        return list(zip((request.id for request in batch), self._answer(batch), strict=True)) if batch else []

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """See `Policy`."""

    def _answer(self, batch: Sequence[Request]) -> Sequence[Reply | Failure]:
        """The batch's replies; when the whole call fails, each request is asked again alone."""
        try:
            replies = self.respond(batch)
            if len(replies) != len(batch):
                raise RuntimeError(f"{len(batch)} requests, {len(replies)} replies")  # noqa: TRY301 - treated alike
        except Exception as error:  # noqa: BLE001 - whatever a policy raises is data
            if len(batch) == 1:
                return [Failure.of("PolicyFailed", error)]
            return [self._answer([request])[0] for request in batch]
        return replies


@dataclass
class _Loop:
    """An event loop in a thread of its own."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.loop.run_forever, name="hgpo-policy", daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=5)
        if not self.thread.is_alive():
            self.loop.close()


class AsyncPolicy(ABC):
    """A policy that answers each request by a coroutine of its own, many at a time.

    Args:
        concurrency: How many requests run at once; the others wait their turn.
    """

    name: str = "policy"
    reproducible: bool = False
    version: int = 0

    def __init__(self, concurrency: int = 128) -> None:
        self._ready: queue.SimpleQueue[tuple[int, Reply | Failure]] = queue.SimpleQueue()
        self._running = _Loop()
        self._gate = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()  # held, or they are collected as garbage

    @abstractmethod
    async def reply(self, request: Request) -> Reply | Failure:
        """The answer to one request. What it raises becomes a `Failure`."""

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Policy`."""
        self._running.loop.call_soon_threadsafe(self._begin, list(requests))

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Reply | Failure]]:
        """See `Policy`."""
        try:
            ready = [self._ready.get(timeout=timeout) if timeout != 0 else self._ready.get_nowait()]
        except queue.Empty:
            return []
        while not self._ready.empty():
            ready.append(self._ready.get())
        return ready

    def close(self) -> None:
        """Stops the event loop; requests that still run are dropped."""
        self._running.close()

    def _begin(self, requests: Sequence[Request]) -> None:
        for request in requests:
            task = self._running.loop.create_task(self._run(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, request: Request) -> None:
        async with self._gate:
            try:
                answer = await self.reply(request)
            except Exception as error:  # noqa: BLE001 - whatever a policy raises is data
                answer = Failure.of("PolicyFailed", error)
        self._ready.put((request.id, answer))
