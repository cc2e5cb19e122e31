"""The collector: reproducible rows, failures that abort one trajectory, resuming, dynamic sampling."""

import asyncio
import gc
import os
import random
import sys
from threading import Event, Thread

import polars as pl
import pytest
from asked import Failing
from refusals import refused

from hgpo_datasets import StepWriter
from hgpo_envs.episode import ACTION_FORMATS
from hgpo_train.policies.base import AsyncPolicy, Reply
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.policies.scripted import MixturePolicy, RandomPolicy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.failures import RolloutError, allowed_in_a_row
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
from hgpo_train.rollout.run import collect_groups


class Slow(AsyncPolicy):
    """A random policy whose replies arrive after random delays, in random order."""

    name = "slow random"

    def __init__(self, concurrency: int = 64, *, reproducible: bool = True) -> None:
        super().__init__(concurrency)
        self.reproducible = reproducible
        self._play = RandomPolicy("response")
        self._chance = random.Random(5)
        self.most_at_once = self._now = 0

    async def reply(self, request):
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await asyncio.sleep(self._chance.uniform(0, 0.004))
        self._now -= 1
        return self._play.respond([request])[0]


@pytest.mark.slow
def test_the_same_rows_from_any_number_of_environments_and_in_any_order_of_replies(
    runs,
):
    spec = RolloutSpec(tasks=40, group_size=4, seed=1)
    for slots in (1, 13, 1024):
        runs.collect(
            f"{slots}",
            spec=spec,
            execution=ExecutionOptions(slots=slots, groups_per_shard=16),
        )
        # of 16, 16 and 8 groups
        assert len(list((runs.folder / f"{slots}/steps").glob("*.parquet"))) == 3
    slow = Slow()
    runs.collect("slow", slow, spec=spec)
    slow.close()
    assert (
        runs.content("1")
        == runs.content("13")
        == runs.content("1024")
        == runs.content("slow")
    )
    assert slow.most_at_once > 8


def test_policies_without_batches_play_fewer_environments_by_default():
    def of(name):
        return make_policy(name, PolicyContext("ALFWorld", "response"))

    class Own(RandomPolicy):
        slots = None

    scripted = of("mixture:expert=0.5,random=0.5")
    mixed = MixturePolicy([(of("random"), 1.0), (Own("response"), 1.0)])
    default = ExecutionOptions()
    assert [default.slots_for(each) for each in (scripted, mixed)] == [32, 256]
    assert default.slots_for(of("forgetful")) == 32
    assert ExecutionOptions(slots=5).slots_for(scripted) == 5
    workers = ExecutionOptions(workers=True)
    assert workers.slots_for(scripted) == max(2, os.cpu_count() or 1)


def test_finished_groups_are_committed_while_another_hangs(runs):
    committed = []

    class Hanging(Slow):
        async def reply(self, request):
            while request.task.id == first and len(committed) < 3:
                await asyncio.sleep(0.01)
            return await super().reply(request)

    first = runs.handle().tasks[0]
    policy = Hanging()

    def progress(tally):
        committed[:] = (runs.folder / "run/steps").glob("*.parquet")

    spec = RolloutSpec(tasks=12, group_size=2, order="sweep")
    runs.collect(
        "run",
        policy,
        spec=spec,
        execution=ExecutionOptions(groups_per_shard=3),
        progress=progress,
    )
    policy.close()
    assert runs.steps("run").select("task_id").n_unique() == 12


def test_rows_are_what_was_played(runs):
    tally = runs.collect("run")
    steps = runs.steps("run")
    assert tally.steps == steps.height
    assert tally.trajectories == steps["trajectory"].n_unique() == 48
    assert tally.won == steps["won"].sum()
    assert (
        steps.group_by("task_id", "group")
        .agg(pl.col("trajectory").n_unique())["trajectory"]
        .to_list()
        == [4] * 12
    )
    last = steps.group_by("trajectory", maintain_order=True).last()
    assert (last["terminated"] | last["truncated"]).all()
    assert last["next_state"].null_count() == 0
    assert last["won"].to_list() == (last["reward"] == 1.0).to_list()
    handle = runs.handle()
    for (trajectory,), rows in steps.group_by("trajectory"):
        engine = handle.shared.source.engine()
        state = engine.start(rows["task_id"][0])
        for row in rows.sort("step").iter_rows(named=True):
            assert (row["state"], row["admissible_actions"]) == (
                state.text,
                list(state.actions),
            ), trajectory
            assert row["response"] == f"<think></think><action>{row['action']}</action>"
            assert row["state"] in row["prompt"]
            state = engine.act(row["action"])
            assert (row["reward"], row["won"], row["score"]) == (
                state.reward,
                state.won,
                state.score,
            )
    first = steps.row(0, named=True)
    assert (first["split"], first["env_version"], first["run"]) == (
        "train",
        '{"house": "1"}',
        "a run",
    )
    # nothing of the clock in the table of a reproducible policy
    assert first["environment_s"] is None


