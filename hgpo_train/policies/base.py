"""The policy protocol, and two base classes that implement most of it.

The collector submits requests as they arise and collects replies as they become ready, in any order. No request waits
for the slowest of a batch unless the policy itself works in batches.

- `BatchPolicy`, for scripted and in-process policies: implement `respond`, which maps requests to replies.
- `AsyncPolicy`, for servers: implement `reply`, a coroutine for one request.
- Engines with continuous batching (vLLM) implement the protocol: `submit` adds requests, `collect` steps the engine.

A call that fails returns a `Failure` instead of raising: it aborts the trajectory of its request and no other. Bugs in
a user's own policy (`hgpo_train.policies.registry`) are an exception: they end the collection and are raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.secrets import redact
from hgpo_train.policies.conversation import Turn, chat_messages

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State, Task
    from hgpo_envs.memory import Pair

T = TypeVar("T")

CLOSING_S: Final = 5.0
"""The maximum time that closing an `AsyncPolicy` takes, in seconds."""


@dataclass(slots=True)
class Request:
    """A request for the action of one step.

    Attributes:
        id: Identifier of the request, unique in a run of the collector.
        prompt: The prompt.
        seed: The step's seed in [0, 2⁶³), derived from the run's seed, the task, the group, the member and the step. A
            policy with no other source of randomness is reproducible for any number of environments.
        slot: The number of the environment. Its requests arrive one after the other; `is_first` starts a trajectory.
        step: Position in the trajectory, from 0.
        task: The task that is played.
        state: The environment's current state, for scripted policies.
        engine: The environment's engine, for experts that inspect it; None if it runs in another process.
        with_shorter_history: Renders the prompt with at most the given number of past steps, for a policy whose token
            budget the prompt exceeds.
        read_history: Returns the past pairs that the prompt shows, oldest first. Call it before the reply.
        tools: The tools that the response may call, as JSON schemas (`hgpo_envs.environment_spec`).
        system_prompt: The system message; none if empty.
        turns: The past turns of a conversation (`prompt_style="chat"`), of which the prompt is the next message.
        first_step: The step at which the policy took over: 0, or in a branch the first step after those of its parent.

    The most frequently used parts are also properties: `observation`, `admissible_actions`, `instruction`, `history`,
    `messages`, `is_first` and `rng`.
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
    read_history: Callable[[], Sequence[Pair]] = tuple
    tools: Sequence[Mapping[str, Any]] = ()
    system_prompt: str = ""
    turns: Sequence[Turn] = ()
    first_step: int = 0
    _rng: random.Random | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def is_first(self) -> bool:
        """Whether it is the first request of its trajectory."""
        return self.step == self.first_step

    @property
    def observation(self) -> str:
        """The environment's current observation, without the instruction and the history."""
        return self.state.text

    @property
    def admissible_actions(self) -> list[str]:
        """The admissible actions. An open query, such as WebShop's `search[<your query>]`, stands for any text."""
        return list(self.state.actions)

    @property
    def instruction(self) -> str:
        """The task's instruction."""
        return self.task.instruction

    @property
    def history(self) -> tuple[Pair, ...]:
        """The past pairs of observation and action that the prompt shows, oldest first. Valid until the reply."""
        return tuple(self.read_history())

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The prompt as the messages of a chat: one message of the user, or the conversation so far."""
        return chat_messages(self.system_prompt, self.turns, self.prompt, self.tools)

    @property
    def rng(self) -> random.Random:
        """A random generator with the step's seed, one per request. It makes a random policy reproducible."""
        if self._rng is None:
            self._rng = random.Random(self.seed)
        return self._rng


