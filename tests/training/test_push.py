"""`hgpo push`: the folder loads in Transformers, and the card says what was trained."""

import json
import shlex

import polars as pl
import pytest
from lazily import Lazy, lazily

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.wording import counted
from hgpo_train.evaluation.report import EvaluationReport, evaluation_reports
from hgpo_train.models.checkpoint_files import STATE, list_checkpoints
from hgpo_train.proportions import wilson_interval
from hgpo_train.training.config import replace

AutoModelForCausalLM, AutoTokenizer = lazily("transformers", "AutoModelForCausalLM AutoTokenizer")
push = Lazy("hgpo_train.training.push:push")
evaluation_result = Lazy("hgpo_train.training.push:evaluation_result")


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
    played = scan_steps(run / "evaluation").filter(pl.col("iteration") == best)
    won = played.group_by("task_id").agg(pl.col("episode_won").mean()).collect()["episode_won"]
    low, high = wilson_interval(won.mean(), len(won))
    size = counted(len(won), "task")
    assert f"Iteration {best}: success {won.mean():.1%} ({low:.1%} to {high:.1%}) on {size} of split" in text

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


def evaluation_of(won: int, tasks: int) -> EvaluationReport:
    success = [1.0] * won + [0.0] * (tasks - won)
    episodes = pl.DataFrame({"task_id": [str(task) for task in range(tasks)], "success": success})
    columns = {"env_id": "", "seed": 0, "task_type": "", "aborted": False, "length": 3, "score": 0.0, "invalid": 0}
    table = episodes.with_columns(*(pl.lit(value).alias(name) for name, value in columns.items()))
    return evaluation_reports(table.with_columns(admissible=3, judged=3, won=pl.col("success") == 1))[0]


def test_the_highest_of_several_evaluations_is_called_so_and_the_last_one_is_given(config):
    """Wilson's intervals of 6, 9 and 7 of 12, and of 1 of 1 evaluation."""
    found = {iteration: evaluation_of(won, 12) for iteration, won in ((0, 6), (5, 9), (10, 7))}
    split = config.evaluation.split
    assert evaluation_result(config, found, 5) == (
        f"Iteration 5: success 75.0% (46.8% to 91.1%) on 12 tasks of split {split}. It is the highest of 3 "
        "evaluations on these tasks: chosen for that, it is too high. The last, iteration 10: 58.3% (32.0% to 80.7%)."
    )
    last = f"Iteration 10: success 58.3% (32.0% to 80.7%) on 12 tasks of split {split}."
    assert evaluation_result(config, found, 10) == last
    assert evaluation_result(config, found, 7) == "Iteration 7 was not evaluated on held-out tasks."
    assert "highest" not in evaluation_result(config, {5: found[5]}, 5)


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
