"""Demonstrations for a small model, and what it learns from them stage by stage."""

import dataclasses
import io

from rich.console import Console

from hgpo_datasets import scan_steps
from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_train.config import load_config
from hgpo_train.display import Display
from hgpo_train.tiny import TinyShape
from hgpo_train.tracking import read_metrics
from hgpo_train.warm_start import WarmStart, demonstrate, warm_start

SHAPE = TinyShape(vocabulary=512, width=32, layers=1, heads=1, key_value_heads=1, intermediate=32)


def quiet() -> Display:
    return Display(Console(file=io.StringIO()), 1)


def test_each_place_is_demonstrated_as_much_and_only_once(tmp_path):
    config = load_config("tiny-webshop")
    start = WarmStart(data=(str(bundled_folder()), str(bundled_folder())), demonstrations=8)
    for _ in range(2):  # the second time everything is there already
        demonstrate(tmp_path, config, start, quiet())
    steps = scan_steps(tmp_path).collect()
    assert steps.filter(steps["step"] == 0)["iteration"].value_counts().sort("iteration").rows() == [(0, 4), (1, 4)]
    assert steps.select("iteration", "trajectory", "step").is_unique().all()


def test_a_second_stage_goes_on_with_the_model_of_the_first(tmp_path):
    config = load_config("tiny-webshop")
    start = WarmStart(demonstrations=12, rows="all", epochs=2, batch=8, shape=SHAPE)
    first = warm_start(tmp_path / "first", config, start, quiet())
    second = warm_start(tmp_path / "second", config, dataclasses.replace(start, epochs=1), quiet(), first)
    assert not (tmp_path / "second" / "model").exists()
    losses = [read_metrics(folder / "metrics.jsonl")[-1]["train/loss"] for folder in (first, second)]
    assert losses[1] < losses[0]
