"""A run's folder has one writer, and a run is resumed only with its original settings and inputs."""

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from doors import DoorsSource
from planted import KINDS, plant
from refusals import refused
from verified import damaged_files

import hgpo_envs
from hgpo_envs.errors import InputError
from hgpo_envs.files.sealed import seal
from hgpo_envs.files.secrets import register
from hgpo_train.models.checkpoint_files import OPTIMISER, write_manifest
from hgpo_train.rollout.sessions import Session, record_session
from hgpo_train.rollout.tally import Tally
from hgpo_train.training.checkpoint import _remove_superseded
from hgpo_train.training.config import CheckpointConfig, Config, SftConfig, replace
from hgpo_train.training.run_folder import CONFIG, FOLDERS, open_run, write_config
from hgpo_train.training.tracking import METRICS, Trackers
from hgpo_train.training.verify_run import verify_run

ROOT = Path(hgpo_envs.__file__).parent.parent
PATHS = os.pathsep.join(map(str, [ROOT, ROOT / "datasets", ROOT / "tests" / "worlds"]))


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


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
    "rollout_is": "token", "ratio": "sequence", "overlong": "mask", "max_policy_lag": 3, "environment_steps": 5,
    "dual_clip": 5, "gradient_checkpointing": True, "logit_chunk": 64, "stop": ("x",),
}  # fmt: skip


def changed(config, name, value):
    """Return the configuration with another value of one setting."""
    other = {
        bool: lambda: not value,
        int: lambda: value + 3,
        float: lambda: value * 0.5 + 0.125,
    }
    other[dict] = lambda: {"other": 1}
    new = (
        CHOICES.get(name, CHOICES.get(name.rpartition(".")[2]))
        or other.get(type(value), lambda: "other")()
    )
    for key in reversed(name.split(".")):
        new = {key: new}
    return replace(config, **new)


FREE_OF_TRAINING = (
    "iterations", "environment_steps", "evaluation.every", "evaluation.before", "evaluation.patience",
    "checkpoint.", "tracking.", "check_memory", "rollout.sleep",
    "rollout.offload_optimiser",
)  # fmt: skip
FREE_OF_BOTH = (
    "update.micro_batch_tokens", "update.logit_chunk", "update.gap_warning", "rollout.slots",
    "rollout.engine_options", "rollout.max_failed", "model.device", "model.gradient_checkpointing", "model.compile",
    "tracking.",
)  # fmt: skip


# weights of its own
IN_TURNS = replace(Config(), rollout={"engine": "vllm"}, update={"rollout_is": "token"})


@pytest.mark.parametrize(
    "config", [Config(), IN_TURNS, SftConfig()], ids=["train", "ahead", "sft"]
)
def test_every_setting_is_either_compared_or_listed_as_free(tmp_path, config):
    is_training = isinstance(config, Config)
    open_run(tmp_path, config, {}).close()
    before = contents(tmp_path)
    for name, value in leaves(config):
        if is_training and (name in ("rollout.ahead", "model.compile")) != (
            config is IN_TURNS
        ):
            continue
        other = changed(config, name, value)
        assert other != config
        if name.startswith(FREE_OF_BOTH + FREE_OF_TRAINING * is_training):
            open_run(tmp_path, other, {}).close()
        else:
            with refused(rf"was written with training\.{name}"):
                open_run(tmp_path, other, {})
        assert contents(tmp_path) == before


@pytest.mark.slow
def test_a_run_is_not_resumed_with_another_prompt_template_at_its_path(
    config, runs, tmp_path, template
):
    edited = tmp_path / "edited.j2"
    edited.write_text(template.read_text())
    config = replace(
        config,
        iterations=1,
        environment={"prompt_template": str(edited)},
    )
    runs.train(config)
    edited.write_text(template.read_text() + " Go.")
    with refused("was written with prompt_template = "):
        runs.trainer(replace(config, iterations=2), resume=True)
    edited.write_text(template.read_text())
    assert (
        runs.train(replace(config, iterations=2), resume=True).shared.state.iteration
        == 2
    )


