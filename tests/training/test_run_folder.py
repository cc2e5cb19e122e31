"""A run's folder has one writer, and a run is resumed only with its original inputs."""

import dataclasses
import json
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
from hgpo_train.rollout.fingerprints import fingerprint_model, fingerprint_path, fingerprint_rows, fingerprint_texts
from hgpo_train.training.config import Config, EnvironmentConfig, SftConfig, replace
from hgpo_train.training.data import open_training_env
from hgpo_train.training.run_folder import FREE, Origin, RunFolder

ROOT = Path(hgpo_envs.__file__).parent.parent
PATHS = os.pathsep.join(map(str, [ROOT, ROOT / "datasets", ROOT / "tests" / "worlds"]))


def open_run(folder, config=None, origins=None, *, resume=True, free=()):
    return RunFolder(folder, config or Config(), origins or {}, free, resume=resume)


def begin(folder, origins=None, config=None):
    """Start a run that leaves some content, and return its id."""
    with open_run(folder, config, origins) as run:
        (folder / "metrics.jsonl").write_text("")
        return run.id


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.name != ".lock"}


HOLDING = """
import sys
from pathlib import Path
from hgpo_train.training.config import Config
from hgpo_train.training.run_folder import RunFolder
run = RunFolder(Path(sys.argv[1]), Config(), {}, (), resume=True)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_second_trainer_is_refused_with_the_name_of_the_first(tmp_path):
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert holder.stdout.readline() == "held\n"
        before = contents(tmp_path / "run")
        with pytest.raises(InputError, match=rf"is in use: process {holder.pid} on \S+ is training there"):
            open_run(tmp_path / "run")
        assert contents(tmp_path / "run") == before
    finally:
        holder.kill()
        holder.communicate()
    open_run(tmp_path / "run").release()


def test_a_run_is_resumed_only_with_its_configuration(tmp_path):
    config = Config()
    begin(tmp_path, {}, config)
    before = contents(tmp_path)
    for changes, name in (
        ({"seed": 1}, "seed = 0, not 1"),
        ({"optimiser": {"learning_rate": 1.0}}, "optimiser.learning_rate = 1e-06, not 1.0"),
        ({"environment": {"options": {"goals": "human"}}}, r"environment.options = {}, not {'goals': 'human'}"),
    ):
        with pytest.raises(InputError, match=f"was started with {name}") as caught:
            open_run(tmp_path, replace(config, **changes))
        assert "\n" not in str(caught.value)
        assert contents(tmp_path) == before
    with pytest.raises(InputError, match="resume it with --resume"):
        open_run(tmp_path, resume=False)
    open_run(tmp_path, replace(config, seed=1), free=["seed"]).release()
    assert "seed = 1" in (tmp_path / "config.toml").read_text()


def leaves(settings, where=""):
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{where}{field.name}.")
        else:
            yield f"{where}{field.name}", value


def changed(config, name, value):
    other = {bool: lambda: not value, int: lambda: value + 3, float: lambda: value * 0.5 + 0.125}
    new = other.get(type(value), lambda: None)()
    if value is None:
        new = 5 if name in ("max_trajectories", "environment_steps", "dual_clip") else "other"
        new = "token" if name == "rollout_is" else new
    elif isinstance(value, dict):
        new = {"other": 1}
    elif isinstance(value, tuple):
        new = (0.5, 0.25) if name.endswith("betas") else ("q_proj",)
    elif isinstance(value, str):
        choices = {"action_format": "number", "compute_dtype": "float32", "attention": "eager", "overflow": "history",
                   "layout": "packed", "aggregation": "sequence_sum", "old_logprobs": "rollout", "schedule": "linear",
                   "rows": "all", "order": "verl-agent", "optimiser": "last"}  # fmt: skip
        new = choices.get(name.rpartition(".")[2], "other")
    first, *rest = name.split(".")
    if not rest:
        return dataclasses.replace(config, **{first: new})
    section = getattr(config, first)
    return dataclasses.replace(config, **{first: changed(section, ".".join(rest), value)})


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
    from hgpo_train.training.trainer import _FREE

    free, names = FREE, FREE_OF_BOTH
    if isinstance(config, Config):
        free, names = _FREE, FREE_OF_BOTH + FREE_OF_TRAINING
    begin(tmp_path, {}, config)
    for name, value in leaves(config):
        other = changed(config, name, value)
        assert other != config
        if name.startswith(names):
            open_run(tmp_path, other, free=free).release()
        else:
            with pytest.raises(InputError, match=f"was started with {name.rpartition('.')[0] or name}"):
                open_run(tmp_path, other, free=free)


def test_iterations_may_change_only_if_the_learning_rate_is_constant(tmp_path):
    from hgpo_train.training.trainer import open_run_folder

    config = replace(Config(), optimiser={"schedule": "cosine"})
    begin(tmp_path, {}, config)
    with pytest.raises(InputError, match="was started with iterations = 160, not 200"):
        open_run_folder(replace(config, iterations=200), tmp_path, {}, resume=True)


def test_inputs_that_the_configuration_refers_to_are_compared(tmp_path):
    origins = {
        "model": Origin("model.path = 'm'", fingerprint_texts(["1"])),
        "template": Origin("t", fingerprint_texts(["x"]), "x"),
    }
    begun = begin(tmp_path, origins)
    assert json.loads((tmp_path / "origin.json").read_text())["texts"] == {"template": "x"}
    for name, origin in origins.items():
        other = dataclasses.replace(origin, fingerprint=fingerprint_texts(["2"]))
        with pytest.raises(InputError, match=f"started with another {name}: .* not ") as caught:
            open_run(tmp_path, origins={**origins, name: other})
        assert "\n" not in str(caught.value)
    with open_run(tmp_path, origins=origins) as run:
        assert run.id == begun


def test_a_damaged_origin_is_reported_in_one_line(tmp_path):
    begin(tmp_path, {})
    for data in (b"", b"{", b"[1]", b"\xff", b'{"format": "hgpo run 1"}', b"[" * 100_000):
        (tmp_path / "origin.json").write_bytes(data)
        with pytest.raises(InputError, match=r"origin\.json is damaged"):
            open_run(tmp_path)


def test_a_folder_with_content_but_no_configuration_is_refused(tmp_path):
    for name in ("steps", "evaluation", "checkpoints", "metrics.jsonl", "tensorboard"):
        (tmp_path / name / name).mkdir(parents=True)
        for resume in (False, True):
            with pytest.raises(InputError, match=r"no config\.toml"):
                open_run(tmp_path / name, resume=resume)


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
    seen = {fingerprint_rows(table)}
    for other in (
        table.rename({"b": "c"}),
        table.reverse(),
        table.head(1),
        table.with_columns(b=pl.lit("1")),
        table.with_columns(b=pl.Series(["1", ""])),
        table.with_columns(a=pl.Series(["x1", "y"]), b=pl.Series(["", None])),
    ):
        seen.add(fingerprint_rows(other))
    assert len(seen) == 7


@pytest.mark.slow
def test_a_run_is_not_resumed_with_a_changed_pack_catalogue_or_template(config, runs, tmp_path, template):
    """The path is the same, but its content has changed."""
    edited = tmp_path / "edited.j2"
    edited.write_text(template.read_text())
    config = replace(config, iterations=1, evaluation={"every": 0}, environment={"prompt_template": str(edited)})
    runs.train(config)
    longer = replace(config, iterations=2)
    edited.write_text(template.read_text() + " Go.")
    with pytest.raises(
        InputError, match=r"started with another prompt template: environment.prompt_template = '.*edited"
    ):
        runs.trainer(longer, resume=True)
    stored = json.loads((runs.folder / "run" / "origin.json").read_text())
    edited.write_text(stored["texts"]["prompt template"])
    assert runs.train(longer, resume=True).state.iteration == 2


def test_fingerprints_of_tasks_change_with_the_data_at_a_path(tmp_path):
    from importlib.resources import files

    from hgpo_train.rollout.fingerprints import fingerprint_tasks

    bundled = next(Path(str(files("hgpo_envs.alfworld") / "bundled")).glob("*.pack"))
    pack = tmp_path / "games.pack"
    shutil.copy(bundled, pack)
    config = replace(Config(), environment={"options": {"data": str(pack)}})
    environment: EnvironmentConfig = config.environment
    first = fingerprint_tasks(open_training_env(config, "train"), environment.options)
    assert fingerprint_tasks(open_training_env(config, "train"), environment.options) == first
    handle = open_training_env(config, "train")
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)
    assert fingerprint_tasks(handle, environment.options) != first
    assert fingerprint_tasks(open_training_env(replace(Config()), "valid_seen"), {}) != fingerprint_tasks(
        open_training_env(Config(), "train"), {}
    )


@pytest.mark.slow
def test_no_file_of_a_run_contains_secrets(config, runs, monkeypatch):
    """Secrets are replaced in options and wherever they are repeated; a run is resumed with another password."""
    from hgpo_envs.files.secrets import register

    register("opensesame")
    monkeypatch.setattr(DoorsSource, "name", "Doors of opensesame")
    kind = DoorsSource.task
    monkeypatch.setattr(
        DoorsSource, "task", lambda self, name: dataclasses.replace(kind(self, name), task_type=f"opensesame-{name}")
    )
    secret = {"api_key": "hunter-two", "base_url": "http://me:pass-word@host/v1"}
    environment = {"id": "locked_env:HGPO-Test/Locked-v0", "options": secret}
    config = replace(config, iterations=1, evaluation={"every": 0}, environment=environment)
    config = replace(config, tracking={"tensorboard": True})
    runs.train(config)
    other = replace(config, iterations=2, environment={"options": {**secret, "api_key": "another-one"}})
    assert runs.train(other, resume=True).state.iteration == 2
    found = [path for path in (runs.folder / "run").rglob("*") if path.is_file()]
    assert len(found) > 8
    for path in found:
        for value in (b"hunter-two", b"pass-word", b"another-one", b"opensesame"):
            assert value not in path.read_bytes(), path
