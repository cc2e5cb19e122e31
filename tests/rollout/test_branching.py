"""Branches of saved runs: what is shared, what is new, and that nothing depends on how they are played."""

import copy
from dataclasses import replace
from itertools import product

import doors
import polars as pl
import pytest
from doors_env import DOORS_ID
from groups import write_run
from refusals import refused

from hgpo_datasets import manifest, scan_steps, verify
from hgpo_datasets.branches import IS_BRANCH, with_prefixes
from hgpo_train.rollout import branch_rules, collect, kept_groups
from hgpo_train.rollout.branching import branch_run
from hgpo_train.rollout.failures import RolloutError
from hgpo_train.rollout.outcomes import rollout_table
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec

QUIET = {"progress": False}


@pytest.fixture
def saved(tmp_path):
    return collect(
        DOORS_ID,
        "random",
        tmp_path / "saved",
        tasks=4,
        group_size=3,
        max_steps=7,
        **QUIET,
    ).path


def rows_of(run):
    assert verify(run).ok
    return (
        scan_steps(run)
        .sort("iteration", "task_id", "group", "trajectory", "step")
        .collect()
    )


@pytest.mark.parametrize("action_format", ["command", "response"])
@pytest.mark.parametrize("env", ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"])
def test_the_quickstarts_policy_plays_every_benchmark_and_its_branches(
    tmp_path, env, action_format
):
    run = collect(
        env,
        "forgetful",
        tmp_path / "saved",
        tasks=4,
        group_size=4,
        max_steps=15,
        action_format=action_format,
        **QUIET,
    )
    assert run.tally.aborted == 0
    # It makes mistakes: rollouts of a task, which the explorer plays alike, differ.
    actions = run.steps.group_by("task_id", "trajectory").agg("action").collect()
    different = actions.group_by("task_id").agg(pl.col("action").n_unique())
    assert (different["action"] > 1).all()
    branched = branch_run(run, **QUIET)
    assert branched.branches > 0
    assert branched.tally.aborted == 0


def test_a_branch_continues_its_parent_in_a_run_that_stands_alone(saved):
    run = branch_run(saved, width=3, budget=60, seed=5, **QUIET)
    rows = rows_of(run)
    assert run.path.name == "saved-branched"
    roots = rows.filter(~IS_BRANCH)
    assert roots.drop("run").equals(rows_of(saved).drop("run"))
    starts = rows.filter(IS_BRANCH).unique("trajectory", maintain_order=True)
    assert starts.height == run.branches == 3 * run.points
    assert starts.group_by("parent", "branch_step").len()["len"].unique().to_list() == [
        3
    ]
    assert starts["branch_step"].min() > 0
    # Prompts show the parent's steps, and continuations differ from each other.
    first = starts.join(
        roots,
        left_on=["parent", "branch_step"],
        right_on=["trajectory", "step"],
        suffix="_parent",
    )
    assert first.height == starts.height
    assert first["prompt"].equals(first["prompt_parent"], check_names=False)
    assert (
        starts.group_by("parent", "branch_step")
        .agg(pl.col("response").n_unique())["response"]
        .max()
        > 1
    )
    # A rate is of rollouts.
    assert (
        run.rollouts.height
        == 12
        < rollout_table(run.steps, branches=True).collect().height
    )
    assert run.tally.steps == rows.filter(IS_BRANCH).height


@pytest.mark.parametrize("change", ["slots", "fork", "again"])
def test_rows_do_not_depend_on_how_branches_are_played(
    saved, tmp_path, monkeypatch, change
):
    # every point, so that replays do not change the choice
    wanted = {"width": 2, "budget": 10_000, "seed": 1, **QUIET}
    expected = rows_of(branch_run(saved, out=tmp_path / "branched", **wanted))
    if change == "fork":  # instead of a replay
        monkeypatch.setattr(doors.DoorsEngine, "fork", copy.deepcopy, raising=False)
    if change == "again":
        policy = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            branch_run(
                saved,
                out=tmp_path / "other" / "branched",
                **{**wanted, "progress": policy, "slots": 4},
            )
        kept = scan_steps(tmp_path / "other" / "branched").collect()
        assert 0 < kept.height < expected.height
    run = branch_run(
        saved,
        out=tmp_path / "other" / "branched",
        slots=2 if change == "slots" else None,
        **wanted,
    )
    assert rows_of(run).equals(expected)


class Interrupted:
    """Interrupts a collection when so many rollouts and branches have ended."""

    def __init__(self, after=30):
        self.after = after

    def __call__(self, tally):
        if tally.trajectories > self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [4, 18, None])
