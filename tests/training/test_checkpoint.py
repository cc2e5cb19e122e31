"""Checkpoints are verified before use, loaded only into their model, and nothing else is removed for them.

`tests/faults` kills the process, fills the disk and cuts the power at every write of a checkpoint.
"""

import copy
import json
import os
import shutil
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lazily import Lazy, lazily
from refusals import refused

from hgpo_train.models.checkpoint_files import (
    MANIFEST,
    OPTIMISER,
    STATE,
    CheckpointWarning,
    TrainingState,
    list_checkpoints,
    newest_valid_checkpoint,
    resolve_model,
    verify_checkpoint,
)
from hgpo_train.models.tiny import TinyShape, make_model
from hgpo_train.training.config import CheckpointConfig, OptimiserConfig

torch = Lazy("torch")
load_tokenizer = Lazy("hgpo_train.models.loading:load_tokenizer")
load_checkpoint, resume_checkpoint, save_checkpoint = lazily(
    "hgpo_train.training.checkpoint",
    "load_checkpoint resume_checkpoint save_checkpoint",
)
make_optimiser = Lazy("hgpo_train.training.update.optimiser:make_optimiser")

SIZES = {"vocabulary": 384, "heads": 2, "key_value_heads": 1, "intermediate": 96}


def trained(tokenizer, seed=0, steps=2, width=64, layers=1):
    model = make_model(tokenizer, TinyShape(width=width, layers=layers, **SIZES), seed)
    optimiser = make_optimiser(model, OptimiserConfig(learning_rate=0.01))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimiser.step()
    return model, optimiser


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return load_tokenizer(str(tiny))


@pytest.fixture
def save(tokenizer, tmp_path):
    """Return a function that saves the checkpoints of some iterations, and returns the last one's folder."""
    model, optimiser = trained(tokenizer)

    def save(*iterations, **kept):
        kept = CheckpointConfig(**{"keep": 0, **kept})
        for iteration in iterations:
            state = TrainingState(iteration, versions={"torch": "1"})
            folder = save_checkpoint(
                tmp_path / "checkpoints", state, model, tokenizer, optimiser, kept
            )
        return folder

    return save


@pytest.fixture(scope="module")
def pair(tokenizer, tmp_path_factory):
    """Return a folder with the checkpoints of iterations 1 and 2."""
    folder = tmp_path_factory.mktemp("pair")
    for iteration in (1, 2):
        model, optimiser = trained(tokenizer, seed=iteration)
        save_checkpoint(folder, TrainingState(iteration), model, tokenizer, optimiser)
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_newest_checkpoints_are_kept_and_the_last_can_be_resumed_from(
    save, tmp_path
):
    last = save(1, 2, 3, optimiser="last")
    checkpoints = list_checkpoints(tmp_path / "checkpoints")
    assert [(path / OPTIMISER).exists() for path in checkpoints] == [False, False, True]
    assert all(verify_checkpoint(path).ok for path in checkpoints)
    assert resolve_model(str(checkpoints[0])) == str(checkpoints[0])  # still a model
    assert newest_valid_checkpoint(tmp_path / "checkpoints", to_resume=True) == last
    save(4, 5, keep=2)
    assert names(tmp_path / "checkpoints") == ["000004", "000005"]
    assert {path.suffix for path in last.rglob("*") if path.is_file()} <= {
        ".safetensors",
        ".json",
        ".jinja",
    }
    assert resolve_model(str(tmp_path)).endswith("000005")
    assert resolve_model("Qwen/Qwen2.5-1.5B-Instruct") == "Qwen/Qwen2.5-1.5B-Instruct"


def test_files_that_training_did_not_write_are_never_removed(save, tmp_path):
    """Neither files with a checkpoint's name nor files inside a checkpoint are removed."""
    (save(1) / "notes.md").write_text("the best one")
    folder = tmp_path / "checkpoints"
    for name in (
        "000002.part",
        "000003",
        "12",
        "000004.damaged",
        ".hgpo-0123456789abcdef.tmp",
    ):
        (folder / name).mkdir()
        (folder / name / "precious").write_text("1")
    (folder / "000005").write_text("a file")
    (tmp_path / "elsewhere").mkdir()
    (folder / "000006").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(CheckpointWarning, match="renamed to") as shown:
        save(*range(1, 9), keep=1)
    assert [str(warning.message).rpartition(" ")[2] for warning in shown] == [
        "000001.damaged", "000003.damaged", "000005.damaged", "000006.damaged"
    ]  # fmt: skip
    assert len(list(folder.rglob("precious"))) == 5
    assert len(list(folder.rglob("notes.md"))) == 1
    assert (folder / "000005.damaged").read_text() == "a file"
    assert (tmp_path / "elsewhere").is_dir()
    assert [path.name for path in list_checkpoints(folder)] == ["000008"]


def test_another_model_is_refused_and_unchanged(save, tokenizer, tmp_path):
    folder = save(1)
    for sizes in ({"width": 96}, {"layers": 2}):
        model, optimiser = trained(tokenizer, **sizes)
        before = copy.deepcopy(model.state_dict())
        with refused("000001 belongs to another model"):
            load_checkpoint(folder, model, optimiser)
        assert all(
            torch.equal(value, before[name])
            for name, value in model.state_dict().items()
        )
    with refused("contains no weights"):
        load_checkpoint(tmp_path, *trained(tokenizer))


