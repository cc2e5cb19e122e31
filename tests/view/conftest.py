"""Fixtures that write runs to look at."""

from pathlib import Path

import pytest
from groups import write_rich_run
from viewed import hostile_rows, small_rows, write_training

from hgpo_datasets import StepWriter


@pytest.fixture
def small_run(tmp_path: Path) -> Path:
    """Write a run of two tasks."""
    folder = tmp_path / "small"
    with StepWriter(folder, config={"policy": "written by hand"}) as writer:
        writer.add_group(small_rows("alpha"))
        writer.commit()
        writer.add_group(small_rows("omega"))
    return folder


@pytest.fixture
def rich_run(tmp_path: Path) -> Path:
    """Write a run of six tasks in three shards, with a value in every column."""
    return write_rich_run(tmp_path / "rich")


@pytest.fixture
def hostile_run(tmp_path: Path) -> Path:
    """Write a run whose texts try to run code."""
    folder = tmp_path / "hostile"
    with StepWriter(folder) as writer:
        writer.add_group(hostile_rows())
    return folder


@pytest.fixture
def training_run(tmp_path: Path) -> Path:
    """Write a training run."""
    write_training(tmp_path / "training")
    return tmp_path / "training"
