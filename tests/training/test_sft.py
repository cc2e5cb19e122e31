"""Supervised training on solutions of the house of doors, followed by reinforcement learning."""

import io
import shutil
from unittest.mock import Mock

import polars as pl
import pytest
from doors import DoorsSource, solution
from groups import write_run
from lazily import Lazy, lazily
from refusals import refused
from rich.console import Console

from hgpo_datasets import StepWriter
from hgpo_envs.episode import Episode, settings_for
from hgpo_envs.sources import open_shared
from hgpo_train import collect
from hgpo_train.cli.new import filled
from hgpo_train.models.checkpoint_files import list_checkpoints
from hgpo_train.models.tiny import TinyShape, make_model
from hgpo_train.training.config import SftConfig, replace
from hgpo_train.training.display import Display
from hgpo_train.training.tracking import read_metrics

load_tokenizer = Lazy("hgpo_train.models.loading:load_tokenizer")
demonstrations, run_sft, split_held_out, tokenise = lazily(
    "hgpo_train.training.sft", "demonstrations run_sft split_held_out tokenise"
)


def play(folder, template, tasks):
    """Store the solution of some training tasks, and one failed trajectory."""
    shared = open_shared("doors:DoorsSource", count=10)
    settings = settings_for(
        "Doors", prompt_template=str(template), action_format="command", max_steps=20
    )
    with StepWriter(folder) as writer:
        for task in [*list(DoorsSource(10).ids("train"))[:tasks], "failed"]:
            name = "train-3" if task == "failed" else task
            episode = Episode(shared, settings)
            episode.start(name)
            rows = []
            for number, command in enumerate(
                ["press switch"] if task == "failed" else solution(name)
            ):
                row = {
                    "task_id": task,
                    "trajectory": task,
                    "step": number,
                    "state": episode.state.text,
                }
                row |= {"prompt": episode.prompt(), "action": command}
                episode.act(command)
                rows.append(
                    row | {"reward": episode.state.reward, "won": episode.state.won}
                )
            writer.add_group(rows)
    return folder


@pytest.fixture(scope="module")
def demos(tmp_path_factory, template):
    return play(tmp_path_factory.mktemp("demos") / "run", template, 10)


@pytest.fixture
def sft(tiny):
    return replace(
        SftConfig(),
        held_out=0.1,
        model={
            "path": str(tiny),
            "compute_dtype": "float32",
            "gradient_checkpointing": False,
            "device": "cpu",
        },
        update={"epochs": 3, "mini_batch_size": 8, "logit_chunk": 0},
        optimiser={"learning_rate": 3e-3, "schedule": "cosine", "warmup_iterations": 5},
        tracking={"tensorboard": False},
    )


def train(sft, demos, folder):
    return run_sft(
        sft, demos, folder, Display(Console(file=io.StringIO()), sft.update.epochs)
    )


def test_failed_trajectories_are_not_imitated(demos, sft):
    rows = demonstrations(demos, sft)
    assert "run/failed" not in set(rows["trajectory"])
    assert rows["trajectory"].n_unique() == 10
    assert "run/failed" in set(
        demonstrations(demos, replace(sft, rows="all"))["trajectory"]
    )


def test_invalid_actions_are_not_imitated(tmp_path, sft):
    row = {"task_id": "t", "state": "a room", "prompt": "?", "trajectory": "same"}
    for name in ("first", "second"):  # trajectories of two runs have the same ids
        with StepWriter(tmp_path / name) as writer:
            slip = row | {
                "step": 0,
                "action": "slip",
                "action_valid": False,
                "reward": 0.0,
            }
            writer.add_group(
                [
                    slip,
                    row
                    | {
                        "step": 1,
                        "action": "win",
                        "reward": 1.0,
                        "won": True,
                        "terminated": True,
                    },
                ]
            )
    assert demonstrations(tmp_path, sft).filter("imitated")["response"].to_list() == [
        "win",
        "win",
    ]
    assert (
        demonstrations(tmp_path, replace(sft, rows="all"))["response"].to_list()
        == ["slip", "win"] * 2
    )


@pytest.mark.parametrize("style", ["memory", "chat"])
def test_a_response_that_the_limit_cut_has_no_end_of_turn(style, tiny):
    """An end after it would teach the model to stop in the middle (transformers #19742)."""
    tokenizer = load_tokenizer(str(tiny))
    rows = pl.DataFrame(
        {
            "trajectory": ["x", "x", "y"],
            # without its first step, y is no part of x's conversation
            "step": [0, 1, 1],
            "prompt": ["Go.", "And?", "Now?"],
            "response": ["press", "look", "go"],
            "finish_reason": ["length", "stop", None],
        }
    )
    made = tokenise(rows, tokenizer, 4096, {"prompt_style": style})
    written = [tokenizer.decode(ids) for ids in made["response_token_ids"]]
    assert written == ["press", "look<|im_end|>", "go<|im_end|>"]
    asked = tokenizer.decode(made["prompt_token_ids"][2])
    assert asked == "<|im_start|>user\nNow?<|im_end|>\n<|im_start|>assistant\n"
    if style == "chat":
        talk = tokenizer.decode(made["prompt_token_ids"][1])
        assert "<|im_start|>assistant\npress<|im_end|>\n<|im_start|>user\nAnd?" in talk


