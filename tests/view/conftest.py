"""Fixtures that write runs to look at."""

from pathlib import Path

import pytest
from groups import write_rich_run
from viewed import hostile_rows, small_rows, write_token_run, write_trained, write_training

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
def six_tasks(tmp_path: Path) -> Path:
    """Write a run of six tasks; in some of them, x wins as well."""
    with StepWriter(tmp_path / "six") as writer:
        for number in range(6):
            rows = small_rows(f"task {number}")
            for row in rows:
                if number % 2 and row["trajectory"].endswith("x") and row["terminated"]:
                    row |= {"reward": 1.0, "won": True}
            writer.add_group(rows)
    return tmp_path / "six"


@pytest.fixture
def token_run(tmp_path: Path) -> Path:
    """Write a run that names a model whose tokenizer is on this machine."""
    pytest.importorskip("tokenizers")
    return write_token_run(tmp_path)


@pytest.fixture
def training_run(tmp_path: Path) -> Path:
    """Write a training run."""
    write_training(tmp_path / "training")
    return tmp_path / "training"


@pytest.fixture
def trained_run(tmp_path: Path) -> Path:
    """Write a training run with the advantages that it was trained on."""
    write_trained(tmp_path / "trained")
    return tmp_path / "trained"
