"""The quick start: reproducible bytes, its figures against the tables, and its output."""

import shlex
from collections import Counter

import polars as pl
import pytest
from command import outcome

from hgpo_datasets import scan_steps
from hgpo_train.analysis.statistics import statistics
from hgpo_train.cli.common import program
from hgpo_train.cli.quickstart_run import DEPTHS, quickstart


def test_the_same_seed_gives_the_same_steps_and_advantages(tmp_path):
    first, second = (
        quickstart(tmp_path / name, seed=3, tasks=2, group_size=3)
        for name in ("a", "b")
    )
    drop = ["run"]
    assert (
        scan_steps(first.run)
        .drop(drop)
        .collect()
        .equals(scan_steps(second.run).drop(drop).collect())
    )
    assert first.depths.equals(second.depths)
    other = quickstart(tmp_path / "c", seed=4, tasks=2, group_size=3)
    assert (
        not scan_steps(first.run)
        .select("action")
        .collect()
        .equals(scan_steps(other.run).select("action").collect())
    )


def test_the_quickstart_numbers_match_plain_counting(tmp_path):
    found = quickstart(tmp_path, tasks=4, group_size=4)
    steps = (
        scan_steps(found.run)
        .select("task_id", "group", "trajectory", "step", "state")
        .collect()
        .rows()
    )
    texts = {(trajectory, step): state for *_, trajectory, step, state in steps}
    for row in found.depths.iter_rows(named=True):
        k = row["K"]
        windows = [
            (
                task,
                group,
                state,
                tuple(
                    texts.get((trajectory, t)) for t in range(max(0, step - k), step)
                ),
            )
            for task, group, trajectory, step, state in steps
        ]
        pairs = differing = 0
        counts = Counter(
            (window, step >= k)
            for window, (*_, step, _) in zip(windows, steps, strict=True)
        )
        shared = sum(
            count for (_, whole), count in counts.items() if whole and count > 1
        )
        assert row["shared"] == pytest.approx(shared / len(steps))
        for i, (task, group, state, past) in enumerate(windows):
            for j, (other_task, other_group, other_state, other_past) in enumerate(
                windows
            ):
                if i != j and (task, group, state) == (
                    other_task,
                    other_group,
                    other_state,
                ):
                    pairs += 1
                    differing += past != other_past
        assert pairs > 50
        assert row["inconsistent"] == pytest.approx(differing / pairs)
    assert found.depths["K"].to_list() == list(DEPTHS)


@pytest.mark.slow
def test_the_run_shows_what_estimators_differ_in(tmp_path):
    """About half of the rollouts win, most groups are mixed, few actions change nothing, and all levels have groups."""
    for seed in range(3):
        found = quickstart(tmp_path / str(seed), seed=seed)
        run = statistics(found.run).summary.row(0, named=True)
        assert 0.35 < run["success"] < 0.65
        assert run["flat_groups"] < 0.25
        assert 0 < run["unchanged"] < 0.05
        assert found.depths["shared"].is_sorted(descending=True)
        assert found.depths["shared"].min() > 0.1
        assert found.depths["shift"].to_list() == sorted(
            set(found.depths["shift"].to_list())
        )


@pytest.mark.slow
def test_the_next_commands_work_as_they_are_printed(tmp_path):
    """In a folder with a space, on a narrow terminal; a second call plays nothing."""
    arguments = [
        "quickstart",
        "--out",
        str(tmp_path / "a b"),
        "--tasks",
        "2",
        "--group-size",
        "3",
    ]
    first, second = (outcome(*arguments, COLUMNS="60") for _ in range(2))
    assert first[0] == second[0] == 0, first
    assert "steps/s" in first[1]
    assert "already" in second[1]
    table = pl.read_parquet(tmp_path / "a b/run.advantages/hgpo_by_depth.parquet")
    assert {f"advantage_k{k}" for k in DEPTHS} <= set(table.columns)
    following = first[1].split("Next:\n")[1].splitlines()
    assert all(line.startswith(("  hgpo ", "      ")) for line in following), first[1]
    commands = [
        shlex.split(line)[1:]
        for line in first[1].splitlines()
        if line.startswith("  hgpo ")
    ]
    assert [words[0] for words in commands] == [
        "view",
        "stats",
        "advantages",
        "data",
        "eval",
    ]
    for words in commands:
        code, shown = outcome(*words)
        assert code == 0, (words, shown)
    deeper = [
        "advantages",
        str(tmp_path / "a b/run"),
        "-e",
        "hgpo:history_length=4",
        "--overwrite",
    ]
    note = "Note: prompts show 2 past steps, advantages compare 4 past states"
    assert note in outcome(*deeper)[1]
    assert (tmp_path / "a b/page.html").stat().st_size > 100_000


def test_commands_are_shown_as_this_program_is_called(tmp_path, monkeypatch):
    """`hgpo` where the shell would find this program, otherwise the path that was typed if it is a file's."""
    for folder in ("active", "other one"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "hgpo").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "active"))
    shown = []
    for called in (
        tmp_path / "active/hgpo",
        tmp_path / "other one/hgpo",
        "/usr/bin/pytest",
        "/no/such/hgpo",
    ):
        monkeypatch.setattr("sys.argv", [str(called)])
        shown.append(program())
    assert shown == ["hgpo", f"'{tmp_path}/other one/hgpo'", "hgpo", "hgpo"]
