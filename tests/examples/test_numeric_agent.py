"""examples/numeric_agent.py: the numbers of commands, and a short training where MaskablePPO is installed."""

import gymnasium
import numpy as np
import pytest

from examples import numeric_agent
from examples.numeric_agent import NumericEnv, bag_of_words

TASK = "valid_seen/look_at_obj_in_light-CreditCard-None-DeskLamp-320/trial_T20260101_000031_774857"
SOLUTION = ("go to shelf 2", "take creditcard 2 from shelf 2", "use desklamp 1")


def test_commands_are_numbers():
    env = NumericEnv(
        gymnasium.make("HGPO/ALFWorld-v0", split="valid_seen"), [TASK], actions=32
    )  # many have the same hash
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
    assert (bag_of_words("You see a desk 1.", 256) == bag_of_words("A DESK 1 you see", 256)).all()
    assert (bag_of_words("a desk 1", 256) != bag_of_words("a desk 2", 256)).any()


@pytest.mark.slow
def test_a_short_training(monkeypatch, capsys):
    pytest.importorskip("sb3_contrib")
    monkeypatch.setattr("sys.argv", ["numeric_agent", "--tasks", "1", "--steps", "1"])  # of a whole update
    numeric_agent.main()
    assert "success_rate" in capsys.readouterr().out
