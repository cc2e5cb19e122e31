"""Training runs that were interrupted, killed or ended early: resumed, they end in the same bytes."""

import random
import re
import shutil
import signal
import warnings
from unittest.mock import Mock

import pytest
from command import python
from lazily import lazily
from nightly import sample_or_all
from polars.testing import assert_frame_equal
from refusals import refused

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import OPTIMISER, list_checkpoints
from hgpo_train.settings import to_toml
from hgpo_train.training.config import load_config, replace
from hgpo_train.training.tracking import read_metrics

(describe_interrupted,) = lazily(
    "hgpo_train.training.run_folder", "describe_interrupted"
)


def test_a_resumed_run_ends_in_the_same_bytes(small, runs, whole):
    runs.train(replace(small, iterations=1))
    resumed = runs.train(small, resume=True)
    assert resumed.shared.state == whole.shared.state
    assert runs.weights("run") == runs.weights("whole")
    lines = runs.metrics()
    assert [line["iteration"] for line in lines] == [1, 2]


def test_a_run_killed_while_its_engine_starts_can_be_resumed(
    small, runs, whole, monkeypatch
):
    """What is on the disk while the engine starts is what a kill leaves there."""
    from hgpo_train.training import trainer

    def starting(*_):
        shutil.copytree(runs.folder / "run", runs.folder / "killed")
        raise InputError("no engine")

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "trainable_factory", lambda *_: starting)
        with refused("no engine"):
            runs.train(small)
    assert not (runs.folder / "run").exists()
    stored = load_config(
        runs.folder / "killed" / "config.toml", allow=["doors_env:HGPO-Test/Doors-v0"]
    )
    runs.train(stored, "killed", resume=True)
    assert runs.weights("killed") == runs.weights("whole")


@pytest.mark.parametrize(
    ("every", "sentence"),
    [(1, "Kept: checkpoint 1, "), (5, "updates of iterations 1 to 1 from")],
)
def test_an_interrupted_run_says_what_is_repeated(
    small, runs, every, sentence, monkeypatch
):
    """Ctrl-C in the second update."""
    from hgpo_train.training.update.learner import Learner

    updates = Mock(side_effect=[Learner.update, KeyboardInterrupt])
    monkeypatch.setattr(
        Learner, "update", lambda *given, **named: updates()(*given, **named)
    )
    with pytest.raises(KeyboardInterrupt):
        runs.train(replace(small, checkpoint={"every": every}))
    said = describe_interrupted(runs.folder / "run")
    assert sentence in said
    assert "4 of iteration 2. Resuming repeats" in said
    assert said.endswith("the rest of iteration 2.")


def test_steps_that_were_committed_before_a_kill_are_not_collected_again(
    small, runs, whole, monkeypatch
):
    """The second process starts after the first was killed between the commit of a shard and the update."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "hgpo_train.training.update.learner.Learner.update",
            Mock(side_effect=KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            runs.train(small)
    folder = runs.folder / "run"
    shard = folder / "steps" / "steps-000000.parquet"
    before = shard.stat()
    kept = "Kept: the rollouts of finished groups, 4 of iteration 1. Resuming repeats the rest of iteration 1."
    assert describe_interrupted(folder) == kept
    assert not (folder / "checkpoints").exists() or not list_checkpoints(
        folder / "checkpoints"
    )
    runs.train(small, resume=True)
    assert shard.stat().st_mtime_ns == before.st_mtime_ns
    assert runs.weights("run") == runs.weights("whole")


@pytest.mark.slow
def test_an_evaluation_after_the_checkpoint_is_not_repeated(small, runs, monkeypatch):
    config = replace(
        small, evaluation={"every": 1, "tasks": 2}, checkpoint={"every": 1}
    )
    runs.train(replace(config, iterations=1))
    folder = runs.folder / "run"
    with monkeypatch.context() as patch:
        patch.setattr(
            "hgpo_train.training.trainer.save_checkpoint",
            Mock(side_effect=KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            runs.train(config, resume=True)
    before = scan_steps(folder / "evaluation").collect()
    assert runs.train(config, resume=True).shared.state.iteration == 2
    assert_frame_equal(scan_steps(folder / "evaluation").collect(), before)
    with refused(r"was written with training\.evaluation\.split"):
        runs.trainer(replace(config, evaluation={"split": "train"}), resume=True)
    with refused("unknown split 'tset'"):
        runs.trainer(replace(config, evaluation={"split": "tset"}), resume=True)


@pytest.mark.slow
def test_the_best_checkpoint_is_kept_and_a_run_that_stalls_stops(
    config, runs, monkeypatch
):
    """The success on held-out tasks is 0.5, 0.75, 0.75, 0.25 after iterations 1 to 4: the second is the best."""
    rates = {1: 0.5, 2: 0.75, 3: 0.75, 4: 0.25}
    evaluate = "hgpo_train.training.trainer.Trainer.evaluate"
    monkeypatch.setattr(
        evaluate, lambda self: {"val/success_rate": rates[self.shared.state.iteration]}
    )
    evaluation = {"every": 1, "before_training": False, "patience": 2}
    config = replace(
        config, iterations=9, evaluation=evaluation, checkpoint={"every": 1, "keep": 1}
    )
    runs.train(replace(config, iterations=3))
    trainer = runs.train(config, resume=True)
    assert (
        trainer.shared.state.iteration,
        trainer.shared.state.best,
        trainer.shared.state.best_success,
    ) == (4, 2, 0.75)
    checkpoints = list_checkpoints(runs.folder / "run" / "checkpoints")
    assert [(path.name, (path / OPTIMISER).exists()) for path in checkpoints] == [
        ("000002", False),
        ("000004", True),
    ]
    ended = runs.train(config, resume=True)
    assert ended.shared.state == trainer.shared.state
    assert "Nothing is left to do" in ended.shared.display._console.file.getvalue()


@pytest.mark.slow
def test_environment_steps_end_a_run_and_a_larger_budget_resumes_it(config, runs):
    config = replace(
        config,
        iterations=4,
        evaluation={"every": 4, "before_training": False},
        checkpoint={"every": 4},
    )
    whole = runs.train(config, "whole")
    assert set(
        scan_steps(whole.shared.folder / "evaluation").collect()["iteration"]
    ) == {4}
    budget = int(runs.metrics("whole")[0]["training/environment_steps"]) + 1
    ended = runs.train(replace(config, environment_steps=budget), "short")
    assert ended.shared.state.iteration == 2
    assert ended.shared.state.environment_steps >= budget
    assert "val/success_rate" in runs.metrics("short")[1]
    assert list_checkpoints(ended.shared.folder / "checkpoints")[-1].name == "000002"
    resumed = runs.train(config, "short", resume=True)
    assert (
        resumed.shared.state.environment_steps == whole.shared.state.environment_steps
    )
    assert runs.weights("short") == runs.weights("whole")


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from hgpo_train.cli import main
folder, left, number = sys.argv.pop(1), int(sys.argv.pop(1)), os.getpid()
calls = 0

def count(event, arguments):
    global calls
    if event.startswith(("os.", "open", "shutil.")) and folder in repr(arguments):
        calls += 1
        if calls == left:
            os.kill(number, signal.SIGKILL)

sys.addaudithook(count)
try:
    main()
finally:
    print("calls", calls)
"""