# not frozen: every step creates one, and a frozen one takes three times as long
@dataclass(slots=True)
class Reply:
    """The reply to one request.

    Attributes:
        response: The text that the policy generated.
        prompt: The prompt that the policy used, if it is not the request's (chat template, shorter history).
        prompt_token_ids: Token ids of the prompt.
        response_token_ids: Token ids of the response.
        response_logprobs: Log-probability of each response token, in nats.
        finish_reason: Why the response ends: ``stop``, or ``length`` if it was truncated; None if unknown.
        cut_pairs: Number of past steps left out of the prompt to fit the token budget; None without a budget.
        cut_tokens: Number of tokens dropped from the start of the prompt to fit the budget; None without a budget.
        prompt_tokens: Number of tokens of the prompt, as the server counted them; None if `prompt_token_ids` is the
            count, or if it is unknown.
        response_tokens: Number of tokens of the response, likewise.
        message: The assistant's message as a server sent it. The action is read from it
            (`hgpo_envs.responses.action_text`), and a conversation sends it back. None if `response` is all there is.
    """

    response: str
    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    response_token_ids: Sequence[int] | None = None
    response_logprobs: Sequence[float] | None = None
    finish_reason: str | None = "stop"
    cut_pairs: int | None = None
    cut_tokens: int | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    message: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call or step. Secrets (`hgpo_envs.files.secrets`) are removed from its texts.

    Attributes:
        category: What failed: ``PolicyFailed``, ``PolicyTimedOut``, ``EnvironmentFailed``, ``WorkerDied``,
            ``WorkerTimedOut`` …
        message: The error message, one line of at most 500 characters.
        error: The exception that was caught; None if the policy returned the failure itself.
    """

    category: str
    message: str
    error: BaseException | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, length in (("category", 50), ("message", 500)):
            text = getattr(self, name).encode("utf-8", "replace").decode()
            line = " ".join(redact(text).split())
            object.__setattr__(self, name, line[:length])

    def __str__(self) -> str:
        return f"{self.category}: {self.message}"

    def __reduce__(self) -> tuple[type[Failure], tuple[str, str]]:
        """Pickle the texts only: worker processes send failures, and some exceptions cannot be pickled."""
        return Failure, (self.category, self.message)

    @classmethod
    def of(cls, category: str, error: BaseException) -> Failure:
        """Create a failure that states an exception, for a policy that handles the exception itself."""
        return cls(category, f"{type(error).__name__}: {error}")


Answer: TypeAlias = str | Reply | Failure
"""What a policy answers to a request. A text is the response of a `Reply`."""


def attempt(
    category: str,
    call: Callable[..., T],
    *arguments: Any,
) -> T | Failure:
    """Call third-party code and return its result, or a `Failure` if it raises.

    `SystemExit`, `asyncio.CancelledError` and panics of extensions do not derive from `Exception`. They are caught as
    well: they concern one trajectory and must not end the run. `KeyboardInterrupt` is raised again.
    """
    try:
        return call(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - see above
        return Failure(category, f"{type(error).__name__}: {error}", error)


def is_bug(failure: Failure) -> bool:
    """Return whether a failure is an exception that is not transient.

    Transient are `ConnectionError` and `TimeoutError`, and exceptions of other types that one of them has caused, as
    those of HTTP clients.
    """
    error = failure.error
    if error is None:
        return False
    seen: set[int] = set()  # a chain of causes can be a ring
    while error is not None and id(error) not in seen:
        if isinstance(error, ConnectionError | TimeoutError):
            return False
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return True


class Policy(Protocol):
    """The protocol between the collector and a policy.

    Attributes:
        name: The policy's name in tables and reports.
        reproducible: Whether replies depend only on requests. Timings are then left out of the step table, so it is the
            same in every run.
        version: Number of weight updates that the policy has received; written to every row.
    """

    name: str = "policy"
    reproducible: bool = False
    version: int = 0

    def submit(self, requests: Sequence[Request]) -> None:
        """Add requests. Returns without waiting for replies."""
        ...

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Answer]]:
        """Return the replies that are ready, with their request ids. Wait for the first one.

        Args:
            timeout: Maximum seconds to wait; None waits until a reply is ready. A policy that computes in the caller's
                thread may take longer, and computes even if it is 0.
        """
        ...

    def close(self) -> None:
        """Release the policy's resources."""
        ...