def test_members_of_a_group_differ_and_seeds_count(runs):
    runs.collect("one", spec=RolloutSpec(tasks=3, group_size=6, seed=1))
    runs.collect("two", spec=RolloutSpec(tasks=3, group_size=6, seed=2))
    actions = (
        runs.steps("one")
        .group_by("trajectory")
        .agg(pl.col("action").str.join("|"))["action"]
    )
    assert actions.n_unique() > 12
    assert runs.content("one") != runs.content("two")


def test_timings_and_tokens_of_a_policy_that_has_them(runs):
    class Talking(Slow):
        async def reply(self, request):
            answer = await super().reply(request)
            tokens = {
                "response_token_ids": [3, 4, 5],
                "response_logprobs": [-0.5, -0.25, -1.0],
                "cut_pairs": 2,
            }
            return Reply(
                answer.response,
                "as it was read",
                [1, 2],
                finish_reason="length",
                **tokens,
            )

    policy = Talking(reproducible=False)
    policy.version = 7
    tally = runs.collect("run", policy)
    policy.close()
    steps = runs.steps("run")
    assert tally.tokens == 3 * steps.height
    assert steps["policy_s"].min() > 0
    assert steps["environment_s"].null_count() == 0
    assert steps["prompt"].unique().to_list() == ["as it was read"]
    assert steps["response_logprobs"][0].to_list() == [-0.5, -0.25, -1.0]
    assert steps.select("finish_reason", "cut_pairs").unique().rows() == [("length", 2)]
    assert steps["policy_version"].unique().to_list() == [7]


@pytest.mark.parametrize(
    ("how", "slots"), [("said so", 1), (ConnectionError("no\nroute"), 48)]
)
def test_a_failing_call_aborts_only_its_trajectory(runs, how, slots):
    runs.collect("sound", "random")
    policy = Failing(lambda request: how if request.seed % 11 == 0 else None)
    tally = runs.collect("faulty", policy, execution=ExecutionOptions(slots=slots))
    sound = runs.steps("sound")
    faulty = runs.steps("faulty")
    broken = faulty.filter("aborted")
    assert 3 < broken.height == tally.aborted < 40
    assert broken["action"].null_count() == broken.height
    assert broken["prompt"].null_count() == 0
    line = (
        "PolicyFailed: said so"
        if how == "said so"
        else "PolicyFailed: ConnectionError: no route"
    )
    assert broken["error"].unique().to_list() == [line]
    whole = faulty.join(broken, on="trajectory", how="anti")
    assert whole.equals(sound.join(broken, on="trajectory", how="anti"))
    kept = faulty.join(broken, on="trajectory", how="semi").filter(~pl.col("aborted"))
    there = sound.join(kept, on=["trajectory", "step"], how="semi")
    assert kept.select("state", "prompt", "action").equals(
        there.select("state", "prompt", "action")
    )


def test_garbage_is_collected_less_often_and_turns_are_short_during_a_collection_alone(
    runs,
):
    during = []

    class Watching(RandomPolicy):
        def respond(self, requests):
            during.append((*gc.get_threshold(), sys.getswitchinterval()))
            return super().respond(requests)

    def stop(_):
        raise RuntimeError("stopped")

    before = gc.get_threshold()
    turn = sys.getswitchinterval()
    assert turn > 0.001
    try:
        for young in (700, 0, 10**6):
            gc.set_threshold(young, 9, 8)
            during.clear()
            with pytest.raises(RuntimeError, match="stopped"):
                runs.collect(f"{young}", Watching("response"), progress=stop)
            expected = young and max(young, 50_000)
            assert during == [(expected, 9, 8, pytest.approx(0.0001))]
            assert gc.get_threshold() == (young, 9, 8)
            assert sys.getswitchinterval() == turn
    finally:
        gc.set_threshold(*before)


def test_collections_in_threads_leave_the_interpreter_as_it_was(runs):
    first_plays = Event()
    second_plays = Event()
    left = []

    class First(RandomPolicy):
        def respond(self, requests):
            first_plays.set()
            second_plays.wait(30)
            return super().respond(requests)

    class Second(RandomPolicy):
        def respond(self, requests):
            second_plays.set()
            first.join(30)
            left.append(gc.get_threshold())
            return super().respond(requests)

    before = gc.get_threshold()
    turn = sys.getswitchinterval()
    first = Thread(target=runs.collect, args=("first", First("response")))
    try:
        first.start()
        first_plays.wait(30)
        runs.collect("second", Second("response"))
        assert not first.is_alive()
        # the first one ended while the second one played
        assert {young for young, *_ in left} == {max(before[0], 50_000)}
        assert gc.get_threshold() == before
        assert sys.getswitchinterval() == turn
    finally:
        gc.set_threshold(*before)


