"""The plug-in's own parts, without verl: episodes against the collector's, retries, failures, step tables."""

import asyncio
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("transformers")

from hgpo_datasets import scan_steps
from hgpo_envs.episode import Episode
from hgpo_envs.hashing import text_hash
from hgpo_train.advantages import compute
from hgpo_train.models.tiny import train_tokenizer
from hgpo_train.policies.base import Failure, Reply
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.rollout import collect
from hgpo_train.rollout.plan import RolloutSpec, plan_groups
from hgpo_train.rollout.trajectory import Trajectory
from hgpo_train.training.config import Config, replace
from hgpo_train.training.data import open_training_env
from hgpo_verl import episodes
from hgpo_verl.episodes import ATTEMPTS, Generated, play, with_retries
from hgpo_verl.step_rows import StepTable, advantages

CONFIG = replace(
    Config(),
    name="tiny",
    environment={"max_steps": 6},
    rollout={
        "engine": "vllm",
        "tasks": 3,
        "group_size": 3,
        "max_prompt_tokens": 4000,
        "max_response_tokens": 200,
    },
    advantage={"parameters": {"history_length": 2, "reward": "score"}},
)
OPTIONS = GenerationOptions(max_prompt_tokens=4000, max_response_tokens=200)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(
        [
            "<think> go </think><action>look</action>",
            "take a mug from the table",
            "a b c",
        ],
        400,
    )


def answer(prompt: str) -> str:
    """A policy that is a function of the prompt: some of its actions are admissible, some are not."""
    actions = [
        line
        for line in ("look", "inventory", "go to shelf 1", "help", "nonsense")
        if line
    ]
    return (
        f"<think>x</think><action>{actions[text_hash(prompt) % len(actions)]}</action>"
    )


def played(trajectory, generate, tokenizer, options=OPTIONS):
    asyncio.run(play(trajectory, generate, tokenizer, options))
    return [row.as_dict() for row in trajectory.rows]


def answering(tokenizer):
    async def generate(tokens):
        text = tokenizer.decode(tokens)
        prompt = text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        ids = tokenizer(answer(prompt), add_special_tokens=False)["input_ids"]
        return Generated([*ids, tokenizer.eos_token_id], None, 4)

    return generate


def trajectories(count=3):
    handle = open_training_env(CONFIG, "train")
    groups = plan_groups(handle.tasks, RolloutSpec(count, group_size=3))
    for _, group in zip(range(count), groups, strict=False):
        for member in range(group.size):
            episode = Episode(handle.shared, handle.settings)
            yield Trajectory(
                group, member, group.seed(0, member), episode, clocked=True
            )


def one():
    return next(trajectories(1))


def test_rows_are_those_of_the_collector(tokenizer, tmp_path) -> None:
    options = {"max_steps": 6, "history_length": 2, "action_format": "response"}
    run = collect(
        "HGPO/ALFWorld-v0",
        lambda request: Reply(answer(request.prompt)),
        tmp_path / "collected",
        tasks=3,
        group_size=3,
        **options,
    )
    rows = [
        row
        for trajectory in trajectories()
        for row in played(trajectory, answering(tokenizer), tokenizer)
    ]
    table = StepTable(tmp_path / "verl", CONFIG, "train")
    ours = table.store(rows)
    table.close()
    theirs = run.steps.collect()
    assert len(ours) == len(theirs) > 9
    different = {
        name
        for name in theirs.columns
        if not ours[name].equals(theirs[name], null_equal=True)
    }
    tokens = {
        "prompt_token_ids",
        "response_token_ids",
        "response_logprobs",
        "cut_pairs",
        "cut_tokens",
    }
    assert different <= {"run", "policy_version", "policy_s", "environment_s"} | tokens
    assert ours["policy_version"].unique().to_list() == [4]


def test_a_request_that_fails_is_sent_again(tokenizer, monkeypatch) -> None:
    calls = []

    async def generate(tokens):
        calls.append(1)
        if len(calls) in (2, 3):
            raise ConnectionError("gone")
        return await answering(tokenizer)(tokens)

    rows = played(one(), with_retries(generate, pause_s=0), tokenizer)
    assert not any(row["aborted"] for row in rows)
    assert len(calls) == len(rows) + 2


