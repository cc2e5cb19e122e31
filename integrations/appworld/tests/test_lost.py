"""What a program does to its world or to its evaluation loses its episode; what happens to the server aborts it.

These tests replace the world by a stub, so that they run without AppWorld.
"""

import contextlib
import json
import socket
import threading
from types import SimpleNamespace

import pytest

from hgpo_appworld.engine.answers import Evaluated, Executed
from hgpo_appworld.engine.engine import AppWorldEngine
from hgpo_appworld.engine.process import Limits, World, WorldFailed, WorldLost


class Stub:
    """A world whose programs run, and whose evaluation fails."""

    def execute(self, code: str) -> Executed:
        if code == "exit":
            raise WorldLost("the world of a_1 ended with exit code 3")
        if code == "server":
            raise WorldFailed("the world of a_1 was lost")
        return Executed(
            "", failed=False, completed=code == "complete", calls={}, api_calls=0
        )

    def evaluate(self) -> Evaluated:
        raise WorldLost("the evaluation of a_1 failed: too slow")

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def engine() -> AppWorldEngine:
    rules = SimpleNamespace(
        observation="output", max_steps=9, refuse=False, reward_scale="score"
    )
    engine = AppWorldEngine(
        SimpleNamespace(rules=rules, limits=SimpleNamespace(longest=99))
    )
    engine._world = Stub()
    return engine


@pytest.mark.parametrize(
    ("program", "reason"),
    [("exit", "ended with exit code 3"), ("complete", "too slow")],
)
def test_the_agents_doing_loses(
    engine: AppWorldEngine, program: str, reason: str
) -> None:
    state = engine.act(program)
    assert (state.terminated, state.won, state.reward, state.score) == (
        True,
        False,
        0.0,
        0.0,
    )
    assert reason in state.info["lost"]
    assert engine.act("print(1)") is state


def test_the_end_of_the_server_aborts(engine: AppWorldEngine) -> None:
    with pytest.raises(WorldFailed, match="was lost"):
        engine.act("server")


def test_whose_doing_it_is_depends_on_the_server() -> None:
    world = World.__new__(World)
    world._opened = True
    world._server = SimpleNamespace(running=True)
    assert type(world._failure("x")) is WorldLost
    world._server.running = False
    assert type(world._failure("x")) is WorldFailed
    world._opened = False
    world._server.running = True
    assert type(world._failure("x")) is WorldFailed  # it has not started yet


EXECUTED = {
    "is": "executed",
    "output": "x",
    "failed": False,
    "completed": False,
    "calls": {},
    "api_calls": 0,
}


def answered(data: bytes, longest: int = 1_000) -> Executed:
    """Return what a world of which a program has written the answer is said to have done."""
    ours, theirs = socket.socketpair()
    world = World.__new__(World)
    world._connection = ours
    world._limits = Limits(seconds=1, longest=longest)
    world._task = "a_1"
    world._server = SimpleNamespace(running=True, end=lambda *_: None)
    world._number = 0
    world._opened = True
    world.close = ours.close

    def answer() -> None:
        with theirs:
            theirs.recv(1 << 16)
            with contextlib.suppress(OSError):  # it may be too long to be read
                theirs.sendall(len(data).to_bytes(4, "big") + data)

    writer = threading.Thread(target=answer)
    writer.start()
    try:
        return world.execute("x = 1")
    finally:
        ours.close()
        writer.join()


def test_an_answer_within_its_limits_is_believed() -> None:
    output = "\U0001f600" * 1_000
    executed = answered(
        json.dumps(
            {**EXECUTED, "output": output, "calls": {"GET /x": 2}, "api_calls": 2}
        ).encode()
    )
    assert (executed.output, executed.calls, executed.api_calls) == (
        output,
        {"GET /x": 2},
        2,
    )


@pytest.mark.parametrize(
    "answer",
    [
        {**EXECUTED, "output": "x" * 15_700_000},
        {**EXECUTED, "output": "x" * 1_101},
        {**EXECUTED, "output": 3},
        {**EXECUTED, "calls": ["GET /x"] * 4_000_000},
        {**EXECUTED, "calls": {f"GET /{number}": 1 for number in range(200)}},
        {**EXECUTED, "calls": {"GET /x": -1}},
        {**EXECUTED, "calls": {"GET /x": 10**30}},
        {**EXECUTED, "api_calls": 4_000_000},
        {**EXECUTED, "api_calls": True},
        {**EXECUTED, "completed": "no"},
        {**EXECUTED, "completed": 1},
        {**EXECUTED, "failed": None},
        {"is": "executed", "output": "x"},
        {
            "is": "evaluated",
            "success": True,
            "passed": 9,
            "tests": 9,
            "failed_tests": [],
        },
        {"is": "ready"},
        {"is": "failed", "error": "x" * 100_000},
        {"is": "failed", "error": ["x"]},
        [],
        7,
    ],
    ids=lambda answer: str(answer)[:60].replace("/", " "),
)
def test_an_answer_that_is_none_loses(answer: object) -> None:
    with pytest.raises(WorldLost) as error:
        answered(json.dumps(answer).encode())
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{]",
        b"\xff\xff",
        b"[" * 300_000,
        b'{"is": "executed", "x": ' + b"[" * 300_000,
        b'{"is": "\\ud800"}',
    ],
    ids=["empty", "no JSON", "no UTF-8", "nested", "nested in an answer", "surrogate"],
)
def test_bytes_that_are_no_answer_lose(data: bytes) -> None:
    with pytest.raises(WorldLost):
        answered(data)