def killed_command(folder, kill_at, *arguments):
    """Run a command that is killed at the n-th system call in a folder; return exit status, output and errors."""
    done = python(KILLED, folder, kill_at, *arguments, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_in_the_same_bytes(config, runs):
    config = replace(
        config, iterations=4, checkpoint={"every": 2}, evaluation={"every": 3}
    )
    path, killed, whole = (
        runs.folder / name for name in ("config.toml", "killed", "whole")
    )
    path.write_text(to_toml(config))
    code, output, errors = killed_command(whole, 0, "train", path, "--out", whole)
    assert code == 0, errors
    calls = int(output.rpartition(" ")[2])
    assert calls > 100
    moments = random.Random(1)
    kills = 0
    command = ("train", path, "--out", killed, "--resume")
    for _ in range(sample_or_all(2, 20)):
        code, _, errors = killed_command(
            killed, moments.randrange(1, calls // 2), *command
        )
        assert code in (0, -signal.SIGKILL), errors
        kills += code != 0
        written = killed / "metrics.jsonl"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            iterations = (
                [line["iteration"] for line in read_metrics(written)]
                if written.exists()
                else []
            )
        assert iterations == list(range(len(iterations)))
    code, _, errors = killed_command(killed, 0, *command)
    assert code == 0, errors
    assert kills
    assert runs.weights("killed") == runs.weights("whole")
    assert runs.results("killed") == runs.results("whole")


@pytest.mark.slow
def test_too_many_failed_rollouts_stop_a_run_and_are_repeated(
    config, runs, tmp_path, monkeypatch, hgpo
):
    path = tmp_path / "outage"
    monkeypatch.setenv("HGPO_TEST_OUTAGE", str(path))  # a file that lists failing tasks
    environment = {"id": "doors_env:HGPO-Test/Outage-v0"}
    config = replace(
        config,
        environment=environment,
        rollout={"group_size": 2},
        iterations=1,
    )
    runs.train(config, "whole")
    tasks = (
        scan_steps(runs.folder / "whole" / "steps")
        .select("task_id")
        .unique()
        .collect()["task_id"]
        .sort()
    )
    path.write_text(tasks[0])
    (tmp_path / "config.toml").write_text(to_toml(config))
    code, _, errors = hgpo(
        "train", tmp_path / "config.toml", "--out", runs.folder / "run"
    )
    assert code == 1
    assert re.search(r"error: 2 of 6 rollouts failed \(33%\).*the power is out", errors)
    assert "Repeat them with: hgpo train --resume --out" in errors.splitlines()[-1]
    runs.train(replace(config, rollout={"max_failed": 0.5}), "lenient")
    line = runs.metrics("lenient")[-1]
    assert (
        line["episode/aborted"],
        line["episode/trajectories"],
        line["training/groups"],
    ) == (
        2,
        6,
        2,
    )
    path.unlink()
    runs.train(config, resume=True)
    assert runs.weights("run") == runs.weights("whole")


VARIANTS = {
    "adapters": {"model": {"lora": {"rank": 4}}},
    "optimiser in the last checkpoint": {
        "checkpoint": {"every": 1, "keep": 0, "optimiser": "last"}
    },
    "moments in the memory of the host": {
        "rollout": {"offload_optimiser": True, "sleep": True}
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_run_resume_to_the_same_bytes(config, runs, variant):
    config = replace(config, iterations=2, checkpoint={"every": 1})
    config = replace(config, **VARIANTS[variant])
    runs.train(config, "whole")
    runs.train(replace(config, iterations=1), "halved")
    runs.train(config, "halved", resume=True)
    assert runs.weights("whole") == runs.weights("halved")
    checkpoints = list_checkpoints(runs.folder / "whole" / "checkpoints")
    assert [(path / OPTIMISER).exists() for path in checkpoints] == [
        "last" not in variant,
        True,
    ]
    assert (checkpoints[-1] / "adapter_model.safetensors").exists() == (
        variant == "adapters"
    )
    if "host" in variant:
        runs.train(
            replace(config, rollout={"offload_optimiser": False, "sleep": False}),
            "plain",
        )
        assert runs.weights("whole") == runs.weights("plain")
