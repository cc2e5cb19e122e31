"""Environments in subprocesses and threads: the same table, a crash aborts one trajectory, and closing is bounded."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from command import finished
from doors import DoorsSource
from refusals import refused

from hgpo_datasets import scan_steps, verify
from hgpo_envs.engine import State, Task
from hgpo_envs.episode import settings_for
from hgpo_envs.sources import SharedSource, Split
from hgpo_train.policies.base import Failure
from hgpo_train.rollout import collect, workers
from hgpo_train.rollout.env_handle import EnvHandle
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
from hgpo_train.rollout.slots import SlotResult, ThreadSlots
from hgpo_train.rollout.workers import WorkerSlots

SHIPPED = ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"]
SPEC = RolloutSpec(tasks=50, group_size=2, seed=3)


@pytest.mark.slow
def test_a_crash_at_any_step_aborts_only_its_trajectory(runs):
    """The engines of four tasks are killed, exit, raise, and return what cannot be pickled."""
    reasons = {
        (
            "train-1",
            0,
            "kill",
        ): "WorkerDied: the environment's process ended with signal SIGKILL",
        (
            "train-2",
            1,
            "exit",
        ): "WorkerDied: the environment's process ended with exit code 3",
        (
            "train-3",
            1,
            "raise",
        ): "EnvironmentFailed: RuntimeError: the house burns (task train-3)",
        (
            "train-4",
            1,
            "unpicklable",
        ): "EnvironmentFailed: its state cannot be sent between processes: ",
    }
    runs.collect("sound", spec=SPEC)
    handle = runs.handle("fragile:FragileSource", plan=tuple(reasons))
    tally = runs.collect(
        "run",
        handle=handle,
        spec=SPEC,
        execution=ExecutionOptions(slots=4, workers=True),
    )
    sound = runs.steps("sound")
    run = runs.steps("run")
    broken = run.filter("aborted")
    assert tally.aborted == len(broken) == 8
    for (task, step, _), reason in reasons.items():
        rows = broken.filter(task_id=task)
        assert rows["step"].to_list() == [max(0, step - 1)] * 2
        assert rows["error"].str.starts_with(reason).all()
    spared = ~pl.col("task_id").is_in([task for task, *_ in reasons])
    assert run.filter(spared).equals(sound.filter(spared))


@pytest.fixture
def slots(runs, monkeypatch):
    """Return two slots, and a clock that a test advances: no test waits for a time-out, and none occurs by chance."""
    ahead = [0.0]
    monkeypatch.setattr(workers, "perf_counter", lambda: time.perf_counter() + ahead[0])
    slots = WorkerSlots(
        runs.handle("fragile:FragileSource", plan=(("train-1", 1, "hang"),)).shared,
        2,
        timeout_s=3600,
    )
    slots.ahead = ahead
    yield slots
    slots.close()


def outcome(slots, slot, method, text):
    """Return what a call returns, as text if it is a state."""
    slots.call(slot, method, text)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for arrival in slots.collect(0.5):
            assert arrival.slot == slot
            return getattr(arrival.outcome, "text", arrival.outcome)
    raise AssertionError("nothing came back")


@pytest.mark.slow
def test_workers_that_hang_stop_or_die_are_replaced_and_block_no_other(slots):
    assert "You are in the hall" in outcome(slots, 0, "start", "train-1")
    slots.call(0, "act", "look")  # hangs
    assert "You are in the hall" in outcome(slots, 1, "start", "train-2")
    slots.ahead[0] += 3601
    (late,) = slots.collect(0)
    assert late.outcome == Failure(
        "WorkerTimedOut", "no answer from the environment within 3600 s"
    )
    assert "You are in the hall" in outcome(slots, 0, "start", "train-2")
    os.kill(slots._workers[0].process.pid, signal.SIGSTOP)
    slots.call(0, "act", "look")
    assert outcome(slots, 1, "act", "nonsense") == "Nothing happens."
    slots.ahead[0] += 3601
    assert slots.collect(0)[0].outcome.category == "WorkerTimedOut"
    os.kill(slots._workers[1].process.pid, signal.SIGKILL)
    ended = Failure("WorkerDied", "the environment's process ended with signal SIGKILL")
    assert outcome(slots, 1, "act", "look") == ended
    assert "You are in the hall" in outcome(slots, 1, "start", "train-3")
    # between two rollouts: it aborts neither
    os.kill(slots._workers[1].process.pid, signal.SIGKILL)
    slots._workers[1].process.join(30)
    assert "You are in the hall" in outcome(slots, 1, "start", "train-4")


@pytest.mark.slow
def test_closing_is_bounded_with_stopped_and_hanging_workers(slots):
    outcome(slots, 0, "start", "train-1")
    outcome(slots, 1, "start", "train-2")
    slots.call(0, "act", "look")  # hangs
    os.kill(slots._workers[1].process.pid, signal.SIGSTOP)
    slots.call(1, "act", "look")
    processes = [worker.process for worker in slots._workers.values()]
    began = time.monotonic()
    slots.close()
    assert time.monotonic() - began < 15  # it waits for no time-out of an engine
    for process in processes:
        process.join(30)
        assert process.exitcode == -signal.SIGKILL
    slots.__init__(SharedSource(DoorsSource()), 1)  # the fixture closes it once more


OUTLIVED = """
import sys, time
from hgpo_envs.sources import open_shared
from hgpo_train.rollout.workers import WorkerSlots