def test_a_policy_that_raises_fails_its_open_requests(runs):
    class Lost(Failing):
        calls = 0

        def collect(self, timeout):
            Lost.calls += 1
            if Lost.calls == 4:
                raise OSError("device lost")
            return super().collect(timeout)

    tally = runs.collect("run", Lost(), execution=ExecutionOptions(slots=8))
    assert tally.aborted == 8
    assert tally.trajectories == 48
    assert len(runs.steps("run")) == tally.steps
    assert set(runs.steps("run").filter("aborted")["error"]) == {
        "PolicyFailed: OSError: device lost"
    }


def test_a_failing_environment_aborts_only_its_trajectory(runs):
    plan = (("train-3", 1, "raise"), ("train-5", 0, "raise"))
    spec = RolloutSpec(tasks=50, group_size=2, seed=3)
    runs.collect("sound", spec=spec)
    tally = runs.collect(
        "fragile", handle=runs.handle("fragile:FragileSource", plan=plan), spec=spec
    )
    sound = runs.steps("sound")
    fragile = runs.steps("fragile")
    assert tally.aborted == 4
    broken = fragile.filter("aborted").sort("task_id")
    assert broken["task_id"].to_list() == ["train-3"] * 2 + ["train-5"] * 2
    assert broken["step"].to_list() == [0, 0, 0, 0]
    assert (
        broken["error"][0]
        == "EnvironmentFailed: RuntimeError: the house burns (task train-3)"
    )
    assert broken["action"].is_null().to_list() == [False, False, True, True]
    spared = ~pl.col("task_id").is_in(["train-3", "train-5"])
    assert fragile.filter(spared).equals(sound.filter(spared))


@pytest.mark.slow
def test_the_run_stops_after_consecutive_failures(runs):
    calls = iter(range(10_000))
    policy = Failing(lambda _: "said so" if next(calls) > 400 else None)
    spec = RolloutSpec(40, 4, seed=3)
    execution = ExecutionOptions(
        slots=4, max_consecutive_failures=20, groups_per_shard=3
    )
    with pytest.raises(
        RolloutError,
        match=r"stopped after 2[0-3] failures in a row: .* × PolicyFailed: sa",
    ):
        runs.collect("run", policy, spec=spec, execution=execution)
    assert runs.steps("run")["task_id"].n_unique() > 5  # what was whole is there
    runs.collect("run", "random", spec=spec)  # and is resumed
    assert runs.steps("run").select("task_id", "group").n_unique() == 40


@pytest.mark.slow
def test_stopping_commits_finished_groups_and_resuming_repeats_none(runs):
    spec = RolloutSpec(tasks=30, group_size=4, seed=3)
    turns = iter(range(10_000))
    execution = ExecutionOptions(slots=8, groups_per_shard=4)
    tally = runs.collect(
        "run", spec=spec, execution=execution, should_stop=lambda: next(turns) > 60
    )
    first = runs.steps("run")
    groups = first.select("task_id", "group").n_unique()
    assert 0 < groups < 30
    assert tally.trajectories >= groups * 4
    again = runs.collect("run", spec=spec, execution=execution)
    assert again.trajectories == (30 - groups) * 4
    runs.collect("straight", spec=spec, execution=execution)
    order = ["trajectory", "step"]
    assert runs.steps("run").sort(order).equals(runs.steps("straight").sort(order))
    assert runs.collect("run", spec=spec, execution=execution).trajectories == 0


def test_iterations_continue_the_task_order(runs):
    policy = RandomPolicy("response")
    handle = runs.handle()
    with StepWriter(runs.folder / "run") as writer:
        for iteration in range(3):
            spec = RolloutSpec(
                tasks=5, group_size=2, seed=9, iteration=iteration, skip=5 * iteration
            )
            collect_groups(handle, policy, writer, spec)
    steps = runs.steps("run")
    assert steps["iteration"].unique(maintain_order=True).to_list() == [0, 1, 2]
    assert steps["task_id"].n_unique() == 15


