"""Checkpoints are written atomically, verified before use, and loaded only into the model they belong to."""

import copy
import json
import os
import resource
import shutil
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lazily import Lazy

from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import (
    MANIFEST,
    OPTIMISER,
    STATE,
    CheckpointWarning,
    TrainingState,
    checkpoint_to_resume,
    list_checkpoints,
    newest_valid_checkpoint,
    resolve_model,
    verify_checkpoint,
    write_manifest,
)
from hgpo_train.models.tiny import TinyShape, make_model
from hgpo_train.training.config import CheckpointConfig, OptimiserConfig

torch = Lazy("torch")
load_tokenizer = Lazy("hgpo_train.models.loading:load_tokenizer")
load_checkpoint = Lazy("hgpo_train.training.checkpoint:load_checkpoint")
resume_checkpoint = Lazy("hgpo_train.training.checkpoint:resume_checkpoint")
save_checkpoint = Lazy("hgpo_train.training.checkpoint:save_checkpoint")
make_optimiser = Lazy("hgpo_train.training.update.optimiser:make_optimiser")


SHAPE = TinyShape(vocabulary=384, width=64, layers=1, heads=2, key_value_heads=1, intermediate=96)


@pytest.fixture
def tokenizer(tiny):
    return load_tokenizer(str(tiny))


def trained(tokenizer, seed=0, steps=2, shape=SHAPE):
    model = make_model(tokenizer, shape, seed)
    optimiser = make_optimiser(model, OptimiserConfig(learning_rate=0.01))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimiser.step()
    return model, optimiser


def test_loading_a_checkpoint_restores_weights_and_moments(tokenizer, tmp_path):
    model, optimiser = trained(tokenizer)
    folder = save_checkpoint(tmp_path, TrainingState(iteration=7, tasks_drawn=3), model, tokenizer, optimiser)
    assert folder.name == "000007"
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= {".safetensors", ".json", ".jinja"}
    other, others = trained(tokenizer, seed=5, steps=1)
    assert load_checkpoint(folder, other, others) == TrainingState(iteration=7, tasks_drawn=3)
    for both in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(*both)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for parameter in other.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    others.step()
    for both in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(*both)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("size", [1_000, 300_000])