def test_experts_whose_files_have_other_names_are_resumed(tokenizer, tmp_path):
    """Transformers keeps a layer's experts in one tensor, and saves each of them."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {"vocab_size": 384, "hidden_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    config = Qwen3MoeConfig(**sizes, **heads, **experts)
    saved, resumed = (Qwen3MoeForCausalLM(config) for _ in range(2))
    optimiser = make_optimiser(saved, OptimiserConfig())
    folder = save_checkpoint(tmp_path, TrainingState(1), saved, tokenizer, optimiser)
    load_checkpoint(folder, resumed, make_optimiser(resumed, OptimiserConfig()))
    expected = saved.state_dict()
    for name, value in resumed.state_dict().items():
        assert torch.equal(value, expected[name])


def test_changed_package_versions_are_warned_about(save, tokenizer, tmp_path):
    save(3)
    with pytest.warns(
        CheckpointWarning, match="computed with torch 1 and is resumed with 2"
    ):
        state = resume_checkpoint(
            tmp_path / "checkpoints", *trained(tokenizer), CheckpointConfig(keep=1)
        )
    assert (state.iteration, state.versions["torch"][0]) == (3, "2")


def replaced(make):
    return lambda path: (path.unlink(), make(path))


DAMAGES = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "one byte less": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
    "JSON of another type": lambda path: path.write_bytes(b"[1, 2]"),
    "dangling link": replaced(lambda path: path.symlink_to("nowhere")),
    "FIFO": replaced(os.mkfifo),
    "folder": replaced(Path.mkdir),
}


def resumed_from(folder):
    """Return the checkpoint that resuming loads, and whether there was a warning: at most one, of one line."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        newest = newest_valid_checkpoint(folder, to_resume=True)
    assert all("\n" not in str(warning.message) for warning in shown)
    assert len(shown) <= 1
    return newest.name, bool(shown)


@pytest.mark.parametrize(
    "name", ["model.safetensors", OPTIMISER, STATE, MANIFEST, "tokenizer.json"]
)
def test_a_damaged_newest_checkpoint_is_skipped_with_one_warning(pair, tmp_path, name):
    for number, damage in enumerate(DAMAGES.values()):
        folder = tmp_path / str(number) / "checkpoints"
        shutil.copytree(pair, folder)
        damage(folder / "000002" / name)
        if name == OPTIMISER:  # it still loads as a model
            assert resolve_model(str(folder.parent)).endswith("000002")
        elif name != MANIFEST:
            # as `hgpo eval --policy transformers:…`
            with refused("is damaged"):
                resolve_model(str(folder / "000002"))
        # The optimiser's state may have been removed: `checkpoint.optimiser = "last"`.
        removed = name == OPTIMISER and not os.path.lexists(folder / "000002" / name)
        assert verify_checkpoint(folder / "000002").ok == removed
        assert resumed_from(folder) == ("000001", True)
        assert names(folder) == ["000001", "000002.damaged"]
        assert resumed_from(folder) == ("000001", False)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_a_flipped_bit_in_any_file_is_detected(pair, tmp_path_factory, data):
    name, whole = data.draw(st.sampled_from(sorted(contents(pair / "000002").items())))
    at = data.draw(st.integers(0, len(whole) - 1))
    bits = data.draw(st.integers(1, 255))
    folder = tmp_path_factory.mktemp("flipped") / "checkpoints"
    shutil.copytree(pair, folder)
    (folder / "000002" / name).write_bytes(
        whole[:at] + bytes([whole[at] ^ bits]) + whole[at + 1 :]
    )
    assert resumed_from(folder) == ("000001", True)
    shutil.rmtree(folder)


def test_without_a_valid_checkpoint_resuming_fails_and_changes_nothing(pair, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(pair, folder)
    for iteration in (1, 2):
        (folder / f"00000{iteration}" / "model.safetensors").write_bytes(b"")
    before = contents(folder)
    with refused(
        r"no checkpoint that can be used: .*000002.*model\.safetensors.*000001"
    ):
        newest_valid_checkpoint(folder, to_resume=True)
    with refused("no checkpoint that can be used"):
        resolve_model(str(tmp_path))
    assert contents(folder) == before


def test_a_change_after_the_first_verification_is_detected(pair, tmp_path):
    """The result of a verification is cached only while the files are unchanged, also with equal times."""
    shutil.copytree(pair, tmp_path / "checkpoints")
    weights = tmp_path / "checkpoints" / "000002" / "model.safetensors"
    os.utime(weights, (1, 1))
    assert newest_valid_checkpoint(tmp_path / "checkpoints").name == "000002"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, (1, 1))
    with pytest.warns(CheckpointWarning, match="000002"):
        assert newest_valid_checkpoint(tmp_path / "checkpoints").name == "000001"


def test_a_manifest_may_not_refer_to_files_outside_its_checkpoint(pair, tmp_path):
    shutil.copytree(pair / "000002", tmp_path / "000002")
    path = tmp_path / "000002" / MANIFEST
    values = json.loads(path.read_text())
    for name in ("../outside", "/etc/passwd", "", "a\\..\\b"):
        path.write_text(json.dumps(values | {"files": values["files"] | {name: "0"}}))
        message = verify_checkpoint(tmp_path / "000002").problems[0].message
        assert "leads out of the folder" in message or "is no file's name" in message
