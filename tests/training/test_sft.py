"""Supervised training on solutions of the house of doors, followed by reinforcement learning."""

import dataclasses
import io
import shutil

import polars as pl
import pytest
from doors import DoorsSource, solution
from lazily import Lazy
from rich.console import Console

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.episode import Episode, settings_for
from hgpo_envs.errors import InputError
from hgpo_envs.sources import open_shared
from hgpo_train.models.checkpoint_files import list_checkpoints
from hgpo_train.models.tiny import TinyShape, make_model
from hgpo_train.settings import build
from hgpo_train.training.config import SftConfig, replace
from hgpo_train.training.display import Display
from hgpo_train.training.tracking import read_metrics

load_tokenizer = Lazy("hgpo_train.models.loading:load_tokenizer")
demonstrations = Lazy("hgpo_train.training.sft:demonstrations")
run_sft = Lazy("hgpo_train.training.sft:run_sft")
split_held_out = Lazy("hgpo_train.training.sft:split_held_out")
tokenise = Lazy("hgpo_train.training.sft:tokenise")


@pytest.fixture(scope="module")
def demos(tmp_path_factory, template):
    """Collect the solution of every training task and one failed trajectory."""
    folder = tmp_path_factory.mktemp("demos") / "run"
    shared = open_shared("doors:DoorsSource", count=10)
    settings = settings_for("Doors", prompt_template=str(template), action_format="command", max_steps=20)
    with StepWriter(folder) as writer:
        for task in [*DoorsSource(10).ids("train"), "failed"]:
            name = "train-3" if task == "failed" else task
            episode = Episode(shared, settings)
            episode.start(name)
            rows = []
            for number, command in enumerate(["press switch"] if task == "failed" else solution(name)):
                row = {"task_id": task, "trajectory": task, "step": number, "state": episode.state.text}
                row |= {"prompt": episode.prompt(), "action": command}
                episode.act(command)
                rows.append(row | {"reward": episode.state.reward, "won": episode.state.won})
            writer.add_group(rows)
    return folder


def sft_config(tiny, **changes):
    values = {
        "held_out": 0.1,
        "model": {"path": str(tiny), "compute_dtype": "float32", "gradient_checkpointing": False, "device": "cpu"},
        "update": {"epochs": 3, "mini_batch_size": 8, "logit_chunk": 0},
        "optimiser": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_iterations": 5},
        "tracking": {"tensorboard": False},
    }
    from hgpo_train.settings import merge

    return build(SftConfig, merge(values, changes))


def train(config, demos, folder):
    return run_sft(config, demos, folder, Display(Console(file=io.StringIO()), config.update.epochs))


def test_failed_trajectories_are_not_imitated(demos, tiny):
    rows = demonstrations(demos, sft_config(tiny))
    assert "failed" not in set(rows["trajectory"])
    assert rows["trajectory"].n_unique() == 10
    assert "failed" in set(demonstrations(demos, sft_config(tiny, rows="all"))["trajectory"])
    assert demonstrations(demos, sft_config(tiny, max_trajectories=4))["trajectory"].n_unique() == 4


def test_invalid_actions_are_not_imitated(tmp_path, tiny):
    row = {"task_id": "t", "state": "a room", "prompt": "?"}
    with StepWriter(tmp_path / "run") as writer:
        for name in ("first", "second"):
            slip = row | {"trajectory": name, "step": 0, "action": "slip", "action_valid": False, "reward": 0.0}
            won = row | {"trajectory": name, "step": 1, "action": "win", "reward": 1.0, "won": True, "terminated": True}
            writer.add_group([{**one, "group": int(name == "first")} for one in (slip, won)])
    rows = demonstrations(tmp_path / "run", sft_config(tiny))
    assert rows.filter("imitated")["response"].to_list() == ["win", "win"]
    assert demonstrations(tmp_path / "run", sft_config(tiny, rows="all"))["response"].to_list() == ["slip", "win"] * 2