def test_a_full_disk_leaves_the_checkpoints_unchanged(tokenizer, tmp_path, size):
    """A limit on file sizes simulates it: writes fail in the same places, with a real error."""
    model, optimiser = trained(tokenizer)
    save_checkpoint(tmp_path, TrainingState(iteration=1), model, tokenizer, optimiser, CheckpointConfig(keep=1))
    before = contents(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for iteration in (1, 2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(OSError, match=r"[Ff]ile too large"):
                save_checkpoint(
                    tmp_path, TrainingState(iteration=iteration), model, tokenizer, optimiser, CheckpointConfig(keep=1)
                )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert contents(tmp_path) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["000001"]
    save_checkpoint(tmp_path, TrainingState(iteration=2), model, tokenizer, optimiser, CheckpointConfig(keep=1))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["000002"]


def test_the_newest_checkpoints_are_kept(tokenizer, tmp_path):
    model, optimiser = trained(tokenizer)
    for iteration in range(1, 6):
        save_checkpoint(
            tmp_path / "checkpoints",
            TrainingState(iteration=iteration),
            model,
            tokenizer,
            optimiser,
            CheckpointConfig(keep=2),
        )
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["000004", "000005"]
    assert resolve_model(str(tmp_path)).endswith("000005")
    assert resolve_model("Qwen/Qwen2.5-1.5B-Instruct") == "Qwen/Qwen2.5-1.5B-Instruct"


def test_files_that_training_did_not_write_are_never_removed(tokenizer, tmp_path):
    """Neither files with a checkpoint's name nor files inside a checkpoint are removed."""
    model, optimiser = trained(tokenizer)
    save_checkpoint(tmp_path, TrainingState(iteration=1), model, tokenizer, optimiser)
    (tmp_path / "000001" / "notes.md").write_text("the best one")
    kept = ["000000", "000002.part", "000003", "12", "checkpoints", "000004.damaged", ".hgpo-0123456789abcdef.tmp"]
    for name in kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_text("1")
    (tmp_path / "000005").write_text("a file")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "000006").symlink_to(tmp_path / "elsewhere")
    before = sorted(path.read_text() for path in tmp_path.rglob("*") if path.name in ("precious", "notes.md", "000005"))

    def save():
        for iteration in range(1, 9):
            save_checkpoint(
                tmp_path, TrainingState(iteration=iteration), model, tokenizer, optimiser, CheckpointConfig(keep=1)
            )

    with pytest.warns(CheckpointWarning, match="renamed to") as shown:
        save()
    assert [str(one.message).rpartition(" ")[2] for one in shown] == [
        "000001.damaged", "000003.damaged", "000005.damaged", "000006.damaged"
    ]  # fmt: skip
    found = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    texts = [path.read_text() for path in found if path.name in ("precious", "notes.md") or "000005.d" in path.name]
    assert sorted(texts) == before
    assert (tmp_path / "elsewhere").is_dir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["000008"]


def test_another_model_is_refused(tokenizer, tmp_path):
    model, optimiser = trained(tokenizer)
    folder = save_checkpoint(tmp_path, TrainingState(iteration=1), model, tokenizer, optimiser)
    wider = TinyShape(vocabulary=384, width=96, layers=1, heads=2, key_value_heads=1, intermediate=96)
    deeper = TinyShape(vocabulary=384, width=64, layers=2, heads=2, key_value_heads=1, intermediate=96)
    for shape in (wider, deeper):
        model, optimiser = trained(tokenizer, shape=shape)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(InputError, match="000001 belongs to another model"):
            load_checkpoint(folder, model, optimiser)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(InputError, match="contains no weights"):
        load_checkpoint(tmp_path, *trained(tokenizer))


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    """Return a folder with the checkpoints of iterations 1 and 2."""
    tokenizer = load_tokenizer(str(tiny))
    folder = tmp_path_factory.mktemp("pair")
    for iteration in (1, 2):
        model, optimiser = trained(tokenizer, seed=iteration)
        save_checkpoint(folder, TrainingState(iteration=iteration, run="r"), model, tokenizer, optimiser)
    return folder


def link(path):
    path.unlink()
    path.symlink_to("nowhere")


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def folder_instead(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one byte less": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "garbage": lambda path: path.write_bytes(b"\xff\x00{[" * 50),
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
    "JSON of another type": lambda path: path.write_bytes(b"[1, 2]"),
    "dangling link": link,
    "FIFO": fifo,
    "folder": folder_instead,
}


def loaded(folder):
    """Return the checkpoint that resuming loads, and whether there was a warning: at most one, of one line."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        newest = checkpoint_to_resume(folder, "r")
    assert all("\n" not in str(one.message) for one in shown)
    assert len(shown) <= 1
    return newest, bool(shown)


FILES = ["config.json", "model.safetensors", OPTIMISER, STATE, MANIFEST, "tokenizer.json", "chat_template.jinja"]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_newest_checkpoint_is_skipped_with_one_warning(pair, tmp_path, name):
    for number, damage in enumerate(DAMAGES.values()):
        folder = tmp_path / str(number) / "checkpoints"
        shutil.copytree(pair, folder)
        damage(folder / "000002" / name)
        if name not in (OPTIMISER, MANIFEST):
            with pytest.raises(InputError, match="is damaged") as caught:  # as `hgpo eval --policy transformers:…`
                resolve_model(str(folder / "000002"))
            assert "\n" not in str(caught.value)
        # The optimiser's state may have been removed: `checkpoint.optimiser = "last"`.
        removed = name == OPTIMISER and not os.path.lexists(folder / "000002" / name)
        assert verify_checkpoint(folder / "000002").ok == removed
        assert loaded(folder) == (folder / "000001", True)
        assert sorted(path.name for path in folder.iterdir()) == ["000001", "000002.damaged"]
        assert loaded(folder) == (folder / "000001", False)


@pytest.fixture(scope="module")
def flipped(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flipped") / "checkpoints"
    shutil.copytree(pair, folder)
    return folder


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_in_any_file_is_detected(pair, flipped, data):
    """The previous checkpoint is loaded, with a warning."""
    name = data.draw(st.sampled_from(sorted(contents(pair / "000002"))))
    whole = (pair / "000002" / name).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    bits = data.draw(st.integers(1, 255))
    shutil.rmtree(flipped)
    shutil.copytree(pair, flipped)
    (flipped / "000002" / name).write_bytes(whole[:at] + bytes([whole[at] ^ bits]) + whole[at + 1 :])
    newest, warned = loaded(flipped)
    assert (newest.name, warned) == ("000001", True)
    assert contents(newest) == contents(pair / "000001")


def test_folders_with_a_checkpoints_name_are_verified(pair, tmp_path):
    """The newest one is of another iteration or run, empty, or has weights that training did not write."""

    def copied(name):
        shutil.copytree(pair, tmp_path / name)
        return tmp_path / name

    folder = copied("other iteration")
    shutil.copytree(folder / "000002", folder / "000123")
    assert loaded(folder) == (folder / "000002", True)
    folder = copied("other run")
    shutil.copytree(folder / "000002", folder / "000123")
    (folder / "000123" / STATE).write_text(json.dumps({"iteration": 123, "run": "another"}))
    write_manifest(folder / "000123")
    assert loaded(folder) == (folder / "000002", True)
    folder = copied("foreign")
    (folder / "000123" / "trainer").mkdir(parents=True)
    assert loaded(folder) == (folder / "000002", True)
    folder = copied("weights added")
    shutil.copy(pair / "000001" / "model.safetensors", folder / "000002" / "model-2.safetensors")
    assert loaded(folder) == (folder / "000001", True)


def test_without_a_valid_checkpoint_resuming_fails_and_changes_nothing(pair, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(pair, folder)
    for iteration in (1, 2):
        (folder / f"00000{iteration}" / "model.safetensors").write_bytes(b"")
    before = contents(folder)
    with pytest.raises(InputError, match=r"no checkpoint that can be used: .*000002.*model\.safetensors.*000001"):
        checkpoint_to_resume(folder, "r")
    with pytest.raises(InputError, match="no checkpoint that can be used"):
        resolve_model(str(tmp_path))
    assert contents(folder) == before


def test_a_file_that_fails_to_read_is_damaged(pair, tmp_path, monkeypatch):
    folder = tmp_path / "checkpoints"
    shutil.copytree(pair, folder)
    opened = os.open

    def failing(path, *args, **kwargs):
        if str(path).endswith("000002/model.safetensors"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", failing)
    assert loaded(folder) == (folder / "000001", True)


def test_a_checkpoint_with_a_damaged_optimiser_still_loads_as_a_model(pair, tmp_path):
    shutil.copytree(pair, tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "000002" / OPTIMISER).write_bytes(b"")
    assert resolve_model(str(tmp_path)).endswith("000002")
    with pytest.warns(CheckpointWarning, match=r"000002 cannot .*optimiser.safetensors: its bytes have changed"):
        assert newest_valid_checkpoint(tmp_path / "checkpoints", run="r").name == "000001"


def test_a_change_after_the_first_verification_is_detected(pair, tmp_path):
    """The result of a verification is cached only while the files are unchanged."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(pair, folder)
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    assert newest_valid_checkpoint(folder).name == "000002"
    weights = folder / "000002" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, (1, 1))
    with pytest.warns(CheckpointWarning, match="000002"):
        assert newest_valid_checkpoint(folder).name == "000001"


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "", "a\\..\\b"])
def test_a_manifest_may_not_refer_to_files_outside_its_checkpoint(pair, tmp_path, name):
    folder = tmp_path / "checkpoints"
    shutil.copytree(pair, folder)
    path = folder / "000002" / MANIFEST
    values = json.loads(path.read_text())
    values["files"][name] = "0"
    path.write_bytes(json.dumps(values, separators=(",", ":")).encode())
    message = verify_checkpoint(folder / "000002").problems[0].message
    assert "leads out of the folder" in message or "is no file's name" in message


