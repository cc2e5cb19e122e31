"""Outcomes: success with its bounds when rollouts abort, losses by the agent's own action, unknown results."""

from collections import defaultdict
from types import SimpleNamespace

import polars as pl
import pytest
from asked import Failing

from hgpo_envs.engine import State
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.proportions import wilson_interval
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.outcomes import (
    OUTCOMES,
    Success,
    groups_with_mixed_outcomes,
    rollout_table,
    success,
)
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec

SPEC = RolloutSpec(tasks=10, group_size=4, seed=3)


LOST = {
    "state": "Lost: a fuse blew",
    "raise": "Lost: EnvironmentFailed: RuntimeError: a fuse blew",
    "die": "Lost: WorkerDied: the environment's process ended with exit code 3",
}


@pytest.mark.parametrize(
    "ends", ["state", "raise", pytest.param("die", marks=pytest.mark.slow)]
)
def test_a_world_that_the_agents_action_ends_is_lost_and_not_aborted(runs, ends):
    """A policy cannot raise its measured success by ending the worlds in which it would fail."""
    execution = ExecutionOptions(slots=4, workers=ends == "die")
    handle = runs.handle("mortal:MortalSource", ends=ends)
    tally = runs.collect("run", handle=handle, spec=SPEC, execution=execution)
    table = rollout_table(runs.steps("run").lazy()).collect()
    lost = table.filter(pl.col("error").is_not_null())
    assert 5 < len(lost) < 40
    assert not table["aborted"].any()
    assert not lost["won"].any()
    assert set(lost["error"]) == {LOST[ends]}
    last = runs.steps("run").filter(pl.col("error").is_not_null())
    assert last["terminated"].all()
    assert last["reward"].to_list() == [0.0] * len(lost)
    assert tally.aborted == 0
    solved = success(table)
    assert (solved.aborted, solved.share) == (0, tally.won / 40)
    low, high = wilson_interval(solved.share, 10)
    assert solved.describe() == f"{solved.share:.1%} (95%: {low:.1%} to {high:.1%})"


def test_an_engine_that_fails_for_an_unknown_reason_aborts(runs):
    handle = runs.handle("mortal:MortalSource", ends="unknown")
    tally = runs.collect(
        "run",
        handle=handle,
        spec=SPEC,
        execution=ExecutionOptions(max_consecutive_failures=40),
    )
    assert tally.aborted > 5


@pytest.mark.slow
def test_the_success_of_rollouts_that_did_not_abort_is_biased_and_the_bounds_hold(runs):
    """Requests fail with a fixed probability, so that long rollouts, which are lost more often, fail more often."""
    spec = RolloutSpec(tasks=50, group_size=8, seed=3)
    policy = Failing(lambda request: request.seed % 20 == 0)
    runs.collect("sound", spec=spec)
    runs.collect(
        "flaky",
        policy,
        spec=spec,
        execution=ExecutionOptions(max_consecutive_failures=400),
    )
    truth, flaky = (
        success(rollout_table(runs.steps(name).lazy()).collect())
        for name in ("sound", "flaky")
    )
    assert (truth.aborted, truth.if_aborted_lost, truth.if_aborted_won) == (
        0,
        truth.share,
        truth.share,
    )
    assert truth.aborted_by_length == ()
    assert flaky.aborted > 40
    assert flaky.if_aborted_lost <= truth.share <= flaky.if_aborted_won
    assert flaky.if_aborted_lost < flaky.share < flaky.if_aborted_won
    assert sum(rollouts for _, rollouts, _ in flaky.aborted_by_length) == 400
    assert sum(aborted for *_, aborted in flaky.aborted_by_length) == flaky.aborted
    assert f"if the {flaky.aborted} aborted rollouts are lost" in flaky.describe()


def test_the_bounds_by_hand():
    won = [True, True, False, None, False, False]
    aborted = [False] * 4 + [True] * 2
    tasks = {"env_id": "e", "task_id": [*"aabbcd"]}
    table = pl.DataFrame(
        {**tasks, "won": won, "aborted": aborted, "length": [3, 8, 9, 16, 17, 40]}
    )
    found = success(table)
    assert (found.rollouts, found.aborted, found.unknown) == (6, 2, 1)
    assert (found.share, found.if_aborted_lost, found.if_aborted_won) == (
        2 / 3,
        2 / 6,
        5 / 6,
    )
    assert found.interval == wilson_interval(2 / 3, 2), "results are known of two tasks"
    assert found.aborted_by_length == (
        ("1–5", 1, 0),
        ("6–10", 2, 0),
        ("11–20", 2, 1),
        ("21–50", 1, 1),
    )
    aborted = success(table.filter("aborted"))
    assert (
        aborted.share,
        aborted.interval,
        aborted.if_aborted_lost,
        aborted.if_aborted_won,
    ) == (
        None,
        None,
        0.0,
        1.0,
    )
    unknown = success(table.filter(pl.col("won").is_null()))
    assert (unknown.share, unknown.describe()) == (None, "unknown")
    nothing = Success(3, 1, 2, None, None, None, None, (("1–5", 3, 1),))
    assert nothing.describe() == "unknown"


@pytest.mark.slow
def test_outcomes_of_rows_and_of_tables_are_the_same(runs):
    """In WebShop a rollout without success can have a score: by success alone its group is not informative."""
    handle = open_env(
        "HGPO/WebShop-v0",
        split="train",
        action_format="command",
        max_steps=12,
        goals="human",
    )
    policy = make_policy(
        "mixture:explorer=0.6,random=0.4",
        PolicyContext(handle.shared.source.name, "command"),
    )
    runs.collect("run", policy, handle, spec=RolloutSpec(tasks=6, group_size=3, seed=2))
    steps = runs.steps("run")
    informative = {}
    for name, outcome in OUTCOMES.items():
        ends = defaultdict(set)
        for (task, _), rows in steps.group_by("task_id", "trajectory"):
            ends[task].add(
                outcome(
                    [
                        SimpleNamespace(**row)
                        for row in rows.sort("step").iter_rows(named=True)
                    ]
                )
            )
        informative[name] = {task for task, values in ends.items() if len(values) > 1}
        found = groups_with_mixed_outcomes(steps.lazy(), name).collect()["task_id"]
        assert set(found) == informative[name]
    assert informative["success"] < informative["score"] == informative["reward"]


def test_unknown_results_flow_to_the_tables_and_are_no_outcome(runs, monkeypatch):
    class Silent(type(runs.handle().shared.source.engine())):
        def _state(self, text: str, valid: bool) -> State:
            state = super()._state(text, valid)
            return State(
                state.text,
                state.actions,
                state.valid,
                state.terminated,
                None,
                state.reward,
                state.score,
            )

    handle = runs.handle()
    tasks = handle.shared.source._tasks
    monkeypatch.setattr(handle.shared.source, "engine", lambda: Silent(tasks))
    tally = runs.collect("run", handle=handle, spec=SPEC)
    assert (tally.unknown, tally.won) == (40, 0)
    steps = runs.steps("run")
    assert steps["won"].null_count() == len(steps)
    assert success(rollout_table(steps.lazy()).collect()).unknown == 40
    assert groups_with_mixed_outcomes(steps.lazy(), "success").collect().is_empty()
    assert not groups_with_mixed_outcomes(steps.lazy(), "reward").collect().is_empty()
