"""What a program does to its world or to its evaluation loses its episode; what happens to the server aborts it.

These tests replace the world by a stub, so that they run without AppWorld.
"""

from types import SimpleNamespace

import pytest

from hgpo_appworld.engine.engine import AppWorldEngine
from hgpo_appworld.engine.process import World, WorldFailed, WorldLost


class Stub:
    """A world whose programs run, and whose evaluation fails."""

    def execute(self, code: str) -> dict:
        if code == "exit":
            raise WorldLost("the world of a_1 ended with exit code 3")
        if code == "server":
            raise WorldFailed("the world of a_1 was lost")
        return {"output": "", "failed": False, "completed": code == "complete", "calls": []}

    def evaluate(self) -> dict:
        raise WorldLost("the evaluation of a_1 failed: too slow")

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def engine() -> AppWorldEngine:
    rules = SimpleNamespace(observation="output", max_steps=9, refuse=False, reward_scale="score")
    engine = AppWorldEngine(SimpleNamespace(rules=rules, limits=SimpleNamespace(longest=99)))
    engine._world = Stub()
    return engine


@pytest.mark.parametrize(("program", "reason"), [("exit", "ended with exit code 3"), ("complete", "too slow")])
def test_the_agents_doing_loses(engine: AppWorldEngine, program: str, reason: str) -> None:
    state = engine.act(program)
    assert (state.terminated, state.won, state.reward, state.score) == (True, False, 0.0, 0.0)
    assert reason in state.info["lost"]
    assert engine.act("print(1)") is state


def test_the_end_of_the_server_aborts(engine: AppWorldEngine) -> None:
    with pytest.raises(WorldFailed, match="was lost"):
        engine.act("server")


def test_whose_doing_it_is_depends_on_the_server() -> None:
    world = World.__new__(World)
    world._opened, world._server = True, SimpleNamespace(running=True)
    assert type(world._failure("x")) is WorldLost
    world._server.running = False
    assert type(world._failure("x")) is WorldFailed
    world._opened, world._server.running = False, True
    assert type(world._failure("x")) is WorldFailed  # it has not started yet
