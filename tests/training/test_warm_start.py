"""Demonstrations for a small model, and its supervised training in one or two stages."""

import dataclasses
import io
import shutil

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
collect_demonstrations = Lazy("hgpo_train.training.warm_start:collect_demonstrations")
new_model = Lazy("hgpo_train.training.warm_start:new_model")
warm_start = Lazy("hgpo_train.training.warm_start:warm_start")


SHAPE = TinyShape(vocabulary=512, width=32, layers=1, heads=1, key_value_heads=1, intermediate=32)


def quiet() -> Display:
    return Display(Console(file=io.StringIO()), 1)


def test_each_data_source_is_demonstrated_equally_and_only_once(tmp_path):
    config = load_config("tiny-webshop")
    start = WarmStart(data=(str(bundled_folder()), str(bundled_folder())), demonstrations=8)
    for _ in range(2):  # the second call has nothing to do
        collect_demonstrations(tmp_path, config, start, quiet())
    steps = scan_steps(tmp_path).collect()
    assert steps.filter(steps["step"] == 0)["iteration"].value_counts().sort("iteration").rows() == [(0, 4), (1, 4)]
    assert steps.select("iteration", "trajectory", "step").is_unique().all()


@pytest.mark.slow
def test_existing_parts_are_reused_only_if_their_inputs_are_equal(tmp_path):
    """Other demonstrations, sizes, seeds, prompts or shops at the same path are a one-line error and change nothing."""
    config = load_config("tiny-webshop")
    shop = tmp_path / "shop"
    shutil.copytree(bundled_folder(), shop)
    start = WarmStart(demonstrations=8, data=(str(shop),), shape=SHAPE)
    steps = collect_demonstrations(tmp_path / "demonstrations", config, start, quiet())
    model = new_model(tmp_path / "model", steps, start)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    for change in (
        {"demonstrations": 4},
        {"seed": 1},
        {"policy": "explorer"},
    ):
        with pytest.raises(InputError, match="was written with"):
            collect_demonstrations(steps, config, dataclasses.replace(start, **change), quiet())
    other = dataclasses.replace(config.environment, history_length=1)
    with pytest.raises(InputError, match="was written with environment"):
        collect_demonstrations(steps, dataclasses.replace(config, environment=other), start, quiet())
    for change in ({"seed": 1}, {"shape": dataclasses.replace(SHAPE, width=48)}):
        with pytest.raises(InputError, match="created from other demonstrations, sizes or another seed"):
            new_model(model, steps, dataclasses.replace(start, **change))
    assert collect_demonstrations(steps, config, start, quiet()) == steps
    assert new_model(model, steps, start) == model
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before
    (shop / "more").write_text("another catalogue")
    with pytest.raises(InputError, match="was written with data"):
        collect_demonstrations(steps, config, start, quiet())


@pytest.mark.slow
def test_a_second_stage_continues_with_the_model_of_the_first(tmp_path):
    config = load_config("tiny-webshop")
    start = WarmStart(demonstrations=12, rows="all", epochs=2, batch=8, shape=SHAPE)
    first = warm_start(tmp_path / "first", config, start, quiet())
    second = warm_start(tmp_path / "second", config, dataclasses.replace(start, epochs=1), quiet(), first)
    assert not (tmp_path / "second" / "model").exists()
    losses = [read_metrics(folder / "metrics.jsonl")[-1]["train/loss"] for folder in (first, second)]
    assert losses[1] < losses[0]
