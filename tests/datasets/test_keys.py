"""Success, keys of states, the recipes of docs/step_table.md, and functions of partitions."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import nightly
import polars as pl
import pytest
from command import ROOT, environment
from groups import group, step, write_run
from refusals import refused

from hgpo_datasets import RowError, StepWriter, scan_steps, verify
from hgpo_datasets.partitions import map_partitions, partitions
from hgpo_envs.errors import InputError, ProcessError
from hgpo_envs.hashing import text_hash


def blocks(language):
    page = (ROOT / "docs/step_table.md").read_text("utf-8")
    section = page.partition("## Keys and success rates")[2].partition("\n## ")[0]
    return (
        match[1]
        for match in re.finditer(rf"```{language}\n(.*?)```", section, re.DOTALL)
    )


@pytest.fixture
def first(tmp_path, monkeypatch):
    """Write runs/first: of three tasks with four rollouts each, all, half and none are won in their last steps."""
    monkeypatch.chdir(tmp_path)
    with StepWriter(
        "runs/first", defaults={"env_id": "E", "task_type": "pick", "won": False}
    ) as writer:
        for number, task in enumerate(("all", "half", "none")):
            rows = group(task, 4, 5)
            for member, row in enumerate(rows[4::5]):
                row |= {
                    "won": member >= 2 * number,
                    "terminated": True,
                    "aborted": False,
                }
            if task == "none":
                rows.append(
                    step("none", "none/9", 0, won=False, aborted=True, error="lost")
                )
            writer.add_group(rows)
    return Path("runs/first")


def test_the_recipes_count_trajectories(first):
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(block, names)
    assert names["success"] == 6 / 13
    assert isinstance(by_task := names["by_task"], pl.DataFrame)
    assert by_task.sort("task_id").rows() == [
        ("E", "all", 1.0, 4),
        ("E", "half", 0.5, 4),
        ("E", "none", 0.0, 5),
    ]
    assert isinstance(bounds := names["bounds"], pl.DataFrame)
    assert bounds.row(0) == (6 / 13, 7 / 13)
    duckdb = pytest.importorskip("duckdb")
    (query,) = blocks("sql")
    assert duckdb.sql(query).fetchall() == [("pick", 6 / 13, 13)]
    # the trap
    assert (
        scan_steps(first).filter(step=0).select("won").collect()["won"].any() is False
    )


def test_success_of_a_trajectory(tmp_path):
    known = {
        (False, True, False): True,
        (None, None, False): False,
        (None, True, None): True,
    }
    for flags, expected in {
        **known,
        (False, False, None): None,
        (None, None, None): None,
    }.items():
        rows = [step("t", f"{flags}", t, won=flag) for t, flag in enumerate(flags)]
        with StepWriter(tmp_path / f"{flags}") as writer:
            writer.add_group(rows)
            with pytest.raises(RowError, match="expected episode_won"):
                writer.add_group(
                    [
                        {**row, "task_id": "u", "episode_won": not expected}
                        for row in rows
                    ]
                )
        assert (
            scan_steps(tmp_path / f"{flags}").collect()["episode_won"].to_list()
            == [expected] * 3
        )
        assert verify(tmp_path / f"{flags}").ok


def test_hashes_of_keys_are_kept(tmp_path):
    """A status line with a counter does not tell states apart; the texts stay what the policy reads."""
    rows = [
        step(
            "t",
            trajectory,
            t,
            state=f"room {t} of {trajectory}",
            state_hash=text_hash(f"room {t}"),
        )
        for trajectory in "ab"
        for t in range(3)
    ]
    rows[-1] |= {"next_state": "the end of b", "next_state_hash": text_hash("the end")}
    write_run(tmp_path / "keys", rows, depth=1)
    write_run(tmp_path / "texts", group("t", 2, 3), depth=1)
    keys = scan_steps(tmp_path / "keys").collect()
    texts = scan_steps(tmp_path / "texts").collect()
    hashes = [
        name for name in keys.columns if "_hash" in name and name != "next_state_hash"
    ]
    assert keys.select(hashes).equals(texts.select(hashes))
    following = [
        *keys["state_hash"][1:3],
        None,
        *keys["state_hash"][4:],
        text_hash("the end"),
    ]
    assert keys["next_state_hash"].to_list() == following
    assert keys["state"][3] == "room 0 of b"
    assert verify(tmp_path / "keys").ok
    write_run(tmp_path / "copy", keys, run="keys", depth=1)
    assert scan_steps(tmp_path / "copy").collect().equals(keys)


def tasks(steps, *, refuse="", die=""):
    """Return the tasks of some steps."""
    names = (
        steps.select(pl.col("task_id").unique(maintain_order=True))
        .collect()["task_id"]
        .to_list()
    )
    if refuse in names:
        raise InputError(f"expected another task, received {refuse}")
    if die in names:
        os.kill(os.getpid(), signal.SIGKILL)
    return names


@pytest.fixture
def run(tmp_path):
    """Write a run of six shards with six rows each."""
    write_run(
        tmp_path / "run", *(group(f"t{number}") for number in range(6)), shard_rows=1
    )
    return tmp_path / "run"


def test_partitions_are_consecutive_shards(run):
    for rows, count in ((1, 6), (12, 3), (13, 3), (100, 1)):
        parts = partitions(run, rows)
        assert len(parts) == count
        assert (
            pl.concat([part.scan() for part in parts])
            .collect()
            .equals(scan_steps(run).collect())
        )
    assert len(partitions(run, 1, whole=["run"])) == 1
    assert len(partitions([run, run / "steps"], 12)) == 3
    with refused("at least 1, received 0"):
        partitions(run, 0)


@pytest.mark.slow
def test_results_are_in_order_with_any_number_of_processes(run):
    parts = partitions(run, 6)
    expected = [[f"t{number}"] for number in range(6)]
    for processes in (1, 3):
        assert list(map_partitions(tasks, parts, processes=processes)) == expected
    assert list(map_partitions(tasks, [scan_steps(run)])) == [
        [f"t{number}" for number in range(6)]
    ]
    with refused("expected another task, received t4"):
        list(map_partitions(partial(tasks, refuse="t4"), parts, processes=2))
    with refused("processes: expected an integer of at least 1"):
        list(map_partitions(tasks, parts, processes=0))


@pytest.mark.slow
def test_a_process_that_is_killed_is_an_error(run):
    with pytest.raises(ProcessError, match="a process was killed"):
        list(map_partitions(partial(tasks, die="t3"), partitions(run, 6), processes=2))


@pytest.mark.slow
@pytest.mark.skipif(
    not nightly.ALL, reason="nightly: tests/advantages/test_writing.py uses Ray, too"
)
def test_ray(run, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", environment(Path(__file__).parent)["PYTHONPATH"])
    parts = partitions(run, 6)
    assert list(map_partitions(tasks, parts, processes=2, ray=True)) == [
        [f"t{number}"] for number in range(6)
    ]
    with refused(r"^expected another task, received t4$"):
        list(map_partitions(partial(tasks, refuse="t4"), parts, processes=2, ray=True))
    with pytest.raises(ProcessError, match="the Ray job failed"):
        list(map_partitions(partial(tasks, die="t3"), parts, processes=2, ray=True))
    assert not ray.is_initialized()