def test_rollouts_branch_in_their_own_run(saved, tmp_path, after):
    """Half of a group are the rollouts that a run without branches has, and the branches are those of `branch_run`."""
    wanted = {
        "tasks": 4,
        "group_size": 6,
        "max_steps": 7,
        "branch": "first-visits",
        "width": 2,
    }
    if after is not None:  # while rollouts are played, and while branches are
        with pytest.raises(KeyboardInterrupt):
            collect(
                DOORS_ID,
                "random",
                tmp_path / "run",
                **wanted,
                slots=4,
                progress=Interrupted(after),
            )
        kept = scan_steps(tmp_path / "run").collect()
        assert kept.height > 0
        assert (kept.filter(IS_BRANCH).height > 0) == (after > 12)
    run = collect(DOORS_ID, "random", tmp_path / "run", **wanted, **QUIET)
    expected = rows_of(branch_run(saved, "first-visits", width=2, **QUIET))
    assert rows_of(run).drop("run").equals(expected.drop("run"))
    assert run.rollouts.height == 12


def test_rollouts_are_written_once_unless_they_are_old_or_many(runs, monkeypatch):
    """Rollouts wait for their branches in memory, but neither too long nor too many of them."""
    wanted = RolloutSpec(tasks=12, group_size=4, seed=3, branch="uniform")
    often = ExecutionOptions(slots=16, groups_per_shard=4)
    runs.collect("together", spec=wanted, execution=often)
    runs.collect("old", spec=wanted, execution=replace(often, shard_s=1e-9))
    monkeypatch.setattr(kept_groups, "_MOST_BYTES", 1)
    runs.collect("many", spec=wanted, execution=often)
    written_again = {
        name: bool(manifest.read(runs.folder / name).replaced)
        for name in ("together", "old", "many")
    }
    assert written_again == {"together": False, "old": True, "many": True}
    expected = runs.content("together")
    assert runs.content("old") == expected
    assert runs.content("many") == expected


@pytest.mark.slow
@pytest.mark.parametrize("env", [DOORS_ID, "HGPO/ALFWorld-v0"])
def test_rollouts_branch_in_processes(tmp_path, env):
    """Engines in processes repeat the stored actions, where those in this process can be copied."""
    wanted = {"tasks": 3, "group_size": 4, "max_steps": 7, "branch": "uniform"}
    runs = [
        collect(env, "random", tmp_path / str(workers) / "run", **wanted, **more)
        for workers in (False, True)
        for more in [{"workers": workers, "slots": 2, **QUIET}]
    ]
    here, apart = map(rows_of, runs)
    assert here.filter(IS_BRANCH).height
    assert apart.equals(here)


def test_too_many_failures_are_repeated_before_rollouts_branch(tmp_path):
    broken = {1}

    def policy(request):
        if request.seed % 3 in broken:
            raise ConnectionError("down")
        return request.rng.choice(request.admissible_actions)

    policy.reproducible = True
    wanted = {"tasks": 3, "group_size": 4, "branch": "uniform", **QUIET}
    with pytest.raises(RolloutError, match="rollouts failed"):
        collect(DOORS_ID, policy, tmp_path / "run", **wanted, slots=64)
    kept = scan_steps(tmp_path / "run").collect()
    assert kept.height > 0
    assert not kept.filter(IS_BRANCH).height
    broken.clear()
    run = collect(DOORS_ID, policy, tmp_path / "run", **wanted)
    assert rows_of(run).equals(
        rows_of(collect(DOORS_ID, policy, tmp_path / "whole" / "run", **wanted))
    )


def test_failed_branches_are_played_again(saved, tmp_path):
    broken = {1, 2}

    def policy(request):
        if request.first_step and request.seed % 4 in broken:
            raise ConnectionError("down")
        return request.rng.choice(request.admissible_actions)

    policy.reproducible = True  # rows contain no timings
    wanted = {"policy": policy, "width": 2, "budget": 80, "max_failed": 0.1, **QUIET}
    with pytest.raises(RolloutError, match="rollouts failed"):
        branch_run(saved, out=tmp_path / "run", **{**wanted, "slots": 64})
    assert verify(tmp_path / "run").ok
    broken.clear()
    run = branch_run(saved, out=tmp_path / "run", **wanted)
    assert rows_of(run).equals(
        rows_of(branch_run(saved, out=tmp_path / "whole" / "run", **wanted))
    )


def test_an_expert_takes_over_in_branches_of_branches(tmp_path):
    run = collect(
        "HGPO/ALFWorld-v0",
        "random",
        tmp_path / "run",
        tasks=2,
        group_size=2,
        max_steps=12,
        **QUIET,
    )
    once = branch_run(run, width=2, budget=60, **QUIET)
    twice = branch_run(
        once.path, width=1, budget=400, out=tmp_path / "twice", policy="expert", **QUIET
    )
    nested = rows_of(twice).filter(pl.col("parent").str.contains("/"))
    assert nested.height > 0
    assert nested["admissible_actions"].list.contains(nested["action"]).all()
    whole = with_prefixes(twice.steps).sort("trajectory", "step")
    lengths = whole.group_by("trajectory").agg(
        pl.len(), pl.col("episode_length").first()
    )
    assert lengths["len"].to_list() == lengths["episode_length"].to_list()