def test_a_request_that_always_fails_aborts_its_rollout_with_the_reason(
    tokenizer,
) -> None:
    good = answering(tokenizer)
    calls = []

    async def generate(tokens):
        calls.append(1)
        if len(calls) > 2:
            raise ConnectionError("gone")
        return await good(tokens)

    rows = played(one(), with_retries(generate, pause_s=0), tokenizer)
    assert [row.get("aborted", False) for row in rows] == [False, False, True]
    assert (
        rows[-1]["error"]
        == f"PolicyFailed: ConnectionError: gone ({ATTEMPTS} attempts)"
    )
    assert "response_token_ids" not in rows[-1]
    assert len(calls) == 2 + ATTEMPTS


def test_a_request_without_an_answer_times_out(tokenizer) -> None:
    async def generate(_):
        await asyncio.Event().wait()

    rows = played(one(), with_retries(generate, pause_s=0, timeout_s=0.01), tokenizer)
    assert (
        rows[-1]["error"]
        == f"PolicyTimedOut: no answer within 0.01 s, {ATTEMPTS} attempts"
    )


@pytest.mark.parametrize("place", ["start", "act"])
def test_an_environment_that_fails_aborts_its_rollout(
    place, tokenizer, monkeypatch
) -> None:
    trajectory = one()

    def fail(*_):
        raise OSError("disk")

    monkeypatch.setattr(trajectory.episode.engine, place, fail)
    rows = played(trajectory, answering(tokenizer), tokenizer)
    assert [row["error"] for row in rows] == ["EnvironmentFailed: OSError: disk"]


def test_long_prompts_follow_the_configured_policy(tokenizer) -> None:
    limit = GenerationOptions(
        max_prompt_tokens=50, max_response_tokens=20, overflow="left"
    )
    sent = []

    async def generate(tokens):
        sent.append(len(tokens))
        return Generated([tokenizer.eos_token_id], [0.0], 0)

    rows = played(one(), generate, tokenizer, limit)
    assert set(sent) == {50}
    assert all(row["cut_tokens"] > 0 for row in rows)
    refused = GenerationOptions(
        max_prompt_tokens=50, max_response_tokens=20, overflow="error"
    )
    rows = played(one(), generate, tokenizer, refused)
    assert rows[-1]["error"].startswith("PromptTooLong: ")
    assert len(rows) == 1


def test_advantages_are_those_of_compute_and_failed_rollouts_have_none(
    tokenizer, tmp_path
) -> None:
    played_rows = []
    for number, trajectory in enumerate(trajectories()):
        generate = answering(tokenizer)
        if number == 4:

            async def generate(_):
                return Failure("PolicyFailed", "gone")

        played_rows += played(trajectory, generate, tokenizer)
    table = StepTable(tmp_path / "run", CONFIG, "train")
    steps = table.store(played_rows[::-1])
    found = advantages(steps, CONFIG.advantage)
    failed = {row["trajectory"] for row in played_rows if row.get("aborted")}
    assert len(failed) == 1
    assert failed.isdisjoint(trajectory for trajectory, _ in found)
    assert len(found) == sum(row["trajectory"] not in failed for row in played_rows)
    plain = pl.DataFrame(
        [
            {
                name: row.get(name)
                for name in (
                    "task_id",
                    "group",
                    "trajectory",
                    "step",
                    "state",
                    "action_valid",
                )
            }
            | {"reward": row["reward"], "score": row["score"], "iteration": 0}
            for row in played_rows
            if row["trajectory"] not in failed
        ]
    )
    expected = compute(plain, "hgpo", history_length=2, reward="score").collect()
    for trajectory, step, value in expected.select(
        "trajectory", "step", "advantage"
    ).iter_rows():
        assert found[trajectory, step] == pytest.approx(value, abs=1e-9)
    table.close()


def test_an_iteration_that_is_played_again_replaces_the_first(
    tokenizer, tmp_path
) -> None:
    first = [
        row
        for trajectory in trajectories()
        for row in played(trajectory, answering(tokenizer), tokenizer)
    ]
    table = StepTable(tmp_path / "run", CONFIG, "train")
    table.store(first)
    table.close()
    again = [{**row, "policy_version": 9} for row in first]
    table = StepTable(tmp_path / "run", CONFIG, "train")
    table.store(again)
    table.close()
    steps = scan_steps(tmp_path / "run").collect()
    assert len(steps) == len(first)
    assert steps["policy_version"].unique().to_list() == [9]


def test_the_parts_without_verl_import_neither_verl_nor_torch() -> None:
    for name in ("episodes", "step_rows", "run_settings", "translate", "command"):
        text = (Path(episodes.__file__).parent / f"{name}.py").read_text("utf-8")
        assert not any(
            f"import {one}" in text or f"from {one}" in text
            for one in ("verl", "torch", "ray")
        ), name
