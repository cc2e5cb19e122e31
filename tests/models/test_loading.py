"""What a model's files may make the loader do."""

import json
import shutil

import pytest
from lazily import Lazy

from hgpo_envs.errors import InputError
from hgpo_train.models.config import ModelConfig
from hgpo_train.models.tiny import TinyShape, save_tiny

load_model = Lazy("hgpo_train.models.loading:load_model")
meta_model = Lazy("hgpo_train.training.memory_plan:meta_model")
SHAPE = TinyShape(vocabulary=300, width=32, layers=1, heads=1, key_value_heads=1, intermediate=32)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"), ["go to cabinet 1"] * 9, SHAPE)


def load(folder):
    return load_model(ModelConfig(path=str(folder), device="cpu", compute_dtype="float32"))


@pytest.mark.parametrize(
    "entry",
    [
        {"_attn_implementation": "evil/kernel"},
        {"attn_implementation": "evil/kernel:attention"},
        {"text_config": {"_attn_implementation": {"": "evil/kernel"}}},
        {"parts": [{"_attn_implementation": "evil/kernel"}], "scale": float("nan")},
    ],
)
def test_attention_code_of_the_hub_is_refused(tiny, tmp_path, entry):
    for folder in (tmp_path / "model", tmp_path / "adapter"):
        shutil.copytree(tiny, tmp_path / "model", dirs_exist_ok=True)
        path = tmp_path / "model" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | entry))
        if folder.name == "adapter":  # of that model
            folder.mkdir()
            (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(path.parent)}))
        for loader in (load, lambda path: meta_model(str(path))):
            with pytest.raises(InputError, match=r"names attention code on the hub, .*evil/kernel") as caught:
                loader(folder)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["[" * 100_000, "{", "[]", "\xff", "{}" + " " * (16 << 20)])
def test_settings_that_cannot_be_checked_are_refused(tiny, tmp_path, content):
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(content, "latin-1")
    with pytest.raises(InputError, match=r"config\.json"):
        load(tmp_path)


def test_a_model_with_the_settings_of_an_adapter_is_refused(tiny, tmp_path):
    """Transformers would load another model instead, or an adapter as well."""
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/else"}))
    with pytest.raises(InputError, match=r"contains a model and adapter_config\.json"):
        load(tmp_path)


def test_pickled_weights_are_not_loaded(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot load a causal language model"):
        load(tmp_path)