@pytest.mark.slow
def test_no_file_of_a_run_contains_secrets(config, runs, monkeypatch):
    """Secrets are replaced in options and wherever they are repeated; a run is resumed with another password."""
    register("opensesame")
    monkeypatch.setattr(DoorsSource, "name", "Doors of opensesame")
    task = DoorsSource.task
    monkeypatch.setattr(
        DoorsSource,
        "task",
        lambda self, name: dataclasses.replace(
            task(self, name), task_type=f"opensesame-{name}"
        ),
    )
    secret = {"api_key": "hunter-two", "base_url": "http://me:pass-word@host/v1"}
    environment = {"id": "doors_env:HGPO-Test/Locked-v0", "options": secret}
    config = replace(config, iterations=1, environment=environment)
    config = replace(config, tracking={"tensorboard": True})
    runs.train(config)
    other = replace(
        config,
        iterations=2,
        environment={"options": {**secret, "api_key": "another-one"}},
    )
    assert runs.train(other, resume=True).shared.state.iteration == 2
    files = [path for path in (runs.folder / "run").rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        for value in (b"hunter-two", b"pass-word", b"another-one", b"opensesame"):
            assert value not in path.read_bytes(), path


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [*FOLDERS, METRICS, CONFIG, "checkpoints/000001", "checkpoints/000001/trainer"],
)
def test_what_is_planted_in_a_training_run_is_never_followed(tmp_path, name, kind):
    """A stranger's run that is resumed: no checkpoint and no other file outside of it changes or disappears."""
    outside = tmp_path / "outside"
    run = tmp_path / "run"
    config = Config()
    target = outside / {
        "checkpoints/000001": "000001",
        "checkpoints/000001/trainer": "000001/trainer",
    }.get(name, ".")
    (outside / "000001/trainer").mkdir(parents=True)
    (outside / "000001" / OPTIMISER).write_text("mine")
    write_manifest(outside / "000001")
    open_run(run, config, {}).close()
    shutil.copytree(outside / "000001", run / "checkpoints/000001")
    (target / "precious.txt").write_text("mine")
    before = contents(outside)
    plant(run / name, kind, target)
    with contextlib.suppress(InputError, OSError), open_run(run, config, {}):
        write_config(run, config)
        Trackers(config, run, 0).close()
        for best, kept in (
            (1, CheckpointConfig(keep=1)),
            (0, CheckpointConfig(keep=1, optimiser="last")),
        ):
            _remove_superseded(
                run / "checkpoints", run / "checkpoints/000002", kept, best
            )
    assert contents(outside) == before


def test_every_flipped_bit_of_a_runs_small_files_is_found(tmp_path):
    """An incomplete last line of the metrics is no damage."""
    run = tmp_path / "run"
    config = Config()
    session = Session(slots=1, workers=1)
    with (
        open_run(run, config, {}) as table,
        record_session(table, [], session, Tally()),
    ):
        pass
    write_config(run, config)
    trackers = Trackers(replace(config, tracking={"tensorboard": False}), run, 0)
    for iteration in range(2):
        trackers.log({"loss": 0.5}, iteration)
    trackers.close()
    for name in ("summary.json", "certificate.json"):
        (run / name).write_bytes(seal(b'{\n "episodes": 3\n}'))
    (report,) = verify_run(run, None)  # of its files and of its step table
    assert report.problems == []
    for name in (CONFIG, METRICS, "sessions.json", "summary.json", "certificate.json"):
        data = (run / name).read_bytes()
        for place in range(0, len(data), 1 if len(data) < 300 else 97):
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            (run / name).write_bytes(changed)
            assert damaged_files(run) == [str(run / name)]
        (run / name).write_bytes(data)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"iteration":2')
    assert damaged_files(run) == []


@pytest.mark.parametrize("folder", ["", "evaluation"])
def test_a_missing_manifest_of_a_training_run_is_found(tmp_path, folder):
    """Without it, the shards beside it would be passed over."""
    write_config(tmp_path, Config())
    (tmp_path / folder / "steps").mkdir(parents=True)
    assert damaged_files(tmp_path) == [str(tmp_path / folder / "manifest.jsonl")]


def test_a_run_is_called_as_its_folder(tmp_path):
    """So that several runs of one configuration can be read as one table."""
    for name in ("seed1", "seed2"):
        with open_run(tmp_path / name, Config(), {}) as table:
            assert table.header.run == name
