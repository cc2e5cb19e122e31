"""What `hgpo data show` and `hgpo verify` say of a run, counted by hand."""

import json
import os
import sys
from collections.abc import Callable

import pytest
from groups import group, step, write_run
from refusals import refused

from hgpo_datasets import StepWriter
from hgpo_train.analysis.run_summary import summarize_run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path):
    """Two shards: task a won once in two, task b played twice with one aborted, an unknown kind."""
    folder = tmp_path / "first"
    with StepWriter(
        folder,
        config={"seed": 3},
        defaults={"env_id": "HGPO/ALFWorld-v0", "split": "train"},
    ) as writer:
        won = [
            step("a", "a0", 0),
            step("a", "a0", 1, won=True, terminated=True, reward=1.0, score=1.0),
        ]
        lost = [
            step("a", "a1", t, score=0.0, action_valid=t > 0, won=False)
            for t in range(4)
        ]
        writer.add_group({**row, "task_type": "pick"} for row in won + lost)
        writer.commit()
        writer.add_group(
            [
                step(
                    "b",
                    "b0",
                    0,
                    task_type="look",
                    won=False,
                    aborted=True,
                    error="gone",
                )
            ]
        )
        writer.add_group([step("b", "b1", 0, task_type="look", group=1, won=False)])
        writer.add_group(group("c", 1, 3, iteration=2))
    return folder


def test_the_overview_counts(run):
    summary = summarize_run(run)
    expected = {
        "runs": ["first"],
        "env_ids": ["HGPO/ALFWorld-v0"],
        "splits": ["train"],
        "iterations": [0, 2],
    }
    expected |= {
        "groups": 4,
        "group_sizes": {1: 3, 2: 1},
        "steps": 11,
        "shortest": 1,
        "median": 2.0,
        "longest": 4,
    }
    expected |= {"files": 2, "depth": 8, "config": {"seed": 3}}
    assert {name: summary[name] for name in expected} == expected
    assert summary["bytes"] == sum(file.stat().st_size for file in run.glob("steps/*"))
    assert 0 < sum(summary["family_bytes"].values()) < summary["bytes"]
    look, pick, unknown = summary["kinds"]
    success = {
        "success": 0.0,
        "success_if_aborted_lost": 0.0,
        "success_if_aborted_won": 0.5,
    }
    assert (
        look.items()
        >= {
            "task_type": "look",
            "tasks": 1,
            "episodes": 2,
            "aborted": 1,
            **success,
        }.items()
    )
    success = {
        "success": 0.5,
        "success_if_aborted_lost": 0.5,
        "success_if_aborted_won": 0.5,
    }
    assert (
        pick.items()
        >= {
            "task_type": "pick",
            "mean_return": 0.5,
            "mean_length": 3.0,
            "valid": 5 / 6,
        }.items()
    )
    assert pick.items() >= {"score": 0.5, **success}.items()
    assert (
        unknown.items()
        >= {
            "task_type": None,
            "episodes": 1,
            "score": None,
            "success_if_aborted_lost": None,
        }.items()
    )
    assert (
        summary["total"].items()
        >= {
            "success": 1 / 3,
            "success_if_aborted_lost": 0.2,
            "success_if_aborted_won": 0.6,
        }.items()
    )


def test_a_run_may_have_the_name_of_the_command(run, hgpo, monkeypatch):
    monkeypatch.chdir(run.parent)
    run.rename("run")
    expected = hgpo("data", "show", "./run", "--json")
    assert expected[0] == 0
    assert hgpo("data", "show", "run", "--json") == expected


def test_show_prints_json_and_tables(run, hgpo):
    shown = json.loads(hgpo("data", "show", run, "--json")[1])
    assert (shown["steps"], shown["group_sizes"], shown["total"]["episodes"]) == (
        11,
        {"1": 3, "2": 1},
        5,
    )
    text = " ".join(hgpo("data", "show", run)[1].split())
    for words in (
        "HGPO/ALFWorld-v0",
        "pick",
        "unknown",
        "hashes to depth 8",
        "3 of 1 rollout, 1 of 2 rollouts",
    ):
        assert words in text
    assert (
        "1 episode; success is 20.0% of all episodes if they are lost, 60.0% if they are won"
        in text
    )


@pytest.mark.slow
def test_verify_says_so_with_its_exit_code(run, hgpo):
    code, shown, _ = hgpo("verify", run, "--json")
    assert (code, json.loads(shown)[0]["ok"]) == (0, True)
    assert "no problems" in hgpo("verify", run)[1]
    file = run / "steps/steps-000001.parquet"
    file.write_bytes(file.read_bytes()[:-5])
    code, shown, _ = hgpo("verify", run, "--json")
    (report,) = json.loads(shown)
    assert (code, report["ok"], report["problems"][0]["kind"]) == (1, False, "size")
    assert "1 problem" in hgpo("verify", run)[1]
    code, shown, line = hgpo("verify", "--json", run, run.parent / "nothing")
    assert (code, "no such run or file" in line) == (2, True)
    assert [report["ok"] for report in json.loads(shown)] == [False], (
        "the other report is printed all the same"
    )


@pytest.mark.slow
def test_names_from_a_run_are_shown_as_they_are(tmp_path, hgpo):
    """Neither markup nor a terminal's control characters in them are obeyed."""
    write_run(
        tmp_path / "run",
        group("t", task_type="[bold]x", split="[/]"),
        run="[/red]\x1b[2J",
    )
    code, shown, _ = hgpo("data", "show", tmp_path / "run")
    assert (code, "[/red]" in shown, "[bold]x" in shown, "\x1b[2J" in shown) == (
        0,
        True,
        True,
        False,
    )
    (tmp_path / "run/steps/[bold]steps.parquet").write_bytes(b"")
    assert "[bold]steps.parquet" in hgpo("verify", tmp_path / "run")[1]


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="other file systems refuse such names"
)
def test_a_path_that_is_no_text_is_refused_in_one_line(tmp_path, hgpo):
    """Polars cannot open it."""
    odd = os.fsdecode(b"-\xff")
    write_run(tmp_path / "run", group("t"))
    (tmp_path / f"run/steps/extra{odd}.parquet").write_bytes(b"")
    code, shown, _ = hgpo("verify", tmp_path / "run", "--json")
    assert (code, "extra-\ufffd.parquet" in shown) == (1, True)
    (tmp_path / "run").rename(tmp_path / f"run{odd}")
    for call in (summarize_run, StepWriter):
        with refused("expected a UTF-8 path; rename it"):
            call(tmp_path / f"run{odd}")
