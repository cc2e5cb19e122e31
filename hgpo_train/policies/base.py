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
import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from hgpo_envs.secrets import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.engine import Engine, State, Task
    from hgpo_train.models.hf import Model
    from hgpo_train.policies.generation import GenerationOptions

T = TypeVar("T")

CLOSING_S: Final = 5.0
"""The longest that closing an `AsyncPolicy` takes."""


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
        with_shorter_history: Renders the prompt with at most this many past pairs, for a policy whose budget the prompt
            exceeds.
    """

    id: int
    prompt: str
    seed: int
    slot: int
    step: int
    task: Task
    state: State
    engine: Engine | None
    with_shorter_history: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    Attributes:
        response: What the policy wrote.
        prompt: What it really read, when that is not the request's prompt (chat template, shorter history).
        prompt_token_ids: The prompt in the policy's tokens.
        response_token_ids: The response in the policy's tokens.
        response_logprobs: Log-probability of each response token, in nats.
        finish_reason: Why the response ends: ``stop``, or ``length`` when the limit cut it; None when unknown.
        cut_pairs: How many past pairs were left out of the prompt to keep its budget; None when it has none.
        cut_tokens: How many tokens were dropped from the prompt's beginning to keep it; None likewise.
    """

    response: str
    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    response_token_ids: Sequence[int] | None = None
    response_logprobs: Sequence[float] | None = None
    finish_reason: str | None = "stop"
    cut_pairs: int | None = None
    cut_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A call or a step that failed. Secrets (`hgpo_envs.secrets`) are removed from what it says.

    Attributes:
        kind: Whose fault it is: ``PolicyFailed``, ``PolicyTimedOut``, ``EnvironmentFailed``, ``WorkerDied``,
            ``WorkerTimedOut``, ``RowsRefused`` …
        line: What happened, in one line of at most 500 characters.
    """

    kind: str
    line: str

    def __post_init__(self) -> None:
        for name, most in (("kind", 50), ("line", 500)):
            text = getattr(self, name).encode("utf-8", "replace").decode()
            object.__setattr__(self, name, " ".join(redact(text).split())[:most])

    def __str__(self) -> str:
        return f"{self.kind}: {self.line}"

    @classmethod
    def of(cls, kind: str, error: BaseException) -> Failure:
        """The failure that an exception stands for."""
        return cls(kind, f"{type(error).__name__}: {error}")


def attempt(kind: str, call: Callable[..., T], *arguments: Any) -> T | Failure:
    """What a call of foreign code returns, or the failure that it raised.

    `SystemExit`, `asyncio.CancelledError` and the panics of extensions are no `Exception`; they too concern one
    trajectory and must not end the run. `KeyboardInterrupt` is the user's and is raised.
    """
    try:
        return call(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - see above
        return Failure.of(kind, error)


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


class TrainablePolicy(Policy, Protocol):
    """A policy whose weights can be replaced.

    Attributes:
        options: How prompts are read and responses drawn; may be replaced between calls.
    """

    options: GenerationOptions

    def publish(self, model: Model, version: int) -> None:
        """Takes the weights as they are now; whatever was cached under the old ones is forgotten.

        Args:
            model: The model that is trained.
            version: Written into the rows from here on.
        """
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
        replies = attempt("PolicyFailed", self._respond, batch)
        if not isinstance(replies, Failure):
            return replies
        return [replies] if len(batch) == 1 else [self._answer([request])[0] for request in batch]

    def _respond(self, batch: Sequence[Request]) -> Sequence[Reply | Failure]:
        replies = list(self.respond(batch))
        if len(replies) != len(batch):
            raise RuntimeError(f"{len(batch)} requests, {len(replies)} replies")
        return replies


class AsyncPolicy(ABC):
    """A policy that answers each request by a coroutine of its own, many at a time.

    Args:
        concurrency: How many requests run at once; the others wait their turn.

    Attributes:
        loop: The event loop, in a thread of its own.
        deadline_s: Seconds that `reply` may take; a request that takes longer is a ``PolicyTimedOut``. None for none.
    """

    name: str = "policy"
    reproducible: bool = False
    version: int = 0
    deadline_s: float | None = None

    def __init__(self, concurrency: int = 128) -> None:
        self._ready: queue.SimpleQueue[tuple[int, Reply | Failure]] = queue.SimpleQueue()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="hgpo-policy", daemon=True)
        self._thread.start()
        self._gate = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()  # held, or they are collected as garbage

    @abstractmethod
    async def reply(self, request: Request) -> Reply | Failure:
        """The answer to one request. What it raises becomes a `Failure`."""

    async def release(self) -> None:  # noqa: B027 - most hold nothing
        """Frees what the coroutines share (connections); called once, in the event loop, when the policy is closed."""

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Policy`."""
        self.loop.call_soon_threadsafe(self._begin, list(requests))

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Reply | Failure]]:
        """See `Policy`."""
        if not self._thread.is_alive() and self._ready.empty():
            raise RuntimeError("the policy's event loop has ended")
        try:
            ready = [self._ready.get(timeout=timeout) if timeout != 0 else self._ready.get_nowait()]
        except queue.Empty:
            return []
        while not self._ready.empty():
            ready.append(self._ready.get())
        return ready

    def close(self) -> None:
        """Cancels what still runs and ends the event loop; returns within `CLOSING_S`, whatever the coroutines do."""
        if self.loop.is_closed():
            return
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self._end()))
            self._thread.join(CLOSING_S)
        if not self._thread.is_alive():  # else a coroutine blocks the thread: it ends with the process
            self.loop.close()

    def _begin(self, requests: Sequence[Request]) -> None:
        for request in requests:
            task = self.loop.create_task(self._run(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, request: Request) -> None:
        """Answers one request, whatever happens: a request without an answer would be waited for."""
        answer: Reply | Failure
        try:
            async with self._gate:
                answer = await self._bounded(request)
        except BaseException as error:  # noqa: BLE001 - SystemExit and CancelledError, too, concern one request
            answer = Failure.of("PolicyFailed", error)
        self._ready.put((request.id, answer))

    async def _bounded(self, request: Request) -> Reply | Failure:
        deadline = asyncio.timeout(self.deadline_s)
        try:
            async with deadline:
                return await self.reply(request)
        except TimeoutError as error:
            if not deadline.expired():
                return Failure.of("PolicyFailed", error)
            return Failure("PolicyTimedOut", f"no answer within {self.deadline_s:g} s")

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            with contextlib.suppress(Exception):  # what cannot be freed in time is freed with the process
                async with asyncio.timeout(CLOSING_S / 2):
                    await asyncio.gather(*self._tasks, return_exceptions=True)
                    await self.release()
        finally:
            self.loop.stop()
