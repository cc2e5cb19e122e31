"""examples/own_environment.py: BabyAI as a task source, as a Gymnasium environment, and as an installed package."""

import json
import sys
import warnings

import gymnasium
import polars as pl
import pytest
from command import ROOT, environment, invoke, python
from distribution import write_distribution
from gymnasium.utils.env_checker import check_env

from hgpo_datasets import scan_steps
from hgpo_envs.environment_spec import make_player
from hgpo_envs.registration import resolve_id

pytest.importorskip("minigrid")
from examples.own_environment import ACTIONS, BABYAI, BabyAISource

ENV_ID = resolve_id("examples.own_environment:BABYAI")
SOURCE = BabyAISource("GoToLocal,PickupLoc,PutNextLocal")


@pytest.mark.parametrize(
    "task_id", ["GoToLocal-1", "PickupLoc-3", "PutNextLocal-5", "GoToLocal-10000"]
)
def test_the_expert_succeeds_and_invalid_actions_change_nothing(task_id):
    task = SOURCE.task(task_id)
    engine = SOURCE.engine()
    again = SOURCE.engine()
    player = make_player("expert", "BabyAI")
    state = engine.start(task_id)
    assert again.start(task_id) == state
    assert task.task_type == task_id.partition("-")[0]
    assert task.split == ("test" if task_id.endswith("10000") else "train")
    player.reset(task, state, engine)
    while not state.terminated:
        assert set(state.actions) <= set(ACTIONS)
        for command in {*ACTIONS, "dance"} - set(state.actions):
            invalid = again.act(command)
            assert (invalid.text, invalid.valid, invalid.reward) == (
                state.text,
                False,
                0.0,
            )
        command = player.act(state)
        state = engine.act(command)
        assert again.act(command) == state
    assert state.won
    assert 0 < state.reward == state.score <= 1
    assert engine.act("turn left").terminated


def test_the_environment_conforms_to_gymnasium():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(
            gymnasium.make(ENV_ID, levels="GoToLocal").unwrapped, skip_render_check=True
        )
    env = gymnasium.make(ENV_ID, levels="GoToLocal", split="test")
    observation, info = env.reset(seed=1)
    assert info["task"].startswith("go to ")
    assert observation["prompt"].startswith(f"Your task: {info['task']}\nYou see ")
    assert info["versions"]["minigrid"]


PLAY = """
import contextlib, io, json, sys
from pathlib import Path
from hgpo_train.advantages import names
from hgpo_train.cli.app import run

def hgpo(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run([str(argument) for argument in arguments])
    return printed.getvalue()

folder, env = Path(sys.argv[1]), ("--env", "Examples/BabyAI-v0", "--env-option", "levels=GoToLocal")
for policy in ("random", "expert"):
    hgpo("rollout", *env, "--policy", policy, "--tasks", 4, "--group-size", 4, "--out", folder / policy)
    hgpo("verify", folder / policy)
    estimators = [text for name in names() for text in ("-e", name)]
    hgpo("advantages", folder / policy, *estimators, "--out", folder / f"{policy}.parquet")
    hgpo("stats", folder / policy)
report = hgpo("eval", *env, "--policy", "expert", "--seeds", 1, "--json", "--out", folder / "eval")
print(json.dumps({"estimators": names(), "eval": json.loads(report)}))
"""


@pytest.mark.slow
def test_the_installed_package_works_with_all_commands(tmp_path):
    code = (ROOT / "examples/own_environment.py").read_text("utf-8")
    points = {"hgpo.environments": {BABYAI.id: "babyai_text:BABYAI"}}
    write_distribution(tmp_path / "site", "babyai-text", {"babyai_text": code}, points)
    done = python(PLAY, tmp_path, env=environment(tmp_path / "site"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    for policy in ("random", "expert"):
        steps = scan_steps(tmp_path / policy).collect()
        assert steps["env_id"].unique().to_list() == [BABYAI.id]
        assert steps["trajectory"].n_unique() == 16
        assert not steps["aborted"].any()
        advantages = pl.read_parquet(tmp_path / f"{policy}.parquet")
        columns = [f"advantage_{name}" for name in printed["estimators"]]
        assert (
            {"advantage_hgpo", "advantage_gigpo", "advantage_grpo"}
            <= set(columns)
            <= set(advantages.columns)
        )
        assert advantages.select(pl.col(columns).is_finite().all()).row(0) == (
            True,
        ) * len(columns)
    (report,) = [each for each in printed["eval"]["reports"] if each["name"] == "all"]
    assert report["tasks"] == 100  # of the evaluation split
    assert report["measures"]["success"]["mean"] == 1.0


@pytest.mark.slow
def test_a_small_model_is_trained_on_the_environment(tmp_path):
    pytest.importorskip("torch")
    from examples import train_from_nothing

    less = [
        "iterations=1",
        "rollout.tasks=2",
        "rollout.group_size=2",
        "rollout.filter_groups=false",
    ]
    less += [
        "environment.max_steps=4",
        "evaluation.tasks=2",
        "tracking.tensorboard=false",
    ]
    settings = [text for each in less for text in ("--set", each)]
    config = str(ROOT / "examples/own_environment.toml")
    sizes = ["--demonstrations", "12", "--epochs", "1", "--layers", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(
            sys,
            "argv",
            ["train_from_nothing", config, "--out", str(tmp_path), *sizes, *settings],
        )
        train_from_nothing.main()
        sft = f"model.path={tmp_path / 'sft'}"
        invoke(
            "train",
            config,
            *settings,
            "--set",
            "iterations=2",
            "--set",
            sft,
            "--out",
            tmp_path / "again",
        )
    for run, iterations in (("train", 1), ("again", 2)):
        steps = scan_steps(tmp_path / run / "steps").collect()
        assert steps["env_id"].unique().to_list() == [BABYAI.id]
        assert steps["iteration"].unique().sort().to_list() == list(range(iterations))
        assert not steps["aborted"].any()
        assert (tmp_path / run / "metrics.jsonl").read_text().count(
            "\n"
        ) == iterations + 1
