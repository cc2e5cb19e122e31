"""Branches in step tables: stored once, and known by whatever writes, verifies or reads whole trajectories."""

import polars as pl
import pytest
from groups import write_run

from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_datasets.branches import with_prefixes
from hgpo_datasets.rows import RowError
from hgpo_train.analysis.run_summary import summarize_run
from hgpo_train.analysis.statistics import statistics
from hgpo_train.rollout.outcomes import rollout_table


def step(trajectory, number, state, parent=None, branch_step=None, **columns):
    named = {
        "trajectory": trajectory,
        "step": number,
        "parent": parent,
        "branch_step": branch_step,
    }
    return {
        "task_id": "t",
        "state": state,
        "action": f"{trajectory}{number}",
        "reward": 1.0,
        **named,
        **columns,
    }


ROOT = [step("a", 0, "x"), step("a", 1, "y"), step("a", 2, "z", won=True)]
BRANCH = [
    step("b", 1, "y", "a", 1),
    step("b", 2, "w", "a", 1, reward=5.0, won=False),
]
NESTED = [step("c", 2, "w", "b", 2, won=False)]
WHOLE = [
    {**row, "trajectory": "whole", "parent": None, "branch_step": None}
    for row in (ROOT[0], *BRANCH)
]


@pytest.fixture
def run(tmp_path):
    write_run(
        tmp_path / "run",
        ROOT + BRANCH + NESTED,
        [{**row, "group": 1} for row in WHOLE],
        depth=2,
    )
    return tmp_path / "run"


def test_columns_of_a_branch_are_those_of_the_whole_trajectory(run):
    assert verify(run).ok
    rows = scan_steps(run).collect()
    same = [
        name for name in rows.columns if "_hash" in name or name.startswith("episode_")
    ]
    whole = rows.filter(pl.col("trajectory") == "whole", pl.col("step") > 0)
    assert rows.filter(trajectory="b").select(same).equals(whole.select(same))
    assert whole["episode_return"].to_list() == [7.0, 7.0]


def test_prefixes_are_those_of_all_ancestors(run):
    steps = with_prefixes(scan_steps(run)).filter(trajectory="c").sort("step")
    assert steps["action"].to_list() == ["a0", "b1", "c2"]
    assert steps["in_prefix"].to_list() == [True, True, False]
    # its own, not the parents'
    assert steps["episode_return"].unique().to_list() == [3.0]


def test_rates_are_of_rollouts_that_began_at_the_start(run):
    summary = summarize_run(run)
    assert (summary["branches"], summary["steps"], summary["group_sizes"]) == (
        2,
        9,
        {1: 2},
    )
    assert summary["total"]["success"] == 0.5
    assert rollout_table(scan_steps(run)).collect().height == 2
    assert statistics(run).summary["trajectories"].to_list() == [2]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([step("b", 1, "y", "nobody", 1)], "expected a trajectory of the same group"),
        ([step("b", 3, "v", "a", 3)], "with a step of branch_step after its first one"),
        ([step("b", 0, "x", "a", 0)], "with a step of branch_step after its first one"),
        ([step("b", 1, "other", "a", 1)], "expected the state of the parent's step"),
        ([step("b", 2, "z", "a", 1)], "expected contiguous steps"),
        (
            [step("b", 1, "y", "a", 1), step("b", 2, "w")],
            "expected parent and branch_step in all rows",
        ),
        (
            [step("b", 1, "y", "a", 1, group=1)],
            "expected a trajectory of the same group",
        ),
        ([step("b", 1, "y", "c", 1), step("c", 1, "y", "b", 1)], "after its first one"),
    ],
)
def test_wrong_branches_are_refused_and_found(tmp_path, raw_run, rows, line):
    with StepWriter(tmp_path / "run") as writer, pytest.raises(RowError, match=line):
        writer.add_group(ROOT + rows)
    writer = StepWriter(tmp_path / "good", run="rich")
    writer.add_group(ROOT)
    writer.close()
    stored = scan_steps(tmp_path / "good").collect()
    wrong = [
        stored[0].with_columns(
            pl.lit(v, stored.schema[k]).alias(k) for k, v in row.items()
        )
        for row in rows
    ]
    report = verify(
        raw_run(
            pl.concat([stored, *wrong]).sort("task_id", "group", "trajectory", "step")
        )
    )
    assert any(line in problem.message for problem in report.problems)
