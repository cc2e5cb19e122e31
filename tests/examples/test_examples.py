"""The example programs: the custom policy's choices, recomputed advantages, and the agent that acts by numbers."""

from collections import Counter

import gymnasium
import numpy as np
import polars as pl
import pytest
from command import invoke
from refusals import refused

from examples import collect_and_recompute, numeric_agent
from examples.numeric_agent import NumericEnv, bag_of_words
from hgpo_datasets import scan_steps
from hgpo_train.policies.registry import PolicyContext, make_policy


def test_the_custom_policy_takes_the_least_taken_action(tmp_path):
    def collect(name, policy, *more):
        options = [
            "--tasks",
            4,
            "--group-size",
            2,
            "--max-steps",
            30,
            "--out",
            tmp_path / name,
            *more,
        ]
        invoke("rollout", "--policy", policy, *options)
        return scan_steps(tmp_path / name).collect()

    steps = collect("curious", "examples.own_policy:CURIOUS")
    repeated = 0
    for _, episode in steps.group_by("trajectory"):
        taken = Counter()
        for state, action, offered in (
            episode.sort("step")
            .select("state", "action", "admissible_actions")
            .iter_rows()
        ):
            fewest = min(taken[state, other] for other in offered)
            assert taken[state, action] == fewest
            repeated += any(taken[state, other] > fewest for other in offered)
            taken[state, action] += 1
    assert repeated  # some states are visited repeatedly, so that the choice matters
    columns = ["trajectory", "step", "action"]
    assert steps.select(columns).equals(
        collect("again", "examples.own_policy:CURIOUS", "--slots", "1").select(columns)
    )
    with refused(
        r"expected a fraction of random actions such as 0\.1, received 'often'"
    ):
        make_policy("examples.own_policy:CURIOUS:often", PolicyContext("ALFWorld"))


def test_collect_and_recompute(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["collect_and_recompute", str(tmp_path / "run")])
    collect_and_recompute.main()
    shown = capsys.readouterr().out
    # a saved run requires no environment
    monkeypatch.setattr(collect_and_recompute, "collect", None)
    collect_and_recompute.main()
    assert capsys.readouterr().out == shown
    table = collect_and_recompute.recompute(tmp_path / "run")
    assert table["estimator"].to_list() == list(collect_and_recompute.RUNS)
    first = table.row(0, named=True)
    assert first["mean difference"] == first["changed signs"] == 0.0
    assert table.filter(pl.col("estimator") == "GRPO")["mean difference"].item() > 0


TASK = "valid_seen/look_at_obj_in_light-CreditCard-None-DeskLamp-320/trial_T20260101_000031_774857"
SOLUTION = ("go to shelf 2", "take creditcard 2 from shelf 2", "use desklamp 1")


def test_commands_are_numbers():
    game = gymnasium.make("HGPO/ALFWorld-v0", split="valid_seen")
    env = NumericEnv(game, [TASK], actions=32)  # many have the same hash
    _, info = env.reset(seed=1)
    for command in SOLUTION:
        mask = env.action_masks()
        assert mask.sum() == len(info["admissible_actions"])
        numbers = {env._commands[number]: number for number in np.flatnonzero(mask)}
        assert sorted(numbers) == sorted(info["admissible_actions"])
        _, reward, terminated, _, info = env.step(numbers[command])
        assert info["action"] == command
    assert reward == 1.0
    assert terminated
    assert info["is_success"]


def test_the_spaces_and_the_features():
    env = NumericEnv(gymnasium.make("HGPO/ALFWorld-v0"))
    observation, _ = env.reset(seed=1)
    assert observation in env.observation_space
    masked = int(np.flatnonzero(~env.action_masks())[0])
    assert not env.step(masked)[4]["action_valid"]
    assert (
        bag_of_words("You see a desk 1.", 256) == bag_of_words("A DESK 1 you see", 256)
    ).all()
    assert (bag_of_words("a desk 1", 256) != bag_of_words("a desk 2", 256)).any()


@pytest.mark.slow
def test_a_short_training(monkeypatch, capsys):
    pytest.importorskip("sb3_contrib")
    # of a whole update
    monkeypatch.setattr("sys.argv", ["numeric_agent", "--tasks", "1", "--steps", "1"])
    numeric_agent.main()
    assert "success_rate" in capsys.readouterr().out
