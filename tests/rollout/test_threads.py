"""Slots of engines that wait for other processes: they play at the same time, fail alone, and close at once."""

import threading
import time
from pathlib import Path

import pytest

from hgpo_envs.engine import State, Task
from hgpo_envs.sources import SharedSource
from hgpo_train.policies.base import Failure
from hgpo_train.rollout.env_handle import EnvHandle
from hgpo_train.rollout.slots import SlotResult, ThreadSlots


class WaitingEngine:
    """Each start waits until `together` engines have been started; `act("wait")` waits until `close`."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier
        self.closed = threading.Event()

    def start(self, task_id: str) -> State:
        self._barrier.wait(30)
        return State(f"started {task_id}", ())

    def act(self, command: str) -> State:
        if command == "fail":
            raise RuntimeError("the world has died")
        if command == "wait":
            self.closed.wait(30)
        return State(command, ())

    def close(self) -> None:
        self.closed.set()


class WaitingSource:
    name = "Waiting"
    concurrent = 3

    def __init__(self, together: int = 1) -> None:
        self._barrier = threading.Barrier(together)
        self.engines: list[WaitingEngine] = []

    def ids(self, split: str) -> list[str]:
        return ["a", "b"]

    def task(self, task_id: str) -> Task:
        return Task(task_id, "train", "wait", "kind")

    def engine(self) -> WaitingEngine:
        self.engines.append(WaitingEngine(self._barrier))
        return self.engines[-1]


def engines(source: WaitingSource, count: int) -> list[WaitingEngine]:
    return [source.engine() for _ in range(count)]


def collected(slots: ThreadSlots) -> dict[int, SlotResult]:
    found = {}
    until = time.monotonic() + 30
    while slots.busy and time.monotonic() < until:
        found |= {result.slot: result for result in slots.collect(1)}
    return found


def test_engines_wait_at_the_same_time() -> None:
    slots = ThreadSlots(engines(WaitingSource(together=3), 3))
    for slot in range(3):
        slots.call(slot, "start", f"t{slot}")
    found = collected(slots)
    assert {slot: result.outcome.text for slot, result in found.items()} == {n: f"started t{n}" for n in range(3)}
    assert slots.busy == 0
    assert not slots.collect(0)
    slots.close()


def test_an_engine_that_fails_or_waits_holds_up_no_other() -> None:
    slots = ThreadSlots(engines(WaitingSource(), 3))
    for slot, command in enumerate(["wait", "fail", "look"]):
        slots.call(slot, "act", command)
    found: dict[int, SlotResult] = {}
    while len(found) < 2:
        found |= {result.slot: result for result in slots.collect(30)}
    assert found[2].outcome == State("look", ())
    assert isinstance(found[1].outcome, Failure)
    assert str(found[1].outcome) == "EnvironmentFailed: RuntimeError: the world has died"
    assert slots.busy == 1
    slots.close()


def test_closing_ends_calls_that_wait() -> None:
    source = WaitingSource()
    slots = ThreadSlots(engines(source, 1))
    slots.call(0, "act", "wait")
    slots.close()
    assert source.engines[0].closed.is_set()
    assert [result.outcome.text for result in slots.collect(30)] == ["wait"]


@pytest.mark.parametrize("asked", [2, 200])
def test_rollouts_play_at_most_as_many_as_the_source_allows(asked: int, tmp_path: Path) -> None:
    from hgpo_envs.episode import settings_for
    from hgpo_envs.sources import Split
    from hgpo_train.rollout import collect

    source = WaitingSource()
    shared = SharedSource(source)
    handle = EnvHandle("Waiting-v0", shared, settings_for("Waiting", max_steps=2), Split(shared, "train"))
    run = collect(handle, lambda _: "look", tmp_path / "run", tasks=2, group_size=4, slots=asked, progress=False)
    assert run.summary["rollouts"] == 8
    assert run.summary["failed"] == 0
    assert len(source.engines) == min(asked, 3)
