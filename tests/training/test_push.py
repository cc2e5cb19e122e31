"""`hgpo push`: the folder loads in Transformers, and the card says what was trained."""

import json
import shlex

import pytest
from lazily import Lazy, lazily

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.wording import counted
from hgpo_train.models.checkpoint_files import STATE, list_checkpoints
from hgpo_train.training.config import replace

AutoModelForCausalLM, AutoTokenizer = lazily("transformers", "AutoModelForCausalLM AutoTokenizer")
push = Lazy("hgpo_train.training.push:push")


@pytest.fixture
def run(config, runs):
    """Two iterations with an evaluation each; whatever it measured, the first one is the best."""
    config = replace(config, iterations=2, evaluation={"every": 1}, checkpoint={"every": 1, "keep": 0})
    config = replace(config, rollout={"tasks": 2, "group_size": 2, "max_response_tokens": 3})
    folder = runs.train(config).folder
    for checkpoint in list_checkpoints(folder / "checkpoints"):
        state = json.loads((checkpoint / STATE).read_text())
        assert {"best", "best_success", "stalled"} <= state.keys()
    return folder


@pytest.mark.slow
def test_a_pushed_folder_is_a_model_with_a_card(run, config, hgpo, tmp_path):
    best = json.loads((list_checkpoints(run / "checkpoints")[-1] / STATE).read_text())["best"]
    code, output, errors = hgpo("push", run, "--out", tmp_path / "model")
    assert (code, "The model is in" in output) == (0, True), errors
    folder = tmp_path / "model"
    assert {path.name for path in folder.iterdir()} >= {"README.md", "config.toml", "model.safetensors"}
    trained = run / "checkpoints" / f"{best:06d}" / "model.safetensors"
    assert (folder / "model.safetensors").read_bytes() == trained.read_bytes()
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == 2
    assert AutoTokenizer.from_pretrained(folder).chat_template
    card = (folder / "README.md").read_text()
    header, _, text = card.removeprefix("---\n").partition("---\n")
    assert "library_name: transformers" in header
    assert "base_model" not in header  # a folder of this machine
    assert "/tmp" not in text
    for line in (
        "Doors",
        "`hgpo`",
        "| 0 | ",
        f"{counted(best, 'iteration')} of 2 tasks × 2 rollouts",
        "hgpo eval",
        "this model",
    ):
        assert line in text, line
    command = next(line for line in text.splitlines() if "hgpo eval" in line).partition("  #")[0]
    names = {"FOLDER": folder, "runs/eval": tmp_path / "eval", "short.j2": config.environment.prompt_template}
    for name, path in names.items():
        command = command.replace(name, str(path))
    code, _, errors = hgpo(*shlex.split(command)[1:])
    assert code == 0, errors
    prompts = [scan_steps(path).select("prompt").collect().item(0, 0) for path in (run, tmp_path / "eval")]
    assert all(prompt.startswith("light the lamp") for prompt in prompts)  # as the template does
    code, _, errors = hgpo("push", run, "--out", folder)
    assert (code, "Traceback" in errors) == (2, False)


@pytest.mark.slow
def test_an_upload_is_private_and_its_errors_are_one_line(run, monkeypatch):
    calls = []

    class Hub:
        def create_repo(self, repo, *, private, exist_ok):
            calls.append((repo, private, exist_ok))
            return f"https://huggingface.co/{repo}"

        def upload_folder(self, *, folder_path, repo_id, commit_message):
            calls.append(({path.name for path in folder_path.iterdir()} >= {"README.md"}, repo_id, commit_message))
            if repo_id == "me/refused":
                raise RuntimeError("401 Unauthorized\nfor url")

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert push(run, repo="me/doors", iteration=1) == "https://huggingface.co/me/doors"
    assert calls == [("me/doors", True, True), (True, "me/doors", "doors, iteration 1")]
    for arguments, line in (
        ({"repo": "me/refused"}, "the hub did not take 'me/refused'"),
        ({"repo": "me/doors", "iteration": 7}, r"expected one with a checkpoint \(1, 2\), received 7"),
        ({}, "expected a folder"),
    ):
        with pytest.raises(InputError, match=line) as caught:
            push(run, **arguments)
        assert "\n" not in str(caught.value)
