"""What `hgpo quickstart --train` does, on the bundled games."""

import io

import pytest
from rich.console import Console

from hgpo_datasets import scan_steps
from hgpo_train.models.checkpoint_files import resolve_model
from hgpo_train.training.first_training import first_training
from hgpo_train.training.tracking import read_metrics


@pytest.mark.slow
def test_one_iteration_from_nothing(tmp_path):
    shown = io.StringIO()
    run = first_training(tmp_path, Console(file=shown, width=200))
    assert "held-out loss" in shown.getvalue()
    losses = [line["val/loss"] for line in read_metrics(tmp_path / "sft" / "metrics.jsonl")]
    assert losses[-1] < losses[0]
    lines = read_metrics(run / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == [0, 1]
    assert lines[1]["training/groups"] == 4
    assert lines[1]["actor/grad_norm"] >= 0
    assert resolve_model(str(run)).endswith("000001")
    steps = scan_steps(run / "steps").collect()
    assert steps["trajectory"].n_unique() == 16
    assert steps["prompt_token_ids"].list.len().max() <= 512
    assert first_training(tmp_path, Console(file=io.StringIO())) == run  # nothing is left to do
