"""Demonstrations for a small model, its supervised training in stages, and `hgpo quickstart --train`."""

import dataclasses
import io
from pathlib import Path

import polars as pl
import pytest
from lazily import lazily
from refusals import refused
from rich.console import Console

from hgpo_datasets import scan_steps
from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_train.evaluation import compare
from hgpo_train.evaluation.reporting_rules import by_seed
from hgpo_train.models.checkpoint_files import resolve_model
from hgpo_train.models.tiny import TinyShape
from hgpo_train.training.config import load_config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.tracking import read_metrics

(Trainer,) = lazily("hgpo_train.training.trainer", "Trainer")
WarmStart, warm_start = lazily("hgpo_train.training.warm_start", "WarmStart warm_start")

SHAPE = TinyShape(
    vocabulary=512, width=32, layers=1, heads=1, key_value_heads=1, intermediate=32
)


@pytest.mark.slow
def test_stages_continue_and_parts_are_reused_only_with_equal_settings(tmp_path):
    """Each data source is demonstrated equally and only once; a second stage trains the model of the first."""
    config = load_config("tiny-webshop")
    display = Display(Console(file=io.StringIO()), 1)
    data = (str(bundled_folder()), str(bundled_folder()))
    start = WarmStart(
        data=data, demonstrations=12, rows="all", epochs=2, batch=8, shape=SHAPE
    )
    first = warm_start(tmp_path / "first", config, start, display)
    steps = scan_steps(tmp_path / "first" / "demonstrations").collect()
    assert steps.filter(steps["step"] == 0)["run"].value_counts().sort(
        "run"
    ).rows() == [
        ("00", 6),
        ("01", 6),
    ]
    checkpoints = tmp_path / "first" / "sft" / "checkpoints"
    before = {path: path.read_bytes() for path in checkpoints.rglob("*.safetensors")}
    assert warm_start(tmp_path / "first", config, start, display) == first
    assert before == {path: path.read_bytes() for path in before}
    for change, message in (
        ({"policy": "explorer"}, "was written with policy.name"),
        ({"seed": 1}, "was written with seed"),
        ({"shape": dataclasses.replace(SHAPE, width=48)}, "belongs to another model"),
    ):
        with refused(message):
            warm_start(
                tmp_path / "first",
                config,
                dataclasses.replace(start, **change),
                display,
            )
    (tmp_path / "first" / "model" / ".warm-start").unlink()
    with refused("model was not created by this command and cannot be replaced"):
        warm_start(tmp_path / "first", config, start, display)
    second = warm_start(
        tmp_path / "second",
        config,
        dataclasses.replace(start, epochs=1),
        display,
        first,
    )
    assert not (tmp_path / "second" / "model").exists()
    losses = [
        read_metrics(folder / "metrics.jsonl")[-1]["train/loss"]
        for folder in (first, second)
    ]
    assert losses[1] < losses[0]


FirstTraining, first_training = lazily(
    "hgpo_train.training.first_training", "FirstTraining first_training"
)


def fewer_episodes(name):
    """Return a shipped configuration with a tenth of the episodes, which are short."""
    sizes = {
        "rollout": {"tasks": 3, "group_size": 3},
        "evaluation": {"tasks": 6, "group_size": 2},
    }
    return replace(load_config(name), environment={"max_steps": 6}, **sizes)


@pytest.mark.slow
def test_one_iteration_of_the_bundled_model(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "hgpo_train.training.first_training.load_config", fewer_episodes
    )
    monkeypatch.setattr("hgpo_train.training.display._SHORT_S", 0.0)
    shown = io.StringIO()
    result = first_training(tmp_path, Console(file=shown, width=200), iterations=1)
    lines = shown.getvalue().splitlines()
    assert [line[:4] for line in lines if "held out" in line] == ["0/1 ", "1/1 "]
    metrics = read_metrics(result.run / "metrics.jsonl")
    assert [line["iteration"] for line in metrics] == [0, 1]
    assert result.change.tasks == 6
    rates = [found.value for found in result.success.values()]
    assert rates == pytest.approx([line["val/success_rate"] for line in metrics])
    assert "iteration" in (tmp_path / "curve.svg").read_text("utf-8")
    assert any(line.startswith("   collect: 9 rollouts") for line in lines), (
        "off a terminal, a stage has a line"
    )
    assert resolve_model(str(result.run)).endswith("000001")
    steps = scan_steps(result.run / "steps").collect()
    assert steps["trajectory"].n_unique() == 9
    held_out = scan_steps(result.run / "evaluation").collect()
    assert held_out.filter(pl.col("iteration") == 0)["trajectory"].n_unique() == 12
    assert steps["prompt_token_ids"].list.len().max() <= 512
    # nothing is left to do
    assert first_training(tmp_path, Console(file=io.StringIO()), iterations=1) == result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"), [("tiny-alfworld", 0.15), ("tiny-webshop", 0.02)]
)
def test_the_bundled_models_solve_tasks(name, least, tmp_path):
    """As `hgpo train NAME` plays them: 96 rollouts of held-out tasks; they solve about 31% and 8%."""
    config = replace(
        load_config(name), iterations=1, evaluation={"tasks": 24, "group_size": 4}
    )
    trainer = Trainer(config, tmp_path / "run", Display(Console(file=io.StringIO()), 1))
    assert trainer.evaluate()["val/success_rate"] > least


def played(seed, wins):
    """Return four episodes of each game, so many of which won."""
    rows = [
        {"seed": seed, "task_id": f"{game}", "won": number < won}
        for game, won in enumerate(wins)
        for number in range(4)
    ]
    return pl.DataFrame(rows).with_columns(
        env_id=pl.lit("e"),
        task=pl.lit("win"),
        aborted=pl.lit(value=False),
        success="won",
    )


def test_the_verdict_claims_an_improvement_only_beyond_chance():
    """Games are paired: what counts is by how much their differences vary."""
    some = [1] * 30 + [2] * 6
    none = [0] * 36
    most = [3] * 36
    noisy = [0, 0, 4] * 12
    for before, after, words in (
        (some, most, "became better"),
        (most, some, "became worse"),
        (some, noisy, "does not show"),
        (none, none, "does not show"),
    ):
        episodes = pl.concat(
            played(seed, wins) for seed, wins in ((0, before), (3, some), (6, after))
        )
        change = compare(played(6, after), played(0, before))
        result = FirstTraining(Path("run"), by_seed(episodes), change)
        assert words in result.verdict()
        first, *_, last = result.curve().splitlines()[1:]
        assert f"{sum(before) / 144:.0%}" in first
        assert f"{sum(after) / 144:.0%}" in last
        assert len(result.curve().splitlines()) == 4