if __name__ == "__main__":
    shared = open_shared("fragile:FragileSource", count=9, plan=(("train-1", 1, "hang"),))
    slots = WorkerSlots(shared, 3)
    for slot, task in enumerate(("train-1", "train-2", "train-3")):
        slots.call(slot, "start", task)
    while slots.busy:
        slots.collect(0.5)
    slots.call(0, "act", "look")
    print(*[slots._workers[slot].process.pid for slot in range(3)], flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux ends processes with their parent"
)
def test_no_worker_outlives_a_killed_parent(tmp_path):
    """A worker that hangs in its engine, a stopped one and an idle one all end."""
    script = tmp_path / "script.py"
    script.write_text(OUTLIVED)
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        numbers = list(map(int, process.stdout.readline().split()))
        assert len(numbers) == 3
        os.kill(numbers[1], signal.SIGSTOP)
        assert all(map(alive, numbers))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    until = time.monotonic() + 60
    while any(map(alive, numbers)) and time.monotonic() < until:
        time.sleep(0.05)
    left = list(filter(alive, numbers))
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert left == []


def alive(number):
    """Return whether a process is running. An orphan that has ended may still exist as a zombie."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_source_that_cannot_be_pickled_is_refused_before_the_run():
    source = DoorsSource()
    source.lock = threading.Lock()
    with refused(r"cannot be sent to worker processes .*; remove --workers"):
        WorkerSlots(SharedSource(source), 1)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [*SHIPPED, "foreign:Foreign/Guess-v0"])
def test_the_command_plays_every_environment_in_workers(tmp_path, env_id):
    command = [
        "rollout",
        "--env",
        env_id,
        "--tasks",
        "3",
        "--group-size",
        "2",
        "--max-steps",
        "6",
    ]
    for name, more in (("there", ["--workers", "2"]), ("here", [])):
        code, out, error = finished(*command, "--out", tmp_path / name, *more)
        assert code == 0, out + error
        assert verify(tmp_path / name).ok
    order = ["trajectory", "step"]
    here, there = (
        scan_steps(tmp_path / name).drop("run").sort(order).collect()
        for name in ("here", "there")
    )
    assert there.equals(here)
    assert not there["aborted"].any()


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


def engines(source, count):
    return [source.engine() for _ in range(count)]


def collected(slots):
    found = {}
    until = time.monotonic() + 30
    while slots.busy and time.monotonic() < until:
        found |= {result.slot: result for result in slots.collect(1)}
    return found


def test_engines_wait_at_the_same_time():
    slots = ThreadSlots(engines(WaitingSource(together=3), 3))
    for slot in range(3):
        slots.call(slot, "start", f"t{slot}")
    found = collected(slots)
    assert {slot: result.outcome.text for slot, result in found.items()} == {
        n: f"started t{n}" for n in range(3)
    }
    assert slots.busy == 0
    assert not slots.collect(0)
    slots.close()


def test_an_engine_that_fails_or_waits_holds_up_no_other():
    slots = ThreadSlots(engines(WaitingSource(), 3))
    for slot, command in enumerate(["wait", "fail", "look"]):
        slots.call(slot, "act", command)
    found: dict[int, SlotResult] = {}
    while len(found) < 2:
        found |= {result.slot: result for result in slots.collect(30)}
    assert found[2].outcome == State("look", ())
    assert isinstance(found[1].outcome, Failure)
    assert (
        str(found[1].outcome) == "EnvironmentFailed: RuntimeError: the world has died"
    )
    assert slots.busy == 1
    slots.close()


def test_closing_ends_calls_that_wait():
    source = WaitingSource()
    slots = ThreadSlots(engines(source, 1))
    slots.call(0, "act", "wait")
    slots.close()
    assert source.engines[0].closed.is_set()
    assert [result.outcome.text for result in slots.collect(30)] == ["wait"]


@pytest.mark.parametrize("asked", [2, 200])
def test_rollouts_play_at_most_as_many_as_the_source_allows(asked, tmp_path):
    source = WaitingSource()
    shared = SharedSource(source)
    handle = EnvHandle(
        "Waiting-v0",
        shared,
        settings_for("Waiting", max_steps=2),
        Split(shared, "train"),
    )
    run = collect(
        handle,
        lambda _: "look",
        tmp_path / "run",
        tasks=2,
        group_size=4,
        slots=asked,
        progress=False,
    )
    assert run.summary["rollouts"] == 8
    assert run.summary["failed"] == 0
    assert len(source.engines) == min(asked, 3)
