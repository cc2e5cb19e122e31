"""Demonstrations for a small model, and its supervised training in one or two stages."""

import dataclasses
import io

import pytest
from lazily import Lazy
from rich.console import Console

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_train.models.tiny import TinyShape
from hgpo_train.training.config import load_config
from hgpo_train.training.display import Display
from hgpo_train.training.tracking import read_metrics

WarmStart = Lazy("hgpo_train.training.warm_start:WarmStart")
warm_start = Lazy("hgpo_train.training.warm_start:warm_start")

SHAPE = TinyShape(vocabulary=512, width=32, layers=1, heads=1, key_value_heads=1, intermediate=32)


@pytest.mark.slow
def test_stages_continue_and_parts_are_reused_only_with_equal_settings(tmp_path):
    """Each data source is demonstrated equally and only once; a second stage trains the model of the first."""
    config, display = load_config("tiny-webshop"), Display(Console(file=io.StringIO()), 1)
    data = (str(bundled_folder()), str(bundled_folder()))
    start = WarmStart(data=data, demonstrations=12, rows="all", epochs=2, batch=8, shape=SHAPE)
    first = warm_start(tmp_path / "first", config, start, display)
    steps = scan_steps(tmp_path / "first" / "demonstrations").collect()
    assert steps.filter(steps["step"] == 0)["run"].value_counts().sort("run").rows() == [("00", 6), ("01", 6)]
    weights = (tmp_path / "first" / "sft" / "checkpoints").rglob("*.safetensors")
    before = {path: path.read_bytes() for path in weights}
    assert warm_start(tmp_path / "first", config, start, display) == first
    assert before == {path: path.read_bytes() for path in before}
    for change, message in (
        ({"policy": "explorer"}, "was written with policy.name"),
        ({"seed": 1}, "was written with seed"),
        ({"shape": dataclasses.replace(SHAPE, width=48)}, "belongs to another model"),
    ):
        with pytest.raises(InputError, match=message):
            warm_start(tmp_path / "first", config, dataclasses.replace(start, **change), display)
    second = warm_start(tmp_path / "second", config, dataclasses.replace(start, epochs=1), display, first)
    assert not (tmp_path / "second" / "model").exists()
    losses = [read_metrics(folder / "metrics.jsonl")[-1]["train/loss"] for folder in (first, second)]
    assert losses[1] < losses[0]
