"""Evaluations and rollouts of a model cannot be resumed with another model or other tasks under the same path."""

import shutil

import pytest
from typer.testing import CliRunner

from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_train.cli import app

pytest.importorskip("torch", reason="needs the extra `train`")

from hgpo_train.models.tiny import TinyShape, save_tiny

SHAPE = TinyShape(vocabulary=300, width=32, layers=1, heads=1, key_value_heads=1, intermediate=32)


@pytest.mark.parametrize("command", [pytest.param("eval", marks=pytest.mark.slow), "rollout"])
def test_another_model_or_catalogue_under_the_same_path_is_refused(tmp_path, command):
    model, shop = tmp_path / "model", tmp_path / "shop"
    save_tiny(model, ["search[a shelf]"] * 9, SHAPE)
    shutil.copytree(bundled_folder(), shop)
    split = ["--split", "eval", "--seeds", "1"]
    only = split if command == "eval" else ["--tasks", "2", "--group-size", "2"]
    arguments = [
        command, "--env", "HGPO/WebShop-v0", "--data", str(shop), "--policy", f"transformers:{model}",
        "--max-steps", "1", "--policy-option", "max_response_tokens=1", "--policy-option", "device=cpu",
        "--out", str(tmp_path / "run"), *only,
    ]  # fmt: skip

    def played():
        shown = CliRunner().invoke(app, arguments)
        return shown.exit_code, str(shown.exception)

    assert played()[0] == 0
    assert played()[0] == 0
    save_tiny(model, ["search[a shelf]"] * 9, SHAPE, seed=1)
    code, line = played()
    assert code
    assert "policy" in line
    assert "use another folder" in line
    save_tiny(model, ["search[a shelf]"] * 9, SHAPE)
    assert played()[0] == 0
    (shop / "added").write_text("another catalogue")
    code, line = played()
    assert code
    assert "was written with tasks" in line