@pytest.mark.slow
def test_dynamic_sampling_refills_and_does_not_depend_on_the_order_of_ends(runs):
    spec = RolloutSpec(tasks=6, group_size=3, seed=2, dynamic=100)
    slow = Slow()
    runs.collect("one", spec=spec, execution=ExecutionOptions(slots=1))
    runs.collect("many", spec=spec, execution=ExecutionOptions(slots=40))
    runs.collect("slow", slow, spec=spec)
    slow.close()
    assert runs.content("one") == runs.content("many") == runs.content("slow")

    def told(name: str) -> pl.DataFrame:
        groups = runs.steps(name).group_by("task_id", "group")
        return groups.agg(
            said=pl.col("episode_return").n_unique() > 1, at=pl.col("trajectory").min()
        ).sort("at")

    assert told("one")["said"].sum() == 6
    assert told("one")["said"][-1]  # not one more than was needed
    assert told("one").height > 6
    turns = iter(range(10_000))
    runs.collect(
        "resumed",
        spec=spec,
        execution=ExecutionOptions(slots=2),
        should_stop=lambda: next(turns) > 30,
    )
    assert 0 < told("resumed").height < told("one").height
    runs.collect("resumed", spec=spec)
    assert told("resumed").equals(told("one"))
    assert told("resumed")["said"].sum() == 6
    bounded = RolloutSpec(tasks=6, group_size=3, seed=2, dynamic=told("one").height - 1)
    runs.collect("bounded", spec=bounded)
    assert told("bounded").height == bounded.dynamic


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"])
def test_scripted_policies_play_the_same_in_every_action_format(runs, env_id):
    for action_format in ACTION_FORMATS:
        handle = open_env(
            env_id, split="train", action_format=action_format, max_steps=12
        )
        context = PolicyContext(handle.shared.source.name, action_format)
        policy = make_policy("mixture:explorer=0.5,random=0.3,outdated=0.2", context)
        runs.collect(action_format, policy, handle, spec=RolloutSpec(tasks=8, seed=1))
    played = {
        name: runs.steps(name).sort("trajectory", "step") for name in ACTION_FORMATS
    }
    # responses are lowered
    same = (
        "trajectory",
        "step",
        "state",
        pl.col("action").str.to_lowercase(),
        "score",
        "won",
    )
    assert played["number"].select(same).equals(played["command"].select(same))
    assert played["response"].select(same).equals(played["command"].select(same))
    written = played["number"]["response"]
    assert (played["command"]["response"] == played["command"]["action"]).all()
    # searches and outdated actions have no number
    assert 0.5 < written.str.contains(r"^\d+$").mean() < 1


def test_bad_collections():
    for values, line in (
        ({"tasks": 0}, "tasks: expected int >= 1, received 0"),
        ({"tasks": 2, "group_size": 0}, "group_size: expected int >= 1, received 0"),
        (
            {"tasks": 5, "dynamic": 4},
            "dynamic: expected at least 5 wanted groups, received 4",
        ),
        ({"tasks": 5, "outcome": "won"}, "unknown outcome 'won'"),
        (
            {"tasks": 1, "order": "shufled"},
            "unknown task order 'shufled'; did you mean 'shuffled'",
        ),
    ):
        with refused(line):
            RolloutSpec(**values)
    with refused("slots: expected int >= 1, received 0"):
        ExecutionOptions(slots=0)


@pytest.mark.parametrize(("tasks", "slots"), [(10, 1), (10, 100), (40, 5), (400, 2)])
def test_a_collection_against_a_dead_policy_stops_after_few_tries(runs, tasks, slots):
    """Beyond the smallest number of failures, at most as many rollouts are tried as run concurrently, twice."""
    # as a server that answers a few at a time
    policy = Failing(lambda _: "down", batch_size=slots)
    spec = RolloutSpec(tasks=tasks, group_size=1, seed=1)
    handle = runs.handle(count=2 * tasks)
    execution = ExecutionOptions(slots=slots)
    if 2 * slots >= tasks:  # the second rollout of each slot is the last
        assert (
            runs.collect("run", policy, handle, spec=spec, execution=execution).aborted
            == tasks
        )
        return
    with pytest.raises(RolloutError, match="failures in a row"):
        runs.collect("run", policy, handle, spec=spec, execution=execution)
    assert policy.asked <= allowed_in_a_row(tasks) + 2 * slots


@pytest.mark.parametrize("slots", [1, 3, 50])
def test_a_task_that_always_fails_does_not_stop_a_collection(runs, slots):
    """All members of its groups fail, one after the other."""
    spec = RolloutSpec(tasks=6, group_size=8, seed=1)
    sound = runs.collect("sound", "random", spec=spec)
    failing = runs.steps("sound")["task_id"][0]
    policy = Failing(lambda request: request.task.id == failing)
    tally = runs.collect(
        "run", policy, spec=spec, execution=ExecutionOptions(slots=slots)
    )
    assert tally.trajectories == sound.trajectories
    assert tally.aborted == 8


def test_one_broken_connection_of_all_slots_does_not_stop_a_collection(runs):
    calls = iter(range(10**9))
    policy = Failing(lambda _: 8 <= next(calls) < 16)
    spec = RolloutSpec(tasks=40, group_size=1, seed=1)
    tally = runs.collect("run", policy, spec=spec, execution=ExecutionOptions(slots=8))
    assert (tally.trajectories, tally.aborted) == (40, 8)
