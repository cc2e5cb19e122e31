"""Requests as a rollout makes them, asking a policy for replies, and a policy that fails where a test says."""

import time
from collections.abc import Callable, Sequence

from hgpo_envs.engine import State, Task
from hgpo_train.policies.base import BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.scripted import RandomPolicy


def request(
    number: int = 0, prompt: str = "look around", *, seed: int | None = None, slot: int = 0, step: int = 0,
    actions: Sequence[str] = ("look",), instruction: str = "do it", shorter: Callable[[int], str] = str,
    tools: tuple[dict, ...] = (),
) -> Request:  # fmt: skip
    """Return a request of a trajectory with this seed, by default its number."""
    task = Task("t", "train", instruction, "kind")
    state = State("a room", actions, True, False, False, 0.0, 0.0, {})
    return Request(
        number,
        prompt,
        number if seed is None else seed,
        slot,
        step,
        task,
        state,
        None,
        shorter,
        tools=tools,
    )


def ask(policy: object, requests: Sequence[Request]) -> list[Reply | Failure]:
    """Return a policy's answer to each request."""
    policy.submit(requests)
    found: dict[int, Reply | Failure] = {}
    until = time.monotonic() + 60
    while len(found) < len(requests) and time.monotonic() < until:
        found |= dict(policy.collect(1.0))
    return [found[request.id] for request in requests]


class Failing(BatchPolicy):
    """Random play that fails where `fails(request)` returns a reason, and raises what it returns as an exception."""

    name = "failing"
    reproducible = True

    def __init__(
        self,
        fails: Callable[[Request], object] = lambda _: None,
        batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.fails = fails
        self.batch_size = batch_size
        self.asked = 0
        self._play = RandomPolicy("response")

    def respond(self, requests: Sequence[Request]) -> list[Reply | Failure]:
        self.asked += len(requests)
        return [self._reply_to(request, self.fails(request)) for request in requests]

    def _reply_to(self, request: Request, failure: object) -> Reply | Failure:
        if isinstance(failure, Exception):
            raise failure
        return (
            Failure("PolicyFailed", str(failure))
            if failure
            else self._play.respond([request])[0]
        )