class BatchPolicy(Policy):
    """A policy that replies to batches of requests in the caller's thread.

    Attributes:
        batch_size: Maximum number of requests per call of `respond`; None for all waiting ones.
        raise_errors: Whether an exception of the policy ends the collection and is raised, instead of failing the
            rollout (`is_bug`). None means True for a user's own policy, otherwise False.
    """

    raise_errors: bool | None = None
    batch_size: int | None = None

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()

    @abstractmethod
    def respond(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """Return one reply per request, in the order of the requests. A text is the response of a `Reply`."""

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Policy`."""
        self._waiting.extend(requests)

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Answer]]:
        """See `Policy`."""
        del timeout
        size = len(self._waiting)
        if self.batch_size is not None:
            size = min(size, self.batch_size)
        batch = [self._waiting.popleft() for _ in range(size)]
        if not batch:
            return []
        ids = [request.id for request in batch]
        return list(zip(ids, self._answer(batch), strict=True))

    def close(self) -> None:
        """See `Policy`."""

    def _answer(self, batch: Sequence[Request]) -> Sequence[Answer]:
        """Return the replies to a batch. If the call fails, retry each request alone, so that only the cause fails."""
        replies = attempt("PolicyFailed", self._respond, batch)
        if not isinstance(replies, Failure):
            return replies
        if len(batch) == 1 or (self.raise_errors and is_bug(replies)):
            return [replies] * len(batch)
        return [self._answer([request])[0] for request in batch]

    def _respond(self, batch: Sequence[Request]) -> Sequence[Answer]:
        result: object = self.respond(batch)
        iterable = isinstance(result, Iterable) and not isinstance(result, str | bytes)
        replies = list(result) if iterable else []  # type: ignore[call-overload]  # it is iterable
        if len(replies) != len(batch):
            received = (
                len(replies)
                if iterable
                else f"{type(result).__name__} {one_line(repr(result), 60)}"
            )
            raise InputError(
                f"policy {self.name}: expected `respond` to return a list of {len(batch)} replies, one per request, "
                f"received {received}"
            )
        return replies


class AsyncPolicy(Policy):
    """A policy that replies to each request with its own coroutine, many concurrently, in its own event loop.

    Args:
        concurrency: Maximum number of requests that run concurrently; the others wait.

    Attributes:
        loop: The event loop, which runs in its own thread.
        raise_errors: As of `BatchPolicy`.
    """

    raise_errors: bool | None = None

    def __init__(self, concurrency: int = 128) -> None:
        self._ready: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
        # A thread of its own: the collector steps environments in its thread while requests are under way.
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="hgpo-policy", daemon=True
        )
        self._thread.start()
        self._gate = asyncio.Semaphore(concurrency)
        # the loop keeps only weak references to tasks
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def reply(self, request: Request) -> Answer:
        """Return the reply to one request. An exception becomes a `Failure`."""

    async def release(self) -> None:
        """Release what the coroutines share, such as connections. Called once, in the event loop, by `close`."""

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Policy`."""
        self.loop.call_soon_threadsafe(self._begin, list(requests))

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Answer]]:
        """See `Policy`."""
        if not self._thread.is_alive() and self._ready.empty():
            raise RuntimeError("the policy's event loop has ended")
        try:
            first = (
                self._ready.get_nowait()
                if timeout == 0
                else self._ready.get(timeout=timeout)
            )
        except queue.Empty:
            return []
        ready = [first]
        while not self._ready.empty():
            ready.append(self._ready.get())
        return ready

    def close(self) -> None:
        """Cancel running requests and stop the event loop. Returns within `CLOSING_S`, even if a coroutine blocks."""
        if self.loop.is_closed():
            return
        # Coroutines are cancelled in their own thread, which is the only one that may touch them.
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self._end()))
            self._thread.join(CLOSING_S)
        # otherwise a coroutine blocks the thread, which ends with the process
        if not self._thread.is_alive():
            self.loop.close()

    def _begin(self, requests: Sequence[Request]) -> None:
        for request in requests:
            task = self.loop.create_task(self._run(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, request: Request) -> None:
        """Reply to one request. Every exception becomes a reply: the collector waits for each request."""
        answer: Answer
        try:
            async with self._gate:
                answer = await self.reply(request)
        except BaseException as error:  # noqa: BLE001 - SystemExit and CancelledError also concern one request
            answer = Failure("PolicyFailed", f"{type(error).__name__}: {error}", error)
        self._ready.put((request.id, answer))

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            # what is not released in time is released when the process ends
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSING_S / 2):
                    await asyncio.gather(*self._tasks, return_exceptions=True)
                    await self.release()
        finally:
            self.loop.stop()
