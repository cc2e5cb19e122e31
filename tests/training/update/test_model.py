"""Damaged model files are reported in one line, and missing weights are never initialised randomly."""

import shutil

import pytest
from lazily import Lazy

from hgpo_envs.errors import InputError
from hgpo_train.models.config import ModelConfig
from hgpo_train.models.tiny import TinyShape, save_tiny

load_file = Lazy("safetensors.torch:load_file")
save_file = Lazy("safetensors.torch:save_file")
load_model = Lazy("hgpo_train.models.loading:load_model")
load_tokenizer = Lazy("hgpo_train.models.loading:load_tokenizer")


SHAPE = TinyShape(vocabulary=300, width=32, layers=2, heads=1, key_value_heads=1, intermediate=32)
DAMAGES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(b"\xff\x00{[" * 50),
    "list": lambda path: path.write_bytes(b"[1, 2]"),
    "object": lambda path: path.write_bytes(b'{"model_type": 3, "a": null}'),
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "dangling link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}
NEEDED = {"config.json": load_model, "model.safetensors": load_model, "tokenizer.json": load_tokenizer}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model") / "m", ["a house of doors"] * 9, SHAPE)


def load(call, folder):
    path = str(folder)
    return call(ModelConfig(path=path, device="cpu", compute_dtype="float32") if call is load_model else path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NEEDED, "generation_config.json", "tokenizer_config.json", "chat_template.jinja"])
def test_damaged_files_of_a_model_are_reported_in_one_line(whole, tmp_path, monkeypatch, name):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for damage, spoil in DAMAGES.items():
        folder = tmp_path / damage
        shutil.copytree(whole, folder)
        spoil(folder / name)
        refused = {}
        for call in (load_tokenizer, load_model):
            try:
                load(call, folder)
            except InputError as error:
                refused[call] = str(error)
        assert all("\n" not in line and str(folder) in line for line in refused.values())
        assert name not in NEEDED or NEEDED[name] in refused, damage


def test_missing_weights_are_not_initialised_randomly(whole, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if "layers.1.mlp" in name]:
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"no weights for 'model\.layers\.1\.mlp\.down_proj\.weight' and 2 more"):
        load(load_model, folder)
