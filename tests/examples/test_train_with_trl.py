"""examples/train_with_trl.py: TRL plays conversations with ALFWorld and takes an optimisation step."""

import json

import pytest

pytest.importorskip("trl")
import torch
from transformers import AutoModelForCausalLM
from trl.chat_template_utils import get_training_chat_template, qwen3_chat_template

from examples import train_with_trl
from hgpo_train.models.tiny import TinyShape, make_model, train_tokenizer

TASK = "valid_seen/look_at_obj_in_light-CreditCard-None-DeskLamp-320/trial_T20260101_000031_774857"
SOLUTION = ("go to shelf 2", "take creditcard 2 from shelf 2", "use desklamp 1")


@pytest.fixture
def one_task(monkeypatch):
    rows = train_with_trl.rows
    monkeypatch.setattr(train_with_trl, "SPLIT", "valid_seen")
    monkeypatch.setattr(train_with_trl, "rows", lambda tasks: rows([TASK]))


def conversation(*commands):
    """The messages of an episode, and the episode."""
    episode = train_with_trl.Household()
    messages = [
        {"role": "user", "content": train_with_trl.INSTRUCTION + episode.reset(TASK)}
    ]
    for command in commands:
        call = {
            "type": "function",
            "function": {"name": "act", "arguments": {"command": command}},
        }
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append(
            {"role": "tool", "name": "act", "content": episode.act(command)}
        )
    return [*messages, {"role": "assistant", "content": "Done."}], episode


def test_an_episode(one_task):
    messages, episode = conversation("look", *SOLUTION, "look")
    assert messages[0]["content"].endswith("go to shelf 5, help, inventory, look")
    replies = [message["content"] for message in messages if message["role"] == "tool"]
    assert replies[1].startswith("You arrive at shelf 2.")
    assert replies[-2:] == ["The episode has ended."] * 2
    assert episode.get_reward() == 1.0
    episode.reset(TASK)
    assert episode.get_reward() == 0.0


@pytest.mark.slow
def test_a_step(one_task, tmp_path, monkeypatch):
    """A random model is taught to solve the task or, as often, to give up at once; TRL's step tells these apart."""
    (solved, episode) = conversation(*SOLUTION)
    (gave_up, _) = conversation()
    tokenizer = train_tokenizer([str(solved)] * 4, 1024)
    tokenizer.chat_template = qwen3_chat_template
    options = {
        "tools": [episode.act],
        "chat_template": get_training_chat_template(tokenizer),
        "padding": True,
    }
    tokens = tokenizer.apply_chat_template(
        [solved, gave_up],
        **options,
        return_dict=True,
        return_assistant_tokens_mask=True,
        return_tensors="pt",
    )
    labels = tokens["input_ids"].masked_fill(
        ~torch.as_tensor(tokens["assistant_masks"]).bool(), -100
    )
    model = make_model(tokenizer, TinyShape(layers=1, initial=0.09))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(50):
        model(
            tokens["input_ids"], attention_mask=tokens["attention_mask"], labels=labels
        ).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(tmp_path / "taught")
    tokenizer.save_pretrained(tmp_path / "taught")

    arguments = ["--out", str(tmp_path / "run"), "--steps", "1", "--tokens", "1000"]
    monkeypatch.setattr(
        "sys.argv", ["train_with_trl", str(tmp_path / "taught"), *arguments]
    )
    train_with_trl.main()
    (log,) = json.loads(
        (tmp_path / "run/checkpoint-1/trainer_state.json").read_text("utf-8")
    )["log_history"]
    assert 0 < log["rewards/Household/mean"] < 1
    assert log["tools/call_frequency"] >= len(SOLUTION) * log["rewards/Household/mean"]
    assert log["tools/failure_frequency"] == 0
    assert log["grad_norm"] > 0
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    assert not torch.equal(trained.lm_head.weight, model.lm_head.weight)
