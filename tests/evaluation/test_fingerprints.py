"""Rollouts of a model cannot be resumed with another model or other tasks under the same path."""

import shutil

import pytest

from hgpo_envs.errors import InputError
from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_train.rollout import collect


@pytest.mark.slow
def test_another_model_or_catalogue_under_the_same_path_is_refused(tmp_path):
    pytest.importorskip("torch", reason="needs the extra `train`")
    from hgpo_train.models.tiny import TinyShape, save_tiny

    shape = TinyShape(vocabulary=300, width=32, layers=1, heads=1, key_value_heads=1, intermediate=32)
    model, shop = tmp_path / "model", tmp_path / "shop"
    save_tiny(model, ["search[a shelf]"] * 9, shape)
    shutil.copytree(bundled_folder(), shop)

    def play() -> None:
        options = {"max_response_tokens": 1, "device": "cpu"}
        arguments = {"tasks": 2, "group_size": 2, "max_steps": 1, "data": shop, "progress": False}
        collect("HGPO/WebShop-v0", f"transformers:{model}", tmp_path / "run", policy_options=options, **arguments)

    play()
    play()
    save_tiny(model, ["search[a shelf]"] * 9, shape, seed=1)
    with pytest.raises(InputError, match=r"policy.*use another folder"):
        play()
    save_tiny(model, ["search[a shelf]"] * 9, shape)
    play()
    (shop / "added").write_text("another catalogue")
    with pytest.raises(InputError, match="was written with tasks"):
        play()
