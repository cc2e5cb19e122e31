"""Functions of partitions: the same results in order from this process, from a pool, and from Ray."""

import os
import signal
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from groups import group

from hgpo_datasets import StepWriter, scan_steps
from hgpo_datasets.partitions import map_partitions, partitions
from hgpo_envs.errors import InputError, ProcessError


def tasks(steps: pl.LazyFrame, *, refuse: str = "", die: str = "") -> list[str]:
    """Return the tasks of some steps."""
    names = steps.select(pl.col("task_id").unique(maintain_order=True)).collect()["task_id"].to_list()
    if refuse in names:
        raise InputError(f"expected another task, received {refuse}")
    if die in names:
        os.kill(os.getpid(), signal.SIGKILL)
    return names


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run of six shards with six rows each."""
    with StepWriter(tmp_path / "run", shard_rows=1) as writer:
        for number in range(6):
            writer.add_group(group(f"t{number}"))
    return tmp_path / "run"


def test_partitions_are_consecutive_shards(run: Path) -> None:
    for rows, count in ((1, 6), (12, 3), (13, 3), (100, 1)):
        parts = partitions(run, rows)
        assert len(parts) == count
        assert pl.concat([part.scan() for part in parts]).collect().equals(scan_steps(run).collect())
    assert len(partitions(run, 1, whole=["run"])) == 1
    assert len(partitions([run, run / "steps"], 12)) == 3
    with pytest.raises(InputError, match="at least 1, received 0"):
        partitions(run, 0)


def test_results_are_in_order_with_any_number_of_processes(run: Path) -> None:
    parts = partitions(run, 6)
    expected = [[f"t{number}"] for number in range(6)]
    for processes in (1, 3):
        assert list(map_partitions(tasks, parts, processes=processes)) == expected
    assert list(map_partitions(tasks, [scan_steps(run)])) == [[f"t{number}" for number in range(6)]]
    with pytest.raises(InputError, match="expected another task, received t4"):
        list(map_partitions(partial(tasks, refuse="t4"), parts, processes=2))
    with pytest.raises(InputError, match="processes: expected an integer of at least 1"):
        list(map_partitions(tasks, parts, processes=0))


def test_a_process_that_is_killed_is_an_error(run: Path) -> None:
    with pytest.raises(ProcessError, match="a process was killed"):
        list(map_partitions(partial(tasks, die="t3"), partitions(run, 6), processes=2))


@pytest.mark.slow
def test_ray(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}:{root}/datasets:{root}/tests/worlds:{Path(__file__).parent}")
    parts = partitions(run, 6)
    assert list(map_partitions(tasks, parts, processes=2, ray=True)) == [[f"t{number}"] for number in range(6)]
    with pytest.raises(InputError, match=r"^expected another task, received t4$"):
        list(map_partitions(partial(tasks, refuse="t4"), parts, processes=2, ray=True))
    with pytest.raises(ProcessError, match="the Ray job failed"):
        list(map_partitions(partial(tasks, die="t3"), parts, processes=2, ray=True))
    assert not ray.is_initialized()
