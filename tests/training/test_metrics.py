"""Metrics against values by hand, and the trackers that record them."""

import json
import math
import os
import tempfile
import warnings
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from hgpo_envs.errors import InputError
from hgpo_train.training.config import Config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.metrics import batch_metrics, episode_metrics
from hgpo_train.training.tracking import JsonLines, Trackers, read_metrics


@pytest.fixture
def steps():
    """Return three trajectories of two task types: won in two steps, lost in one step, aborted."""
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


def test_episode_metrics_match_values_by_hand(steps):
    metrics = episode_metrics(steps)
    assert metrics["episode/success_rate"] == 0.5
    assert metrics["episode/put_success_rate"] == 1.0
    assert metrics["episode/heat_success_rate"] == 0.0
    assert metrics["episode/reward/mean"] == 0.75
    assert metrics["episode/length/mean"] == 1.5
    assert metrics["episode/valid_action_ratio"] == 0.75
    assert (metrics["episode/trajectories"], metrics["episode/aborted"]) == (3, 1)
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


def test_lines_of_repeated_iterations_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = JsonLines(path, 0)
    for iteration in range(4):
        first.log({"b": iteration, "a": math.nan}, iteration)
    with path.open("a") as file:
        file.write('{"iteration": 4, "b"')  # the process died here
    JsonLines(path, 2).log({"b": 20}, 2)
    assert [(line["iteration"], line["b"]) for line in read_metrics(path)] == [(0, 0), (1, 1), (2, 20)]
    assert json.loads(path.read_text().splitlines()[0]) == {"iteration": 0, "a": None, "b": 0}


GARBAGE = [
    b"", b"garbage", b"[1]", b"3", b"null", b'{"b": 1}', b'{"iteration": "1"}', b'{"iteration": true}', b"\xff\xfe",
    b'{"iteration": 1, "b": "text"}', b'{"iteration": 1, "b": [1]}', b"[" * 5000, b'{"iteration": 1.5}', b"\x00",
    b'{"iteration": 1' + b"0" * 5000 + b"}",
]  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 5), st.sampled_from(GARBAGE)), max_size=10), st.binary(max_size=20))
def test_damaged_lines_are_moved_aside_and_do_not_prevent_resuming(lines, half):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        good = [line for line in lines if isinstance(line, int)]
        bad = [line for line in lines if isinstance(line, bytes)]
        texts = [line if isinstance(line, bytes) else b'{"iteration": %d, "b": 2.5}' % line for line in lines]
        path.write_bytes(b"".join(text + b"\n" for text in texts) + half.replace(b"\n", b""))
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            assert [line["iteration"] for line in read_metrics(path)] == good
            assert len(shown) == bool(bad)
            JsonLines(path, 3).close()
            assert len(shown) == 2 * bool(bad)
        aside = path.with_name("metrics.jsonl.damaged")
        assert aside.exists() == bool(bad)
        assert not bad or all(line in aside.read_bytes() for line in bad)
        log = JsonLines(path, 3)
        log.log({"b": 1.0}, 3)
        log.close()
        iterations = [line["iteration"] for line in read_metrics(path)]
        assert iterations == [*sorted({line for line in good if line < 3}), 3]


def test_a_full_disk_leaves_complete_lines(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    log = JsonLines(path, 0)
    log.log({"a": 1.0}, 0)
    before, write = path.read_bytes(), os.write

    def full(descriptor, data):
        if len(data) < 10:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:7])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        log.log({"a": 2.0}, 1)
    monkeypatch.undo()
    assert path.read_bytes() == before
    log.log({"a": 3.0}, 1)
    log.close()
    assert [line["a"] for line in read_metrics(path)] == [1.0, 3.0]


def test_metrics_that_are_not_a_file_are_reported(tmp_path):
    for name, create in (("folder", Path.mkdir), ("FIFO", os.mkfifo)):
        path = tmp_path / name / "metrics.jsonl"
        path.parent.mkdir()
        create(path)
        for call in (read_metrics, lambda path: JsonLines(path, 0)):
            with pytest.raises(InputError, match=r"cannot read .*metrics\.jsonl: "):
                call(path)


def test_tensorboard_contains_the_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = Trackers(Config(), tmp_path, 1)
    for iteration in (1, 2):
        trackers.log({"actor/kl_loss": iteration / 4}, iteration)
    trackers.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("actor/kl_loss")] == [(1, 0.25), (2, 0.5)]


def test_a_tracker_that_is_not_installed_is_reported(tmp_path):
    config = replace(Config(), tracking={"wandb": "hgpo"})
    try:
        import wandb  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="pip install wandb"):
            Trackers(config, tmp_path, 1)


def test_the_display_shows_the_available_metrics(tmp_path, monkeypatch):
    monkeypatch.setattr("hgpo_train.training.display._EVERY_S", 0.0)  # otherwise a few times per second
    path = tmp_path / "shown.txt"
    with path.open("w") as file:
        display = Display(Console(file=file, width=200, force_terminal=True, force_interactive=True), 3)
        with display.live(), display.stage("collect"):
            display.row(1, {"episode/success_rate": 0.25, "actor/kl_loss": math.nan})
            display.progress(2, 5)
    shown = path.read_text()
    assert "25.0%" in shown
    assert "2 of 5 optimiser steps" in shown
    assert "kl" not in shown