def test_rows_become_prompt_and_response(demos, tiny):
    tokenizer = load_tokenizer(str(tiny))
    rows = tokenise(demonstrations(demos, sft_config(tiny)).head(5), tokenizer, 4096, {})
    for row in rows.iter_rows(named=True):
        assert tokenizer.decode(row["response_token_ids"]) == row["response"] + "<|im_end|>"
        assert tokenizer.decode(row["prompt_token_ids"]) == (
            f"<|im_start|>user\n{row['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        )


def test_rows_of_a_conversation_are_what_its_policy_reads(demos, tiny):
    tokenizer = load_tokenizer(str(tiny))
    chat = {"prompt_style": "chat", "system_prompt": "Be brief."}
    rows = tokenise(demonstrations(demos, sft_config(tiny)), tokenizer, 4096, chat)
    for _, trajectory in rows.group_by("trajectory"):
        text = "<|im_start|>system\nBe brief.<|im_end|>\n"
        before = 1
        for row in trajectory.sort("step").iter_rows(named=True):
            text += f"<|im_start|>user\n{row['prompt']}<|im_end|>\n<|im_start|>assistant\n"
            assert tokenizer.decode(row["prompt_token_ids"]) == text
            assert row["context_tokens"] == before
            text += f"{row['response']}<|im_end|>"
            before = len(row["prompt_token_ids"]) + len(row["response_token_ids"])
            text += "\n"


def test_held_out_trajectories_are_not_trained_on(demos, tiny):
    rows = demonstrations(demos, sft_config(tiny))
    train_rows, held_out = split_held_out(rows, 0.3, seed=1)
    assert held_out["trajectory"].n_unique() == 3
    assert not set(train_rows["trajectory"]) & set(held_out["trajectory"])
    assert len(train_rows) + len(held_out) == len(rows)


@pytest.mark.slow
def test_the_loss_falls_and_an_interrupted_run_ends_in_the_same_bytes(demos, tiny, tmp_path, monkeypatch):
    config = sft_config(tiny)
    whole = train(config, demos, tmp_path / "whole")
    losses = [line["train/loss"] for line in read_metrics(tmp_path / "whole" / "metrics.jsonl")]
    assert losses[-1] < 0.8 * losses[0]

    saved = []

    def save_once(*args, **kwargs):
        from hgpo_train.training.checkpoint import save_checkpoint

        if saved:
            raise KeyboardInterrupt
        saved.append(1)
        return save_checkpoint(*args, **kwargs)

    monkeypatch.setattr("hgpo_train.training.sft.save_checkpoint", save_once)
    with pytest.raises(KeyboardInterrupt):
        train(config, demos, tmp_path / "broken")
    monkeypatch.undo()
    assert [path.name for path in list_checkpoints(tmp_path / "broken" / "checkpoints")] == ["000001"]
    resumed = train(config, demos, tmp_path / "broken")
    for file in whole.rglob("*.safetensors"):
        assert file.read_bytes() == (resumed / file.relative_to(whole)).read_bytes()


@pytest.mark.slow
def test_a_resumed_run_removes_old_checkpoints_that_a_killed_one_left(demos, tiny, tmp_path, monkeypatch):
    config = sft_config(tiny, update={"epochs": 2})

    def killed(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hgpo_train.training.checkpoint.remove_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            train(config, demos, tmp_path)
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["000001", "000002"]
    train(config, demos, tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000002"]


@pytest.mark.slow
def test_an_existing_run_is_not_resumed_with_other_inputs(demos, tiny, tmp_path):
    """Other data, seed, rate or model is a one-line error; weights and configuration are unchanged."""
    config = sft_config(tiny, update={"epochs": 1})
    steps, model, run = tmp_path / "steps", tmp_path / "model", tmp_path / "run"
    shutil.copytree(demos, steps)
    shutil.copytree(tiny, model)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, path=str(model)))
    train(config, steps, run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    faster = dataclasses.replace(config.optimiser, learning_rate=1.0)
    for other, line in (
        (dataclasses.replace(config, seed=1), "started with seed = 0, not 1"),
        (dataclasses.replace(config, optimiser=faster), "started with optimiser.learning_rate = 0.003, not 1.0"),
        (dataclasses.replace(config, update=dataclasses.replace(config.update, epochs=2)), r"with update\.epochs"),
    ):
        with pytest.raises(InputError, match=line):
            train(other, steps, run)
    with StepWriter(steps) as writer:
        row = {"task_id": "t", "state": "s", "prompt": "p", "action": "a", "step": 0, "reward": 1.0, "won": True}
        writer.add_group([row | {"trajectory": "new", "terminated": True}])
    with pytest.raises(InputError, match=r"started with another set of demonstrations: the step table .*steps' has"):
        train(config, steps, run)
    shutil.rmtree(steps)
    shutil.copytree(demos, steps)
    (model / "generation_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"started with another model: model\.path"):
        train(config, steps, run)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(demos, tiny, tmp_path):
    """The error is one line, where the embedding would raise an IndexError."""
    tokenizer = load_tokenizer(str(tiny))
    small = TinyShape(vocabulary=100, width=64, layers=1, heads=2, key_value_heads=1, intermediate=96)
    make_model(tokenizer, small).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match=r"expected prompt_token_ids from 0 to 99, received \d+ \(\d+ rows"):
        train(sft_config(tmp_path / "model"), demos, tmp_path / "run")


def test_tables_without_prompts_or_successes_are_refused(tmp_path, tiny):
    step = {"task_id": "t", "trajectory": "a", "step": 0, "state": "s", "action": "look", "reward": 0.0}
    for name, row, line in (("mute", step, "stores no prompts"), ("lost", {**step, "prompt": "p"}, "explorer")):
        with StepWriter(tmp_path / name) as writer:
            writer.add_group([row])
        with pytest.raises(InputError, match=line):
            demonstrations(tmp_path / name, sft_config(tiny))


@pytest.mark.slow
def test_reinforcement_learning_improves_a_weak_start(demos, tiny, config, runs):
    """Supervised training stops at two thirds of the tasks; the rest has to be learnt from reward."""
    weak = sft_config(tiny, update={"epochs": 40}, max_trajectories=6, prompt_loss=True)
    train(weak, demos, runs.folder / "sft")
    config = replace(
        config,
        iterations=20,
        environment={"max_steps": 14},
        model={"path": str(runs.folder / "sft")},
        rollout={"tasks": 8, "group_size": 8},
        update={"kl_weight": 0.0, "entropy_weight": 0.0, "mini_batch_size": 128},
        optimiser={"learning_rate": 1e-3},
        advantage={"parameters": {"reward_scale": 10.0}},
        evaluation={"every": 20},
        checkpoint={"every": 20},
    )
    runs.train(config)
    lines = read_metrics(runs.folder / "run" / "metrics.jsonl")
    first = sum(line["episode/success_rate"] for line in lines[1:4]) / 3
    last = sum(line["episode/success_rate"] for line in lines[-3:]) / 3
    assert last > first + 0.2, (first, last)
    assert scan_steps(runs.folder / "run" / "steps").select(pl.col("iteration").n_unique()).collect().item() == 20
