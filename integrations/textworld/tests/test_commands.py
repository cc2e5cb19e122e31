"""The commands on TextWorld: rollouts, statistics, advantages, evaluation, a page, training of a small model."""

import json
from pathlib import Path

import pytest
from command import invoke
from plugin_commands import (
    assert_advantages_are_numbers,
    rolled_out,
    success_of_the_expert,
)

pytest.importorskip("textworld")
from hgpo_textworld.games import compiled

GAMES = (
    "--env",
    "HGPO/TextWorld-v0",
    "--env-option",
    "family=coin-collector",
    "--env-option",
    "level=3",
)


@pytest.mark.slow
def test_from_rollouts_to_a_page(tmp_path):
    three = (*GAMES, "--tasks", 3, "--group-size", 4)
    expert = rolled_out(tmp_path / "expert", *three, "--policy", "expert")
    assert expert["episode_won"].all()
    assert expert["action_admissible"].all()
    random = rolled_out(tmp_path / "random", *three)
    assert not random["aborted"].any()
    assert_advantages_are_numbers(tmp_path / "random")
    invoke("view", tmp_path / "random", "-o", tmp_path / "page.html")
    for seed in range(2):
        game = compiled("coin-collector", 3, seed)
        for file in (game, game.with_suffix(".json")):
            (tmp_path / "games/test").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"games/test/{seed}{file.suffix}").write_bytes(
                file.read_bytes()
            )
    folder = ("--env", "HGPO/TextWorld-v0", "--data", tmp_path / "games")
    assert success_of_the_expert(tmp_path / "eval", *folder) == (2, 1.0)


@pytest.mark.slow
def test_a_small_model_is_trained(tmp_path):
    pytest.importorskip("torch")
    from examples import train_from_nothing

    less = [
        "iterations=1",
        "rollout.tasks=2",
        "rollout.group_size=2",
        "rollout.filter_groups=false",
    ]
    less += [
        "environment.max_steps=8",
        "evaluation.tasks=2",
        "tracking.tensorboard=false",
    ]
    config = str(Path(__file__).parents[1] / "train.toml")
    sizes = ["--demonstrations", "8", "--epochs", "1", "--layers", "1"]
    with pytest.MonkeyPatch.context() as patch:
        arguments = [text for each in less for text in ("--set", each)]
        patch.setattr(
            "sys.argv",
            ["train", config, "--out", str(tmp_path / "run"), *sizes, *arguments],
        )
        train_from_nothing.main()
    last = json.loads(
        (tmp_path / "run/train/metrics.jsonl").read_text("utf-8").splitlines()[-1]
    )
    # 4 rollouts of 8 steps
    assert (last["iteration"], last["training/environment_steps"]) == (1, 32)
