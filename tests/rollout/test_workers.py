"""Environments in subprocesses: the same table, and a crash aborts one trajectory."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from doors import DoorsSource

from hgpo_envs.errors import InputError
from hgpo_envs.sources import share
from hgpo_train.policies.base import AsyncPolicy, Failure
from hgpo_train.policies.scripted import RandomPolicy
from hgpo_train.rollout import workers
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec
from hgpo_train.rollout.workers import WorkerSlots

pytestmark = pytest.mark.slow
WHAT = RolloutSpec(tasks=8, group_size=2, seed=3)


def test_the_same_rows_as_in_process(runs):
    runs.collect("here", spec=WHAT)
    runs.collect("there", spec=WHAT, execution=ExecutionOptions(slots=4, workers=True))
    assert runs.content("there") == runs.content("here")


@pytest.mark.parametrize("how", ["kill", "exit", "raise"])
def test_a_crash_at_any_step_aborts_only_its_trajectory(runs, how):
    runs.collect("sound", spec=WHAT)
    sound = runs.steps("sound")
    tasks = sound["task_id"].unique(maintain_order=True).to_list()
    plan = tuple((task, step, how) for step, task in enumerate(tasks[:4]))
    tally = runs.collect(
        "fragile",
        handle=runs.handle("fragile:FragileSource", plan=plan),
        spec=WHAT,
        execution=ExecutionOptions(slots=4, workers=True),
    )
    fragile = runs.steps("fragile")
    spared = ~pl.col("task_id").is_in(tasks[:4])
    assert fragile.filter(spared).equals(sound.filter(spared))
    broken = fragile.filter("aborted")
    lengths = sound.group_by("trajectory").len()
    reached = sound.filter(pl.col("step") == 0).join(lengths, on="trajectory")
    due = {task: step for task, step, _ in plan}
    expected = [row["trajectory"] for row in reached.iter_rows(named=True) if row["len"] >= due.get(row["task_id"], 99)]
    assert sorted(broken["trajectory"]) == sorted(expected)
    assert tally.aborted == len(expected) >= 4
    lines = {"kill": "WorkerDied: the environment's process ended with signal SIGKILL", "exit": "exit code 3"}
    assert all(lines.get(how, "EnvironmentFailed: RuntimeError: the house burns") in line for line in broken["error"])


class Clock:
    """Real time plus an offset that a test adds, so no test waits for a time-out and none occurs by chance."""

    def __init__(self, monkeypatch) -> None:
        self.ahead = 0.0
        monkeypatch.setattr(workers, "perf_counter", lambda: time.perf_counter() + self.ahead)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def test_a_worker_that_hangs_is_killed(runs, clock):
    handle = runs.handle("fragile:FragileSource", plan=(("train-1", 1, "hang"),))
    slots = WorkerSlots(handle.shared, 1, timeout_s=3600.0)
    try:
        slots.call(0, "start", "train-1")
        wait_for(slots)
        slots.call(0, "act", "look")
        assert slots.collect(0) == []
        clock.ahead += 3601
        (arrival,) = slots.collect(0)
        assert arrival.outcome == Failure("WorkerTimedOut", "no answer from the environment within 3600 s")
        slots.call(0, "start", "train-2")
        assert "You are in the hall" in wait_for(slots).outcome.text
    finally:
        slots.close()


@pytest.mark.parametrize("size", [10, 5_000_000])
def test_a_stopped_worker_blocks_no_other_with_commands_of_any_length(runs, clock, size):
    slots = WorkerSlots(runs.handle().shared, 2, timeout_s=3600.0)
    try:
        slots.call(0, "start", "train-1")
        wait_for(slots)
        os.kill(slots._workers[0].process.pid, signal.SIGSTOP)
        slots.call(0, "act", "look" + " " * size)
        slots.call(1, "start", "train-2")
        assert wait_for(slots).slot == 1  # the other slot plays on
        clock.ahead += 3601
        (arrival,) = slots.collect(0)
        assert (arrival.slot, arrival.outcome.category) == (0, "WorkerTimedOut")
        slots.call(0, "start", "train-1")
        assert "You are in the hall" in wait_for(slots).outcome.text
    finally:
        slots.close()


def test_closing_is_bounded_with_stopped_and_hanging_workers(runs):
    handle = runs.handle("fragile:FragileSource", plan=(("train-1", 0, "hang"),))
    slots = WorkerSlots(handle.shared, 3)
    for slot, task in enumerate(["train-1", "train-2", "train-3"]):
        slots.call(slot, "start", task)
    while slots.busy > 1:
        slots.collect(0.5)
    os.kill(slots._workers[1].process.pid, signal.SIGSTOP)
    slots.call(1, "act", "look" + " " * 5_000_000)
    processes = [engine.process for engine in slots._workers]
    began = time.monotonic()
    slots.close()
    assert time.monotonic() - began < 15  # it waits for no time-out of an engine
    for process in processes:
        process.join(30)
        assert process.exitcode == -signal.SIGKILL


def test_an_environment_that_cannot_open_reports_the_reason(runs):
    slots = WorkerSlots(runs.handle("fragile:ClosedSource", count=3).shared, 1)
    try:
        slots.call(0, "start", "train-1")
        assert wait_for(slots).outcome == Failure("EnvironmentFailed", "RuntimeError: the house is closed")
    finally:
        slots.close()


def test_a_state_that_cannot_be_pickled_aborts_only_its_trajectory(runs):
    tally = runs.collect(
        "run",
        handle=runs.handle("fragile:FragileSource", plan=(("train-1", 1, "unpicklable"),)),
        spec=RolloutSpec(tasks=50, group_size=1, seed=3),
        execution=ExecutionOptions(slots=2, workers=True),
    )
    broken = runs.steps("run").filter("aborted")
    assert tally.aborted == 1
    assert broken["task_id"].to_list() == ["train-1"]
    assert broken["error"][0].startswith("EnvironmentFailed: its state cannot be sent between processes: ")


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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parent")
def test_no_worker_outlives_a_killed_parent(tmp_path):
    """A worker that hangs in its engine, a stopped one and an idle one all end."""
    script = tmp_path / "script.py"
    script.write_text(OUTLIVED)
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, str(script)], env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
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


def alive(number: int) -> bool:
    """Return whether a process is running. An orphan that has ended may still exist as a zombie."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_source_that_cannot_be_pickled_is_refused_before_the_run(runs):
    source = DoorsSource()
    source.lock = threading.Lock()
    with pytest.raises(InputError, match=r"cannot be sent to worker processes .*; remove --workers"):
        WorkerSlots(share(source), 1)


