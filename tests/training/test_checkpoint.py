"""Checkpoints: whole or absent, and only for the model they were made from."""

import copy

import pytest
import torch
from safetensors import safe_open

from hgpo_envs.errors import InputError
from hgpo_train.checkpoint import State, checkpoints, load_checkpoint, newest_model, save_checkpoint, sweep
from hgpo_train.config import OptimiserConfig
from hgpo_train.tiny import TinyShape, make_model
from hgpo_train.update.model import load_tokenizer
from hgpo_train.update.optimiser import make_optimiser

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


def test_a_checkpoint_brings_back_weights_and_moments(tokenizer, tmp_path):
    model, optimiser = trained(tokenizer)
    folder = save_checkpoint(tmp_path, State(iteration=7, tasks_drawn=3), model, tokenizer, optimiser)
    assert folder.name == "000007"
    other, others = trained(tokenizer, seed=5, steps=1)
    assert load_checkpoint(folder, other, others) == State(iteration=7, tasks_drawn=3)
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


def test_only_safetensors_and_no_pickles(tokenizer, tmp_path):
    folder = save_checkpoint(tmp_path, State(iteration=1), *trained(tokenizer)[:1], tokenizer, trained(tokenizer)[1])
    names = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert names <= {".safetensors", ".json", ".jinja"}
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert "model.embed_tokens.weight" in file.keys()  # noqa: SIM118 - not a dictionary


class Stop(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("at", ["model.save_pretrained", "tokenizer.save_pretrained", "save_file", "_sync", "replace"])
def test_broken_off_while_saving_leaves_the_old_one(tokenizer, tmp_path, monkeypatch, at):
    model, optimiser = trained(tokenizer)
    save_checkpoint(tmp_path, State(iteration=1), model, tokenizer, optimiser)

    def stop(*_args, **_kwargs):
        raise Stop

    if at == "model.save_pretrained":
        monkeypatch.setattr(model, "save_pretrained", stop)
    elif at == "tokenizer.save_pretrained":
        tokenizer = copy.copy(tokenizer)
        monkeypatch.setattr(tokenizer, "save_pretrained", stop)
    elif at == "replace":
        monkeypatch.setattr("pathlib.Path.replace", stop)
    else:
        monkeypatch.setattr(f"hgpo_train.checkpoint.{at}", stop)
    with pytest.raises(Stop):
        save_checkpoint(tmp_path, State(iteration=2), model, tokenizer, optimiser)
    monkeypatch.undo()
    assert [path.name for path in checkpoints(tmp_path)] == ["000001"]
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]
    assert save_checkpoint(tmp_path, State(iteration=2), model, tokenizer, optimiser).name == "000002"


def test_the_newest_are_kept(tokenizer, tmp_path):
    model, optimiser = trained(tokenizer)
    for iteration in range(1, 6):
        save_checkpoint(tmp_path / "checkpoints", State(iteration=iteration), model, tokenizer, optimiser, keep=2)
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["000004", "000005"]
    assert newest_model(str(tmp_path)).endswith("000005")
    assert newest_model("Qwen/Qwen2.5-1.5B-Instruct") == "Qwen/Qwen2.5-1.5B-Instruct"


def test_another_model_is_refused(tokenizer, tmp_path):
    folder = save_checkpoint(tmp_path, State(iteration=1), *trained(tokenizer)[:1], tokenizer, trained(tokenizer)[1])
    wider = TinyShape(vocabulary=384, width=96, layers=1, heads=2, key_value_heads=1, intermediate=96)
    deeper = TinyShape(vocabulary=384, width=64, layers=2, heads=2, key_value_heads=1, intermediate=96)
    for shape in (wider, deeper):
        model, optimiser = trained(tokenizer, shape=shape)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(InputError, match="checkpoint of another model"):
            load_checkpoint(folder, model, optimiser)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(InputError, match="holds no weights"):
        load_checkpoint(tmp_path, *trained(tokenizer))
