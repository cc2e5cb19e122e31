"""Asynchronous policies: every request gets a reply whatever its coroutine does, and closing returns."""

import asyncio
import contextlib
import threading
import time

import pytest

from hgpo_envs.engine import State, Task
from hgpo_train.policies import base
from hgpo_train.policies.base import AsyncPolicy, BatchPolicy, Failure, Reply, Request, attempt


class Panic(BaseException):
    """A panic as extensions written in Rust raise it, which does not derive from `Exception`."""


RAISED = {
    "cancel": asyncio.CancelledError(),
    "exit": SystemExit(0),
    "panic": Panic("at the disco"),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
}


class Acting(AsyncPolicy):
    """A policy whose prompt selects its behaviour."""

    async def reply(self, request):
        if request.prompt in RAISED:
            raise RAISED[request.prompt]
        if request.prompt == "block":
            self.blocking.wait(60)
        if request.prompt == "cancel itself":
            asyncio.current_task().cancel()
        if request.prompt in ("wait", "cancel itself"):
            await asyncio.sleep(3600)
        while request.prompt == "refuse to end":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        return Reply(request.prompt)


def request(number: int, prompt: str) -> Request:
    task, state = Task("t", "train", "do it", "kind"), State("a room", ("look",), True, False, False, 0.0, 0.0, {})
    return Request(number, prompt, number, 0, 0, task, state, None, str)


def ask(policy, prompts: list[str]) -> list[Reply | Failure]:
    policy.submit([request(number, prompt) for number, prompt in enumerate(prompts)])
    found: dict[int, Reply | Failure] = {}
    until = time.monotonic() + 60
    while len(found) < len(prompts) and time.monotonic() < until:
        found |= dict(policy.collect(1.0))
    return [found[number] for number in range(len(prompts))]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_any_exception_of_a_coroutine_becomes_a_failure(concurrency):
    policy = Acting(concurrency)
    try:
        said = ask(policy, ["a", "cancel", "exit", "b", "panic", "cancel itself", "interrupt", "generator", "c"])
    finally:
        policy.close()
    lines = [answer.response if isinstance(answer, Reply) else answer.message.rstrip(": ") for answer in said]
    assert lines == [
        "a",
        "CancelledError",
        "SystemExit: 0",
        "b",
        "Panic: at the disco",
        "CancelledError",
        "KeyboardInterrupt",
        "GeneratorExit",
        "c",
    ]


@pytest.mark.parametrize("prompts", [[], ["wait"] * 300, ["refuse to end"], ["block"]])
def test_closing_is_bounded_with_running_coroutines(monkeypatch, prompts):
    monkeypatch.setattr(base, "CLOSING_S", 1.0)
    policy = Acting(concurrency=200)
    policy.blocking = threading.Event()
    policy.submit([request(number, prompt) for number, prompt in enumerate(prompts)])
    began = time.monotonic()
    policy.close()
    policy.close()
    assert time.monotonic() - began < 20  # two closings of a second each, on a busy machine
    policy.blocking.set()


def test_a_loop_that_has_ended_raises_instead_of_waiting():
    policy = Acting()
    policy.close()
    with pytest.raises(RuntimeError):
        policy.submit([request(0, "a")])
    with pytest.raises(RuntimeError, match="event loop has ended"):
        policy.collect(60.0)


class Raising(BatchPolicy):
    def respond(self, requests):
        if any(request.prompt == "exit" for request in requests):
            raise SystemExit(0)
        return (Reply(request.prompt) for request in requests)


def test_system_exit_in_a_batch_fails_only_its_request():
    assert ask(Raising(), ["a", "exit", "b"]) == [Reply("a"), Failure("PolicyFailed", "SystemExit: 0"), Reply("b")]


def test_attempt_raises_keyboard_interrupts():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt("PolicyFailed", interrupted)
    assert attempt("PolicyFailed", int, "3") == 3