def test_rows_of_a_conversation_are_what_its_policy_reads(demos, sft, tiny):
    tokenizer = load_tokenizer(str(tiny))
    single = tokenise(demonstrations(demos, sft).head(1), tokenizer, 4096, {}).row(
        0, named=True
    )
    assert (
        tokenizer.decode(single["response_token_ids"])
        == single["response"] + "<|im_end|>"
    )
    chat = {"prompt_style": "chat", "system_prompt": "Be brief."}
    rows = tokenise(demonstrations(demos, sft), tokenizer, 4096, chat)
    for _, trajectory in rows.group_by("trajectory"):
        text = "<|im_start|>system\nBe brief.<|im_end|>\n"
        before = 1
        for row in trajectory.sort("step").iter_rows(named=True):
            text += (
                f"<|im_start|>user\n{row['prompt']}<|im_end|>\n<|im_start|>assistant\n"
            )
            assert tokenizer.decode(row["prompt_token_ids"]) == text
            assert row["context_tokens"] == before
            text += f"{row['response']}<|im_end|>\n"
            before = len(row["prompt_token_ids"]) + len(row["response_token_ids"])


def test_the_tools_of_a_run_are_in_its_prompts(sft, tmp_path, monkeypatch):
    """Also if this process does not know the environment, which was `module:object` of another one."""
    (tmp_path / "box_taught.py").write_text(filled("tool_environment", "box_taught"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("hgpo_envs.environment_spec._added", {})
    collect(
        "box_taught:BOX_TAUGHT",
        "expert",
        tmp_path / "run",
        tasks=2,
        group_size=2,
        progress=False,
    )
    monkeypatch.setattr("hgpo_envs.environment_spec._added", {})
    with refused(r"does not render \(read_note, open_box\)"):
        train(sft, tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()


def test_runs_with_other_prompts_are_not_imitated_together(sft, tmp_path):
    """They would be read as the first one's: those of a conversation without it, or without its system's message."""
    row = {"step": 0, "state": "A hall.", "prompt": "A.", "action": "go", "reward": 1.0}
    rows = [{**row, "task_id": task, "trajectory": task, "won": True} for task in "ab"]
    kinds = ({}, {"prompt_style": "chat"}, {"system_prompt": "Be brief."})
    for name, options in zip(("one", "two", "three"), kinds, strict=True):
        write_run(tmp_path / name, rows, config={"env": {"id": "E-v0", **options}})
    with refused("expected runs with the same prompt_style.*received 3"):
        run_sft(sft, tmp_path, tmp_path / "taught", Mock())


def test_responses_end_as_the_template_ends_a_turn(demos, sft, tiny):
    """Also where `eos_token` is another, as of base models, and where the template opens the thought."""
    tokenizer = load_tokenizer(str(tiny))
    tokenizer.eos_token = "<|endoftext|>"
    rows = demonstrations(demos, sft).with_columns(
        response=pl.lit("<think>\nhm</think>") + pl.col("response")
    )
    opening = tokenizer.chat_template.replace("assistant\n{%", "assistant\n<think>\n{%")
    for template, tag in ((tokenizer.chat_template, ""), (opening, "<think>\n")):
        tokenizer.chat_template = template
        for style in ("memory", "chat"):
            made = tokenise(rows, tokenizer, 4096, {"prompt_style": style})
            for row in made.iter_rows(named=True):
                prompt, response = (
                    tokenizer.decode(row[f"{name}_token_ids"])
                    for name in ("prompt", "response")
                )
                assert prompt.endswith(f"assistant\n{tag}")
                assert response == row["response"].removeprefix(tag) + "<|im_end|>"
                assert "<|endoftext|>" not in prompt
                assert "<think>\n<think>" not in prompt + response


def test_the_chat_template_and_its_arguments_are_settings(demos, sft, tiny, tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text(
        "{% if short %}{{ messages[0].content }}{% else %}{{ raise_exception('long') }}{% endif %}<|im_end|>"
    )
    with refused(r"chat template .*chat\.jinja: .*long"):
        train(replace(sft, chat_template=str(path)), demos, tmp_path / "run")
    path.write_text("{{ messages[0].content }}{% if short %}.{% endif %}")
    tokenizer = load_tokenizer(str(tiny), str(path))
    row = tokenise(
        demonstrations(demos, sft).head(1), tokenizer, 4096, {}, {"short": True}
    ).row(0, named=True)
    assert tokenizer.decode(row["prompt_token_ids"]) == f"{row['prompt']}."


def test_held_out_trajectories_are_not_trained_on(demos, sft):
    rows = demonstrations(demos, sft)
    train_rows, held_out = split_held_out(rows, 0.3, seed=1)
    assert held_out["trajectory"].n_unique() == 3
    assert not set(train_rows["trajectory"]) & set(held_out["trajectory"])
    assert len(train_rows) + len(held_out) == len(rows)
    assert [
        part["trajectory"].n_unique() for part in split_held_out(rows, 0.99, seed=1)
    ] == [1, 9]


@pytest.mark.slow
def test_the_loss_falls_and_an_interrupted_run_ends_in_the_same_bytes(
    demos, sft, tmp_path, monkeypatch
):
    whole = train(sft, demos, tmp_path / "whole")
    losses = [
        line["train/loss"]
        for line in read_metrics(tmp_path / "whole" / "metrics.jsonl")
    ]
    assert losses[-1] < 0.8 * losses[0]

    # the first checkpoint is superseded by the second
    with monkeypatch.context() as patch:
        patch.setattr(
            "hgpo_train.training.checkpoint.remove_folder",
            Mock(side_effect=KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            train(sft, demos, tmp_path / "broken")
    checkpoints = tmp_path / "broken" / "checkpoints"
    assert [path.name for path in list_checkpoints(checkpoints)] == ["000001", "000002"]
    resumed = train(sft, demos, tmp_path / "broken")
    assert [path.name for path in list_checkpoints(checkpoints)] == ["000003"]
    for file in whole.rglob("*.safetensors"):
        assert file.read_bytes() == (resumed / file.relative_to(whole)).read_bytes()


@pytest.mark.slow
def test_an_existing_run_is_not_resumed_with_other_inputs(demos, sft, tmp_path):
    """Another seed, rate or data is a one-line error; weights and configuration are unchanged."""
    steps = tmp_path / "steps"
    run = tmp_path / "run"
    shutil.copytree(demos, steps)
    sft = replace(sft, update={"epochs": 1})
    train(sft, steps, run)
    before = {
        path: path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    for changes, message in (
        ({"seed": 1}, r"written with training\.seed = 0, not 1"),
        (
            {"optimiser": {"learning_rate": 1.0}},
            r"optimiser\.learning_rate = 0.003, not 1.0",
        ),
        ({"update": {"epochs": 2}}, r"with training\.update\.epochs"),
    ):
        with refused(message):
            train(replace(sft, **changes), steps, run)
    with StepWriter(steps) as writer:
        row = {
            "task_id": "t",
            "state": "s",
            "prompt": "p",
            "action": "a",
            "step": 0,
            "reward": 1.0,
            "won": True,
        }
        writer.add_group([row | {"trajectory": "new", "terminated": True}])
    with refused(r"was written with demonstrations\.rows = "):
        train(sft, steps, run)
    assert before == {
        path: path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(
    demos, sft, tiny, tmp_path
):
    """The error is one line, where the embedding would raise an IndexError."""
    tokenizer = load_tokenizer(str(tiny))
    small = TinyShape(
        vocabulary=100, width=64, layers=1, heads=2, key_value_heads=1, intermediate=96
    )
    make_model(tokenizer, small).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    sft = replace(sft, model={"path": str(tmp_path / "model")})
    with refused(r"expected prompt_token_ids from 0 to 99, received \d+"):
        train(sft, demos, tmp_path / "run")


def test_tables_without_prompts_or_successes_are_refused(tmp_path, sft):
    step = {
        "task_id": "t",
        "trajectory": "a",
        "step": 0,
        "state": "s",
        "action": "look",
        "reward": 0.0,
    }
    for name, row, line in (
        ("mute", step, "stores no prompts"),
        ("lost", {**step, "prompt": "p"}, "explorer"),
    ):
        write_run(tmp_path / name, [row])
        with refused(line):
            demonstrations(tmp_path / name, sft)


@pytest.mark.slow
def test_reinforcement_learning_improves_a_weak_start(sft, template, config, runs):
    """Supervised training stops at two thirds of the tasks; the rest has to be learnt from reward."""
    few = play(runs.folder / "few", template, 6)
    train(
        replace(sft, update={"epochs": 40}, prompt_loss=True), few, runs.folder / "sft"
    )
    sizes = {
        "environment": {"max_steps": 14},
        "rollout": {"tasks": 8, "group_size": 8},
        "iterations": 20,
    }
    update = {"kl_weight": 0.0, "entropy_weight": 0.0, "mini_batch_size": 128}
    every = {"evaluation": {"every": 20}, "checkpoint": {"every": 20}}
    config = replace(
        config,
        **sizes,
        **every,
        update=update,
        advantage={"parameters": {"reward_scale": 10.0}},
    )
    runs.train(replace(config, model={"path": str(runs.folder / "sft")}))
    lines = runs.metrics()
    first = sum(line["episode/success_rate"] for line in lines[1:4]) / 3
    last = sum(line["episode/success_rate"] for line in lines[-3:]) / 3
    assert last > first + 0.2, (first, last)
