"""Environments in subprocesses: the same table, and any death costs one trajectory."""

import asyncio
import os
import random
import signal
import threading
import time

import polars as pl
import pytest

from hgpo_train.policies.base import AsyncPolicy, Failure
from hgpo_train.policies.random_choice import RandomPolicy
from hgpo_train.rollout.run import Collection, Machine
from hgpo_train.rollout.workers import WorkerSlots

pytestmark = pytest.mark.slow
WHAT = Collection(tasks=8, group_size=2, seed=3)


def test_the_same_bytes_as_in_process(runs):
    runs.collect("here", what=WHAT)
    runs.collect("there", what=WHAT, machine=Machine(slots=4, workers=True))
    assert runs.digests("there") == runs.digests("here")


@pytest.mark.parametrize("how", ["kill", "exit", "raise"])
def test_a_death_at_any_step_costs_its_own_trajectory(runs, how):
    runs.collect("sound", what=WHAT)
    sound = runs.steps("sound")
    tasks = sound["task_id"].unique(maintain_order=True).to_list()
    plan = tuple((task, step, how) for step, task in enumerate(tasks[:4]))
    tally = runs.collect(
        "fragile",
        world=runs.world("fragile:FragileSource", plan=plan),
        what=WHAT,
        machine=Machine(slots=4, workers=True),
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


def test_a_worker_that_hangs_is_ended(runs):
    world = runs.world("fragile:FragileSource", plan=(("train-1", 1, "hang"),))
    slots = WorkerSlots(world.shared, 1, timeout_s=1.0)
    try:
        slots.start(0, "train-1")
        wait_for(slots)
        slots.act(0, "look")
        arrival = wait_for(slots)
        assert arrival.outcome == Failure("WorkerTimedOut", "no answer from the environment within 1 s")
        slots.start(0, "train-2")
        assert "You are in the hall" in wait_for(slots).outcome.text
    finally:
        slots.close()


def test_a_replacement_plays_within_five_seconds_and_an_idle_death_costs_nothing(runs):
    slots = WorkerSlots(runs.world().shared, 2)
    try:
        slots.start(0, "train-1")
        wait_for(slots)
        os.kill(slots.process_id(0), signal.SIGKILL)
        slots.act(0, "look")
        assert wait_for(slots).outcome.kind == "WorkerDied"
        began = time.monotonic()
        slots.start(0, "train-1")
        assert "You are in the hall" in wait_for(slots).outcome.text
        assert time.monotonic() - began < 5
        os.kill(slots.process_id(1), signal.SIGKILL)
        time.sleep(0.2)
        slots.start(1, "train-2")
        assert "You are in the hall" in wait_for(slots).outcome.text
        assert slots.restarts == 2
    finally:
        slots.close()


def test_workers_killed_at_random_while_a_run_goes_on(runs):
    class Thinking(AsyncPolicy):
        name, reproducible = "thinking", True
        play = RandomPolicy("response")

        async def reply(self, request):
            await asyncio.sleep(0.04)
            return self.play.respond([request])[0]

    what = Collection(tasks=30, group_size=4, seed=3)
    runs.collect("sound", what=what)
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
            if made and (pid := made[0].process_id(chance.randrange(4))):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    thread = threading.Thread(target=murder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerSlots, "__init__", remember)
        thread.start()
        try:
            tally = runs.collect("killed", policy, what=what, machine=Machine(slots=4, workers=True))
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
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for arrival in slots.collect(0.5):
            return arrival
    raise AssertionError("nothing came back")
