"""A run's folder has one writer, and a run is resumed only with its original settings and inputs."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from doors import DoorsSource
from hypothesis import given
from hypothesis import strategies as st

import hgpo_envs
from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import register
from hgpo_train.rollout.fingerprints import (
    fingerprint_model,
    fingerprint_path,
    fingerprint_rows,
    fingerprint_tasks,
    fingerprint_texts,
)
from hgpo_train.training.config import Config, SftConfig, replace
from hgpo_train.training.data import open_training_env
from hgpo_train.training.run_folder import FREE, open_run

ROOT = Path(hgpo_envs.__file__).parent.parent
PATHS = os.pathsep.join(map(str, [ROOT, ROOT / "datasets", ROOT / "tests" / "worlds"]))
HOLDING = """
import sys
from pathlib import Path
from hgpo_train.training.config import Config
from hgpo_train.training.run_folder import open_run
run = open_run(Path(sys.argv[1]), Config(), {}, ())
print("held", flush=True)
sys.stdin.read()
"""


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_second_trainer_is_refused_with_the_name_of_the_first(tmp_path):
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert holder.stdout.readline() == "held\n"
        before = contents(tmp_path / "run")
        with pytest.raises(InputError, match=rf"is in use: process {holder.pid} on \S+ is writing a run there"):
            open_run(tmp_path / "run", Config(), {}, ())
        assert contents(tmp_path / "run") == before
    finally:
        holder.kill()
        holder.communicate()
    open_run(tmp_path / "run", Config(), {}, ()).close()


def leaves(settings, where=""):
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{where}{field.name}.")
        else:
            yield f"{where}{field.name}", value


CHOICES = {
    "action_format": "number", "prompt_style": "chat", "compute_dtype": "float32", "attention": "eager",
    "overflow": "history", "layout": "packed", "aggregation": "sequence_sum", "old_logprobs": "rollout",
    "schedule": "linear", "rows": "all", "checkpoint.optimiser": "last", "betas": (0.5, 0.25), "targets": ("q_proj",),
    "rollout_is": "token", "environment_steps": 5, "dual_clip": 5,
}  # fmt: skip


def changed(config, name, value):
    """Return the configuration with another value of one setting."""
    other = {bool: lambda: not value, int: lambda: value + 3, float: lambda: value * 0.5 + 0.125}
    other[dict] = lambda: {"other": 1}
    new = CHOICES.get(name, CHOICES.get(name.rpartition(".")[2])) or other.get(type(value), lambda: "other")()
    for key in reversed(name.split(".")):
        new = {key: new}
    return replace(config, **new)


FREE_OF_TRAINING = (
    "iterations", "environment_steps", "evaluation.", "checkpoint.", "tracking.", "check_memory", "rollout.sleep",
    "rollout.offload_optimiser",
)  # fmt: skip
FREE_OF_BOTH = (
    "update.micro_batch_tokens", "update.logit_chunk", "update.gap_warning", "rollout.slots",
    "rollout.engine_options", "rollout.max_failed", "model.device", "model.gradient_checkpointing", "tracking.",
)  # fmt: skip


@pytest.mark.parametrize("config", [Config(), SftConfig()], ids=["train", "sft"])
def test_every_setting_is_either_compared_or_listed_as_free(tmp_path, config):
    from hgpo_train.training.trainer import free_settings

    is_training = isinstance(config, Config)
    free = free_settings(config) if is_training else FREE
    open_run(tmp_path, config, {}, free).close()
    before = contents(tmp_path)
    for name, value in leaves(config):
        other = changed(config, name, value)
        assert other != config
        if name.startswith(FREE_OF_BOTH + FREE_OF_TRAINING * is_training):
            open_run(tmp_path, other, {}, free).close()
        else:
            expected = "contains the run" if name == "name" else rf"was written with training\.{name}"
            with pytest.raises(InputError, match=expected) as caught:
                open_run(tmp_path, other, {}, free)
            assert "\n" not in str(caught.value)
        assert contents(tmp_path) == before


def test_iterations_may_change_only_if_the_learning_rate_is_constant():
    from hgpo_train.training.trainer import free_settings

    assert "iterations" in free_settings(Config())
    assert "iterations" not in free_settings(replace(Config(), optimiser={"schedule": "cosine"}))


def test_fingerprints_depend_on_contents_and_not_on_names(tmp_path, tiny):
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(tiny, first)
    shutil.copytree(tiny, second)
    assert fingerprint_model(str(first)) == fingerprint_model(str(second)) == fingerprint_model(str(tiny))
    assert fingerprint_path(first) == fingerprint_path(second)
    (second / "README.md").write_text("about it")
    assert fingerprint_model(str(first)) == fingerprint_model(str(second))
    assert fingerprint_path(first) != fingerprint_path(second)
    weights = second / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert fingerprint_model(str(first)) != fingerprint_model(str(second))


@given(st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=4), st.lists(st.text(max_size=3), max_size=4))
def test_fingerprints_differ_if_the_texts_differ(first, second):
    assert (fingerprint_texts(first) == fingerprint_texts(second)) == (first == second)


def test_fingerprints_of_rows_depend_on_every_cell():
    table = pl.DataFrame({"a": ["x", "y"], "b": ["1", None]})
    others = (
        table.rename({"b": "c"}),
        table.reverse(),
        table.with_columns(b=pl.Series(["1", ""])),
        table.with_columns(a=pl.Series(["x1", "y"]), b=pl.Series(["", None])),
    )
    assert len({fingerprint_rows(each) for each in (table, *others)}) == 5


def test_fingerprints_of_tasks_change_with_the_data_at_a_path(tmp_path):
    bundled = next((ROOT / "hgpo_envs" / "alfworld" / "bundled").glob("*.pack"))
    pack = tmp_path / "games.pack"
    shutil.copy(bundled, pack)
    config = replace(Config(), environment={"options": {"data": str(pack)}})
    env = open_training_env(config, "train")
    first = fingerprint_tasks(env, config.environment.options)
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)
    assert fingerprint_tasks(env, config.environment.options) != first


@pytest.mark.slow
def test_a_run_is_not_resumed_with_another_prompt_template_at_its_path(config, runs, tmp_path, template):
    edited = tmp_path / "edited.j2"
    edited.write_text(template.read_text())
    config = replace(config, iterations=1, evaluation={"every": 0}, environment={"prompt_template": str(edited)})
    runs.train(config)
    edited.write_text(template.read_text() + " Go.")
    with pytest.raises(InputError, match="was written with prompt_template = "):
        runs.trainer(replace(config, iterations=2), resume=True)
    edited.write_text(template.read_text())
    assert runs.train(replace(config, iterations=2), resume=True).state.iteration == 2


@pytest.mark.slow
def test_no_file_of_a_run_contains_secrets(config, runs, monkeypatch):
    """Secrets are replaced in options and wherever they are repeated; a run is resumed with another password."""
    register("opensesame")
    monkeypatch.setattr(DoorsSource, "name", "Doors of opensesame")
    task = DoorsSource.task
    monkeypatch.setattr(
        DoorsSource, "task", lambda self, name: dataclasses.replace(task(self, name), task_type=f"opensesame-{name}")
    )
    secret = {"api_key": "hunter-two", "base_url": "http://me:pass-word@host/v1"}
    environment = {"id": "doors_env:HGPO-Test/Locked-v0", "options": secret}
    config = replace(config, iterations=1, evaluation={"every": 0}, environment=environment)
    config = replace(config, tracking={"tensorboard": True})
    runs.train(config)
    other = replace(config, iterations=2, environment={"options": {**secret, "api_key": "another-one"}})
    assert runs.train(other, resume=True).state.iteration == 2
    files = [path for path in (runs.folder / "run").rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        for value in (b"hunter-two", b"pass-word", b"another-one", b"opensesame"):
            assert value not in path.read_bytes(), path
