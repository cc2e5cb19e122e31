"""The documents of the viewer's server: what its addresses answer."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from groups import write_run
from polars.testing import assert_series_equal
from refusals import refused
from viewed import HOSTILE, small_rows
from viewed_app import TOKEN, client_of

from hgpo_datasets import StepWriter, scan_steps
from hgpo_train.advantages import compute, names
from hgpo_train.proportions import paired_interval, wilson_interval
from hgpo_train.rollout import collect
from hgpo_train.view.sources import open_sources

Get = Callable[..., Any]


@pytest.fixture
def get():
    """Return a function of runs, which returns a function of an address: its document."""

    def of(*runs: Path) -> Get:
        client = client_of(*runs)

        def document(path: str, **query: Any) -> Any:
            answer = client.get(f"/{TOKEN}/api/{path}", params=query)
            assert answer.status_code == 200, answer.text
            return answer.json()

        return document

    return of


def test_the_overview_counts_a_small_run(small_run, get):
    seen = get(small_run)("runs/0/overview")
    total = seen["total"]
    assert (total["tasks"], seen["groups"], total["episodes"], total["steps"]) == (
        2,
        2,
        8,
        22,
    )
    assert seen["config"] == {"policy": "written by hand"}
    assert (total["aborted"], total["success"]) == (2, 4 / 6)
    assert total["valid"] == 16 / 18  # of the steps of rollouts that were not aborted
    assert total["intervals"]["mean_length"] is None, "two tasks are too few"
    low, high = total["intervals"]["success"]
    assert 0 < low < 4 / 6 < high < 1  # two tasks: wide
    assert high - low > 0.5
    assert [kind["task_type"] for kind in seen["task_types"]] == ["find", None]
    assert seen["outcomes"] == {"none": 0, "partly": 2, "all": 0}
    assert total["bounds"] == [4 / 8, 6 / 8], "two rollouts aborted: lost, or won"
    assert sum(row["aborted"] for row in seen["lengths"]) == 2
    assert total["admissible"] is None, "the table does not say"


def test_a_run_of_aborted_rollouts_alone_has_documents(tmp_path, get):
    step = {
        "task_id": "a",
        "step": 0,
        "state": "s",
        "action": "go",
        "reward": 0.0,
        "aborted": True,
        "error": "lost",
    }
    rows = [{**step, "trajectory": name} for name in "xy"]
    write_run(tmp_path / "run", rows)
    document = get(tmp_path / "run")
    assert document("runs/0/overview")["total"]["bounds"] == [0, 1]
    ended = {**step, "trajectory": "z", "aborted": False, "error": None}
    write_run(tmp_path / "unknown", [*rows, ended])
    total = get(tmp_path / "unknown")("runs/0/overview")["total"]
    assert total["bounds"] is None, "of the rollout that ended, nothing is known"
    for query in ({}, {"chance": "1"}):
        (sentence,) = document("runs/0/levels", **query)["sentences"]
        assert (
            sentence == "Every rollout was aborted (2), so there is nothing to compare."
        )


def test_rollouts_are_columns(small_run, get):
    """Each task has w and y, which won, x, which lost with an invalid action, and z, which was aborted after two."""
    seen = get(small_run)("runs/0/rollouts")
    assert seen["total"] == 8
    assert [(task["task_id"], task["task_type"]) for task in seen["tasks"]] == [
        ("alpha", "find"),
        ("omega", None),
    ]
    columns = seen["columns"]
    assert columns["trajectory"] == [
        f"{task}/0/{name}" for task in ("alpha", "omega") for name in "wxyz"
    ]
    assert columns["task"] == columns["number"] == [0] * 4 + [1] * 4
    assert columns["length"] == [3, 3, 3, 2] * 2
    assert columns["episode_return"] == [1, 0, 1, 0] * 2
    assert columns["invalid"] == [0, 1, 0, 0] * 2
    assert columns["aborted"] == [False, False, False, True] * 2
    assert columns["row"] == [0, 3, 6, 9, 11, 14, 17, 20]


def test_results_of_a_selection_are_those_of_the_commands(six_tasks, get):
    """Of w and x of every task: w always wins, x wins in tasks 1, 3 and 5."""
    bits = base64.urlsafe_b64encode(bytes([0b00110011] * 3)).decode()
    seen = get(six_tasks)("runs/0/results", rows=bits)
    assert (seen["episodes"], seen["tasks"], seen["success"]) == (12, 6, 0.75)
    assert seen["intervals"]["success"] == pytest.approx(wilson_interval(0.75, 6))


def test_what_the_steps_of_a_rollout_give(trained_run, token_run, get):
    """Advantages of training are 0.25, 1.25, 2.25 in alpha of iterations 0 and 1, without z, which was aborted."""
    document = get(trained_run, token_run)
    spread = document("runs/0/estimates", estimator="trained")["spread"]
    assert spread == [2.0, 2.0, 2.0, *[None] * 5] * 2 + [None] * 8
    table = scan_steps(trained_run).collect()
    advantages = (
        compute(table, "grpo").collect().filter(trajectory="omega/0/w")["advantage"]
    )
    assert (
        document("runs/0/estimates", estimator="grpo")["spread"][4]
        == advantages.max() - advantages.min()
    )
    tokens = (
        scan_steps(token_run)
        .select(pl.col("response_token_ids").list.len())
        .collect()
        .to_series()
        .to_list()
    )
    assert document("runs/1/estimates")["tokens"] == tokens


def test_two_runs_on_their_common_tasks(small_run, six_tasks, tmp_path, get):
    """In the other run, x wins the task as well."""
    rows = [
        row | {"won": row["won"] or row["trajectory"][-1] == "x"}
        for row in small_rows("omega")
    ]
    write_run(tmp_path / "other", rows[:9])
    document = get(small_run, tmp_path / "other", six_tasks)
    seen = document("runs/0/against/1")
    assert seen["total"] == 1
    difference = seen["differences"]["success"]
    assert [difference["low"], difference["high"]] == pytest.approx(
        paired_interval([1 / 3])
    )
    assert difference["difference"] == pytest.approx(1 / 3)
    assert (difference["tasks"], difference["better"], difference["worse"]) == (1, 1, 0)
    ((ours, theirs),) = (task["sides"] for task in seen["tasks"])
    assert (ours["success"], theirs["success"], ours["number"], theirs["number"]) == (
        pytest.approx(2 / 3),
        1.0,
        1,
        0,
    )
    assert document("runs/0/against/2") == {"differences": {}, "total": 0, "tasks": []}
    same = document("runs/2/against/2")["differences"]["success"]
    assert (same["low"], same["high"]) == paired_interval([0.0] * 6)
    assert (same["difference"], same["tasks"], same["better"], same["worse"]) == (
        0,
        6,
        0,
        0,
    )


def test_a_group_is_its_rows(rich_run, get):
    """Every row of the table, decoded from the documents again."""
    document = get(rich_run)
    table = scan_steps(rich_run).collect()
    row = 0
    for number in range(document("runs/0/overview")["groups"]):
        seen = document(f"runs/0/groups/{number}")
        steps = seen["steps"]
        members = seen["trajectories"]
        rows = table.slice(row, seen["rows"])
        assert seen["row"] == row
        assert [members[place]["trajectory"] for place in steps["trajectory"]] == rows[
            "trajectory"
        ].to_list()
        assert [seen["states"][place] for place in steps["state"]] == rows[
            "state"
        ].to_list()
        assert [seen["actions"][place] for place in steps["action"]] == rows[
            "action"
        ].to_list()
        nexts = [
            None if place is None else seen["states"][place] for place in steps["next"]
        ]
        following = pl.coalesce(
            "next_state", pl.col("state").shift(-1).over("trajectory")
        )
        assert nexts == rows.select(next=following)["next"].to_list()
        for kind, stem in (("states", "history"), ("states_actions", "context")):
            for k, numbers in enumerate(seen["contexts"][kind]):
                hashes = rows[f"{stem}_hash_{k}"].to_list()
                assert [number is None for number in numbers] == [
                    one is None for one in hashes
                ]
                assert (
                    len(set(zip(numbers, hashes, strict=True)))
                    == len(set(numbers))
                    == len(set(hashes))
                )
        row += seen["rows"]
    assert row == table.height


@pytest.mark.parametrize(
    "env_id",
    ["HGPO/ALFWorld-v0", pytest.param("HGPO/WebShop-v0", marks=pytest.mark.slow)],
)
def test_a_step_is_its_row(rich_run, get, tmp_path, env_id):
    run = rich_run if env_id == "HGPO/ALFWorld-v0" else tmp_path / "run"
    if run != rich_run:
        collect(env_id, "random", run, tasks=3)
    document = get(run)
    table = scan_steps(run).collect()
    documents = [
        step
        for row in range(0, table.height, 3)
        for step in document(f"runs/0/steps/{row}/{min(3, table.height - row)}")
    ]
    for seen, row in zip(documents, table.iter_rows(named=True), strict=True):
        for name in (
            "trajectory",
            "step",
            "state",
            "action",
            "prompt",
            "response",
            "admissible_actions",
        ):
            assert seen[name] == row[name]
        assert seen["tokens"] == row["response_token_ids"]
        assert seen["logprobs"] == pytest.approx(row["response_logprobs"])
        assert (seen["why_invalid"] is None) == row["action_valid"]
        # WebShop's list of actions has no searches
        assert seen["admissible"] == row["action_admissible"]


@pytest.mark.parametrize("estimator", names())
def test_advantages_are_those_of_the_library(rich_run, get, estimator):
    """Of one group by itself, also where the estimator needs all groups."""
    expected = compute(scan_steps(rich_run), estimator, gamma=0.5).collect()
    document = get(rich_run)
    for number in (0, 4):
        group = document(f"runs/0/groups/{number}")
        seen = document(
            f"runs/0/groups/{number}/estimates", estimator=estimator, set="gamma=0.5"
        )
        assert seen["parameters"]["gamma"] == 0.5
        rows = expected.slice(group["row"], group["rows"])
        assert_series_equal(
            pl.Series("advantage", seen["columns"]["advantage"]), rows["advantage"]
        )


def test_search_finds_texts(small_run, get):
    document = get(small_run)
    seen = document("runs/0/search", text="ROOM A")
    assert (seen["steps"], seen["rollouts"]) == (6, [0, 3, 9, 11, 14, 20])
    assert seen["hits"][0] == {"row": 0, "step": 0, "column": "state", "snippet": "room a",
                               "trajectory": "alpha/0/w"}  # fmt: skip
    assert document("runs/0/search", text="hung up")["hits"][0]["column"] == "error"
    assert document("runs/0/search", text=".*")["steps"] == 0


def test_curves_of_a_training_run(training_run, get):
    document = get(training_run)
    assert document("runs")["runs"][0]["training"]
    seen = document("runs/0/curves")
    assert [row["iteration"] for row in seen["results"]] == [0, 1, 2]
    assert [row["success"] for row in seen["results"]] == [2 / 3] * 3
    assert seen["metrics_iterations"] == [1, 2]  # the last line is being written
    assert seen["metrics"]["loss/policy"] == [1.0, 0.5]
    levels = document("runs/0/levels")
    assert levels["by_iteration"]["iterations"] == [0, 1, 2]
    assert levels["levels"][0]["shared"] == 1.0


def test_a_run_is_followed_while_it_is_written(tmp_path, get):
    with StepWriter(tmp_path / "live") as writer:
        writer.add_group(small_rows("alpha"))
        writer.commit()
        document = get(tmp_path / "live")
        assert document("runs")["runs"][0]["live"]
        assert document("runs/0/rollouts")["total"] == 4
        (before,) = document("versions")
        writer.add_group(small_rows("omega"))
        assert document("versions") == [before]
        writer.commit()
        assert document("versions") != [before]
        assert document("runs/0/rollouts")["total"] == 8
        assert document("runs/0/groups/1")["task_id"] == "omega"
    assert not document("runs")["runs"][0]["live"]


def test_an_evaluation_and_its_training_are_linked(training_run, get):
    """One of a checkpoint elsewhere; and those in and beside the folder, which begin when the page is open."""
    checkpoint = {
        "policy": {"name": f"transformers:{training_run}/checkpoints/000002"},
        "evaluation": True,
    }
    later = training_run.parent / "later"
    write_run(later, small_rows("omega"), config=checkpoint)
    document = get(training_run, later)
    before = document("versions")
    for name, config in (
        ("training/evaluation", {}),
        ("beside", checkpoint),
        ("other", {"evaluation": True}),
    ):
        write_run(training_run.parent / name, small_rows("omega"), config=config)
    assert document("versions")[:2] == before
    for runs in (document("runs")["runs"], get(training_run, later)("runs")["runs"]):
        trainers = {run["name"]: run["trainer"] for run in runs}
        assert trainers == {
            "training": None,
            "later": "training",
            "training/evaluation": "training",
            "beside": "training",
        }
    assert document("runs/2/overview")["total"]["episodes"] == 4


def test_long_texts_are_cut(hostile_run, get):
    document = get(hostile_run)
    large = HOSTILE["large"]
    states = document("runs/0/groups/0")["states"]
    assert {"cut": large[:20_000], "length": len(large)} in states
    row = 2 * list(HOSTILE).index("large") + 1
    assert document(f"runs/0/steps/{row}/1")[0]["prompt"]["length"] == len(large)


def test_a_run_before_its_first_commit_is_waited_for(tmp_path):
    with StepWriter(tmp_path / "live") as writer:
        with refused("no committed rows"):
            open_sources([str(tmp_path / "live")])
        client = client_of(tmp_path / "live", wait=True)
        (before,) = client.get(f"/{TOKEN}/api/runs").json()["runs"]
        assert "no committed rows" in before["problem"]
        writer.add_group(small_rows("alpha"))
    (after,) = client.get(f"/{TOKEN}/api/runs").json()["runs"]
    assert after["problem"] is None
    assert client.get(f"/{TOKEN}/api/runs/0/overview").json()["groups"] == 1
