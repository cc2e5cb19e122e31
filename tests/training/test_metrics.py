"""Metrics by hand, and where they go."""

import json
import math
import time

import polars as pl
import pytest
from rich.console import Console

from hgpo_envs.errors import InputError
from hgpo_train.config import Config, replace
from hgpo_train.display import Display
from hgpo_train.metrics import batch_metrics, episode_metrics
from hgpo_train.tracking import JsonLines, make_trackers, read_metrics


@pytest.fixture
def steps():
    """Three trajectories of two kinds: won in two steps, lost in one, broken off."""
    return pl.DataFrame(
        {
            "task_id": ["a", "a", "b", "b"],
            "group": [0, 0, 0, 0],
            "trajectory": ["x", "x", "y", "z"],
            "task_type": ["put", "put", "heat", "heat"],
            "won": [False, True, False, False],
            "aborted": [False, False, False, True],
            "score": [0.0, 1.0, 0.5, 0.0],
            "reward": [0.0, 1.0, 0.5, 0.0],
            "action_valid": [True, True, False, True],
        }
    )


def test_episodes_by_hand(steps):
    metrics = episode_metrics(steps)
    assert metrics["episode/success_rate"] == 0.5
    assert metrics["episode/put_success_rate"] == 1.0
    assert metrics["episode/heat_success_rate"] == 0.0
    assert metrics["episode/reward/mean"] == 0.75
    assert metrics["episode/length/mean"] == 1.5
    assert metrics["episode/valid_action_ratio"] == 0.75
    assert (metrics["episode/trajectories"], metrics["episode/aborted"]) == (3, 1)
    assert episode_metrics(steps.clear()) == {}


def test_batches_by_hand(steps):
    rows = steps.with_columns(
        pl.Series("advantage", [1.0, -1.0, 0.0, 2.0]),
        pl.Series("advantage_size_k0", [2, 2, 1, 1]),
        pl.Series("advantage_size_k1", [None, 3, None, 1]),
        pl.Series("advantage_weight_k1", [0.0, 0.5, 0.0, 0.0]),
        pl.Series("prompt_token_ids", [[1], [1, 2], [1, 2, 3], [1, 2]]),
        pl.Series("response_token_ids", [[1], [1], [1], [1, 2]]),
    )
    metrics = batch_metrics(rows, max_prompt_tokens=3, max_response_tokens=2)
    assert metrics["prompt_length/mean"] == 2.0
    assert metrics["prompt_length/clip_ratio"] == 0.25
    assert metrics["response_length/clip_ratio"] == 0.25
    assert metrics["critic/advantages/mean"] == 0.5
    assert metrics["critic/advantages/zero_ratio"] == 0.25
    assert metrics["groups/k0/shared_ratio"] == 0.5
    assert metrics["groups/k1/eligible_ratio"] == 0.5
    assert metrics["groups/k1/size_mean"] == 2.0
    assert metrics["groups/k1/weight_mean"] == 0.125
    assert metrics["training/groups"] == 2


def test_lines_that_will_be_written_again_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = JsonLines(path, 0)
    for iteration in range(4):
        first.log({"b": iteration, "a": math.nan}, iteration)
    with path.open("a") as file:
        file.write('{"iteration": 4, "b"')  # the process died here
    JsonLines(path, 2).log({"b": 20}, 2)
    assert [(line["iteration"], line["b"]) for line in read_metrics(path)] == [(0, 0), (1, 1), (2, 20)]
    assert json.loads(path.read_text().splitlines()[0]) == {"iteration": 0, "a": None, "b": 0}


def test_tensorboard_has_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = make_trackers(Config(), tmp_path, 1)
    for iteration in (1, 2):
        for tracker in trackers:
            tracker.log({"actor/kl_loss": iteration / 4}, iteration)
    for tracker in trackers:
        tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("actor/kl_loss")] == [(1, 0.25), (2, 0.5)]


def test_a_tracker_that_is_not_installed(tmp_path):
    config = replace(Config(), tracking={"wandb": "hgpo"})
    try:
        import wandb  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="pip install wandb"):
            make_trackers(config, tmp_path, 1)


def test_the_display_shows_what_there_is(tmp_path):
    path = tmp_path / "shown.txt"
    with path.open("w") as file:
        display = Display(Console(file=file, width=200, force_terminal=True), 3)
        with display.showing(), display.stage("collect"):
            display.row(1, {"episode/success_rate": 0.25, "actor/kl_loss": math.nan})
            time.sleep(0.3)  # it is drawn a few times a second
            display.progress(2, 5)
    shown = path.read_text()
    assert "25.0%" in shown
    assert "2 of 5 optimiser steps" in shown
    assert "kl" not in shown