def test_changed_package_versions_are_warned_about(tokenizer, tmp_path):
    model, optimiser = trained(tokenizer)
    save_checkpoint(tmp_path, TrainingState(3, versions={"torch": "1"}, run="r"), model, tokenizer, optimiser)
    with pytest.warns(CheckpointWarning, match="computed with torch 1 and is resumed with 2"):
        state = resume_checkpoint(tmp_path, "r", model, optimiser, CheckpointConfig(keep=1))
    assert (state.iteration, state.versions["torch"][0], state.run) == (3, "2", "r")


def test_only_the_last_checkpoint_keeps_the_optimiser(tokenizer, tmp_path):
    model, optimiser = trained(tokenizer)
    for iteration in (1, 2, 3):
        save_checkpoint(
            tmp_path,
            TrainingState(iteration=iteration),
            model,
            tokenizer,
            optimiser,
            CheckpointConfig(keep=0, optimiser="last"),
        )
    found = list_checkpoints(tmp_path)
    assert [(path / OPTIMISER).exists() for path in found] == [False, False, True]
    assert all(verify_checkpoint(path).ok for path in found)
    assert resolve_model(str(found[0])) == str(found[0])  # still a model
    assert checkpoint_to_resume(tmp_path, "") == found[-1]
    save_checkpoint(
        tmp_path, TrainingState(iteration=4), model, tokenizer, optimiser, CheckpointConfig(keep=2, optimiser="last")
    )
    assert [path.name for path in list_checkpoints(tmp_path)] == ["000003", "000004"]