def table(*rollouts):
    """Steps of (trajectory, states, return)."""
    rows = [
        {
            "iteration": 0,
            "task_id": "t",
            "group": 0,
            "trajectory": name,
            "step": step,
            "state_hash": ord(state),
        }
        | {"episode_return": value, "episode_length": len(states), "aborted": False}
        | {"entropy": ord(state) / 100 if state != "x" else None}
        for name, states, value in rollouts
        for step, state in enumerate(states)
    ]
    empty = {"parent": pl.String, "branch_step": pl.Int32}
    return pl.LazyFrame(rows).with_columns(
        pl.lit(None, dtype).alias(name) for name, dtype in empty.items()
    )


STEPS = table(("p", "sabx", 1.0), ("q", "sbby", 0.0), ("r", "sa", 1.0))
EVERY = {*product("pq", (1, 2, 3)), ("r", 1)}
"""All steps but the starts."""


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # a and b at step 1; s is the start of the task
        ("first-visits", {("p", 1), ("q", 1), ("p", 3), ("q", 3)}),
        ("mixed-outcomes", {("q", 1)}),  # b was reached with both returns
        ("entropy", EVERY - {("p", 3)}),  # x has no score
        ("uniform", EVERY),
    ],
)
def test_rules(rule, expected):
    chosen = branch_rules.choose_points(
        STEPS, branch_rules.get(rule), width=1, budget=1000, seed=0, replays=False
    ).select("trajectory", "step")
    assert set(chosen.rows()) == expected
    assert rule != "entropy" or chosen.row(0) == ("q", 3)


def test_a_budget_counts_the_steps_that_rollouts_take_on_average():
    """At step 1 rollouts still take (3 + 3 + 1) / 3 = 7/3 steps: 3 branches at q are 7 steps, and 10 with replays."""
    first = branch_rules.BranchRule(
        "b", lambda steps: steps.filter(step=1).with_columns(priority=pl.lit(1))
    )
    for budget, replays, points in (
        (7, False, 1),
        (8, False, 2),
        (10, True, 1),
        (11, True, 2),
    ):
        found = branch_rules.choose_points(
            STEPS, first, width=3, budget=budget, seed=0, replays=replays
        )
        assert found.height == points


def test_wrong_input_is_named(saved, tmp_path):
    for arguments, line in (
        ({"at": "unifrom"}, "did you mean 'uniform'"),
        ({"width": 0}, "width: expected a number of branches from 1 to 1000"),
        ({"seed": 1 << 63}, "seed: expected an integer of 64 bits"),
        ({"out": saved}, "expected another folder"),
        ({"at": "entropy"}, "has no scores entropy"),
        ({"policy": "randm"}, "did you mean 'random'"),
    ):
        with refused(line):
            branch_run(saved, **{"out": tmp_path / "new", **arguments}, **QUIET)
    for arguments, line in (
        ({"branch": "entropy"}, "expected one that reads no scores"),
        ({"branch": "uniform", "group_size": 1}, "expected at least 2 with branches"),
    ):
        with refused(line):
            collect(DOORS_ID, "random", tmp_path / "new", tasks=1, **arguments, **QUIET)
    assert not (tmp_path / "new").exists()
    config = {"env": {"id": DOORS_ID, "split": "train"}, "policy": {"name": "random"}}
    wrong = (
        rows_of(saved)
        .drop("run", "state_hash")
        .with_columns(state=pl.col("state") + " ")
    )
    wrong = wrong.drop([name for name in wrong.columns if "_hash" in name])
    write_run(
        tmp_path / "wrong",
        wrong.with_columns(next_state=pl.lit(None, pl.String)),
        config=config,
    )
    with refused("gave another state than the stored one"):
        branch_run(tmp_path / "wrong", **QUIET)
    with refused("expected the folder of a saved run"):
        branch_run(tmp_path, **QUIET)


def test_code_that_a_run_names_needs_permission(tmp_path, hgpo):
    config = {
        "env": {"id": DOORS_ID, "memory": "strangers_code:memory"},
        "policy": {"name": "random"},
    }
    write_run(tmp_path / "saved", config=config)
    line = "names the memory 'strangers_code:memory', which would run as code; if you trust it, add --allow"
    with refused(line):
        branch_run(tmp_path / "saved", **QUIET)
    _, _, errors = hgpo(
        "branch", tmp_path / "saved", "--allow", "strangers_code:memory"
    )
    assert "No module named 'strangers_code'" in errors


def test_advantages_that_a_choice_by_outcomes_biases_are_named(hgpo, tmp_path):
    steps = [
        {"step": number, "state": f"s{number}", "action": "go", "action_valid": True}
        for number in range(2)
    ]
    for outcomes in (True, False):
        run = tmp_path / str(outcomes)
        write_run(
            run,
            [
                {"task_id": "t", "group": 0, "trajectory": "a", "reward": 0.0} | row
                for row in steps
            ],
            config={"branches": {"at": "mixed-outcomes", "outcomes": outcomes}},
        )
        for estimator, named in (
            ("tree_loo", outcomes),
            ("tree_loo:fresh=true", False),
            ("grpo", False),
        ):
            output = hgpo.output("advantages", run, "-e", estimator, "--overwrite")
            assert ("which biases tree_loo" in output) == named
