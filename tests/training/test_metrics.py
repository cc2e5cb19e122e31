"""Metrics against values by hand, and the trackers that record them."""

import json
import math

import polars as pl
import pytest
from refusals import refused
from rich.console import Console

from hgpo_train.training.config import Config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.metrics import batch_metrics, episode_metrics
from hgpo_train.training.tracking import Trackers, read_metrics


@pytest.fixture
def steps():
    """Return three trajectories of two task types: won in two steps, lost in one step, aborted."""
    rows = [("x", "put", False, False, 0.0, True), ("x", "put", True, False, 1.0, True)]
    rows += [
        ("y", "heat", False, False, 0.5, False),
        ("z", "heat", False, True, 0.0, True),
    ]
    table = pl.DataFrame(
        rows,
        ["trajectory", "task_type", "won", "aborted", "score", "action_valid"],
        orient="row",
    )
    return table.with_columns(
        task_id=pl.Series(["a", "a", "b", "b"]), group=0, reward="score"
    )


def test_episode_metrics_match_values_by_hand(steps):
    expected = {
        "success_rate": 0.5,
        "put_success_rate": 1.0,
        "heat_success_rate": 0.0,
        "reward/mean": 0.75,
    }
    expected |= {
        "length/mean": 1.5,
        "valid_action_ratio": 0.75,
        "trajectories": 3,
        "aborted": 1,
    }
    found = episode_metrics(steps)
    assert {name: found[f"episode/{name}"] for name in expected} == expected
    interval = [found["episode/success_95_low"], found["episode/success_95_high"]]
    # Wilson's, of one of two tasks
    assert interval == pytest.approx([0.0945, 0.9055], abs=1e-4)
    assert episode_metrics(steps.clear()) == {}


def test_batch_metrics_match_values_by_hand(steps):
    rows = steps.with_columns(
        pl.Series("advantage", [1.0, -1.0, 0.0, 2.0]),
        pl.Series("advantage_size_k0", [2, 2, 1, 1]),
        pl.Series("advantage_size_k1", [None, 3, None, 1]),
        pl.Series("advantage_weight_k1", [0.0, 0.5, 0.0, 0.0]),
        pl.Series("prompt_token_ids", [[1], [1, 2], [1, 2, 3], [1, 2]]),
        pl.Series("response_token_ids", [[1], [1], [1], [1, 2]]),
    )
    expected = {
        "prompt_length/mean": 2.0,
        "prompt_length/clip_ratio": 0.25,
        "response_length/clip_ratio": 0.25,
    }
    expected |= {
        "critic/advantages/mean": 0.5,
        "critic/advantages/zero_ratio": 0.25,
        "groups/k0/shared_ratio": 0.5,
    }
    expected |= {
        "groups/k1/eligible_ratio": 0.5,
        "groups/k1/size_mean": 2.0,
        "groups/k1/weight_mean": 0.125,
    }
    found = batch_metrics(rows, max_prompt_tokens=3, max_response_tokens=2)
    assert {
        name: found[name] for name in (*expected, "training/groups")
    } == expected | {"training/groups": 2}


@pytest.fixture
def trackers(tmp_path):
    """Return a function that opens the records of a run whose next iteration is known."""
    config = replace(Config(), tracking={"tensorboard": False})
    return lambda start: Trackers(config, tmp_path, start)


def test_lines_of_repeated_iterations_are_dropped(trackers, tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = trackers(0)
    for iteration in range(4):
        first.log({"b": iteration, "a": math.nan}, iteration)
    with path.open("a") as file:
        file.write('{"iteration": 4, "b"')  # the process died here
    trackers(2).log({"b": 20}, 2)
    assert [(line["iteration"], line["b"]) for line in read_metrics(path)] == [
        (0, 0),
        (1, 1),
        (2, 20),
    ]
    assert (
        json.loads(path.read_text().splitlines()[0]).items()
        >= {"iteration": 0, "a": None, "b": 0}.items()
    )


GARBAGE = [
    b"", b"garbage", b"[1]", b'{"b": 1}', b'{"iteration": "1"}', b'{"iteration": true}', b"\xff\xfe", b"\x00",
    b'{"iteration": 1, "b": [1]}', b"[" * 5000, b'{"iteration": 1.5}', b'{"iteration": 1' + b"0" * 5000 + b"}",
]  # fmt: skip


def test_a_damaged_line_is_named_and_nothing_is_changed(trackers, tmp_path):
    path = tmp_path / "metrics.jsonl"
    for damage in GARBAGE:
        before = b'{"iteration": 0, "b": 2.5}\n' + damage + b'\n{"iteration": 2}\n'
        path.write_bytes(before)
        for call in (lambda: read_metrics(path), lambda: trackers(1)):
            with refused(r"metrics\.jsonl: line 2 is damaged"):
                call()
        assert path.read_bytes() == before, damage


def test_tensorboard_contains_the_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = Trackers(Config(), tmp_path, 1)
    for iteration in (1, 2):
        trackers.log({"actor/kl_loss": iteration / 4}, iteration)
    trackers.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("actor/kl_loss")] == [
        (1, 0.25),
        (2, 0.5),
    ]


def test_a_tracker_that_is_not_installed_is_reported(tmp_path):
    config = replace(Config(), tracking={"wandb": "hgpo"})
    try:
        import wandb  # noqa: F401
    except ImportError:
        with refused("pip install wandb"):
            Trackers(config, tmp_path, 1)


def test_the_display_shows_the_available_metrics(tmp_path, monkeypatch):
    # otherwise a few times per second
    monkeypatch.setattr("hgpo_train.training.display._EVERY_S", 0.0)
    path = tmp_path / "shown.txt"
    with path.open("w") as file:
        display = Display(
            Console(file=file, width=200, force_terminal=True, force_interactive=True),
            3,
        )
        with display.live, display.stage("collect"):
            display.row(1, {"episode/success_rate": 0.25, "actor/kl_loss": math.nan})
            display.progress(2, 5)
    shown = path.read_text()
    assert "25.0%" in shown
    assert "2 of 5 optimiser steps" in shown
    assert "kl" not in shown