def test_a_crash_is_reported_and_an_idle_crash_aborts_nothing(runs):
    slots = WorkerSlots(runs.handle().shared, 2)
    try:
        for slot in (0, 1):
            slots.call(slot, "start", "train-1")
        wait_for(slots)
        wait_for(slots)
        os.kill(slots._workers[0].process.pid, signal.SIGKILL)
        slots.call(0, "act", "look")
        assert wait_for(slots).outcome == Failure("WorkerDied", "the environment's process ended with signal SIGKILL")
        slots.call(0, "start", "train-1")
        assert "You are in the hall" in wait_for(slots).outcome.text
        os.kill(slots._workers[1].process.pid, signal.SIGKILL)
        slots.call(1, "start", "train-2")
        assert "You are in the hall" in wait_for(slots).outcome.text
    finally:
        slots.close()


def test_workers_killed_at_random_during_a_run(runs):
    class Thinking(AsyncPolicy):
        name, reproducible = "thinking", True
        play = RandomPolicy("response")

        async def reply(self, request):
            await asyncio.sleep(0.04)
            return self.play.respond([request])[0]

    spec = RolloutSpec(tasks=30, group_size=4, seed=3)
    runs.collect("sound", spec=spec)
    policy = Thinking()
    made: list[WorkerSlots] = []
    real = WorkerSlots.__init__
    stop, killed = threading.Event(), []

    def remember(self, *arguments, **named):
        real(self, *arguments, **named)
        made.append(self)

    def murder() -> None:
        chance = random.Random(1)
        while not stop.wait(0.8):
            if made and (process := made[0]._workers[chance.randrange(4)].process):
                process.kill()
                killed.append(process.pid)

    thread = threading.Thread(target=murder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerSlots, "__init__", remember)
        thread.start()
        try:
            tally = runs.collect("killed", policy, spec=spec, execution=ExecutionOptions(slots=4, workers=True))
        finally:
            stop.set()
            thread.join()
            policy.close()
    sound, run = runs.steps("sound"), runs.steps("killed")
    assert killed
    assert tally.trajectories == 120
    assert tally.aborted <= len(killed)
    broken = run.filter("aborted")
    assert broken.height == tally.aborted
    assert run.join(broken, on="trajectory", how="anti").equals(sound.join(broken, on="trajectory", how="anti"))


def wait_for(slots: WorkerSlots):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for arrival in slots.collect(0.5):
            return arrival
    raise AssertionError("nothing came back")
