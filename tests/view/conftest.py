"""Fixtures of runs to look at. Each is written once, and every test receives a copy of its own."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from groups import write_rich_run
from viewed import hostile_rows, small_rows, write_token_run, write_trained, write_training

from hgpo_datasets import StepWriter

Copied = Callable[[Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """Return a function that returns the run that a function writes."""

    @cache
    def written(write: Callable[[Path], object]) -> Path:
        folder = tmp_path_factory.mktemp("written") / "run"
        write(folder)
        return folder

    return written


@pytest.fixture
def copied(_written: Copied, tmp_path: Path) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return a function that copies the run that a function writes to a folder of a name."""
    return lambda name, write: Path(shutil.copytree(_written(write), tmp_path / name))


def write_small(folder: Path) -> None:
    """Write a run of two tasks."""
    with StepWriter(folder, config={"policy": "written by hand"}) as writer:
        writer.add_group(small_rows("alpha"))
        writer.commit()
        writer.add_group(small_rows("omega"))


def write_hostile(folder: Path) -> None:
    """Write a run whose texts try to run code."""
    with StepWriter(folder) as writer:
        writer.add_group(hostile_rows())


def write_six(folder: Path) -> None:
    """Write a run of six tasks; in some of them, x wins as well."""
    with StepWriter(folder) as writer:
        for number in range(6):
            rows = small_rows(f"task {number}")
            for row in rows:
                if number % 2 and row["trajectory"].endswith("x") and row["terminated"]:
                    row |= {"reward": 1.0, "won": True}
            writer.add_group(rows)


def write_branched(folder: Path) -> None:
    """Write one task: a lost, b won, c and d leave a at step 1, and e leaves c at step 2; d and e won."""
    same = {"task_id": "t", "group": 0, "action": "go", "reward": 0.0, "action_valid": True, "won": False}
    won = {"terminated": True, "won": True, "reward": 1.0}
    rows = [same | {"trajectory": "a", "step": step, "state": f"s{step}"} for step in range(3)]
    rows.append(same | won | {"trajectory": "b", "step": 0, "state": "s0"})
    at_one = {"step": 1, "state": "s1", "parent": "a", "branch_step": 1}
    rows.append(same | at_one | {"trajectory": "c", "action": "stay"})
    rows.append(same | at_one | {"trajectory": "c", "action": "stay", "step": 2})
    rows.append(same | won | at_one | {"trajectory": "d", "action": "run"})
    rows.append(same | won | {"trajectory": "e", "step": 2, "state": "s1", "parent": "c", "branch_step": 2})
    with StepWriter(folder, config={"branches": {"at": "uniform"}}) as writer:
        writer.add_group(rows)


@pytest.fixture
def branched_run(copied) -> Path:
    return copied("branched", write_branched)


@pytest.fixture
def small_run(copied) -> Path:
    return copied("small", write_small)


@pytest.fixture
def rich_run(copied) -> Path:
    """A run of six tasks in three shards, with a value in every column."""
    return copied("rich", write_rich_run)


@pytest.fixture
def hostile_run(copied) -> Path:
    return copied("hostile", write_hostile)


@pytest.fixture
def six_tasks(copied) -> Path:
    return copied("six", write_six)


@pytest.fixture
def training_run(copied) -> Path:
    return copied("training", write_training)


@pytest.fixture
def trained_run(copied) -> Path:
    """A training run with the advantages that it was trained on."""
    return copied("trained", write_trained)


@pytest.fixture
def token_run(tmp_path: Path) -> Path:
    """Write a run that names a model whose tokenizer is on this machine."""
    pytest.importorskip("tokenizers")
    return write_token_run(tmp_path)
