"""Render modes: what people see of an episode, and Gymnasium's render contract."""

import contextlib
import io
import sys
import warnings

import gymnasium
import pytest
from doors import DoorsSource
from gymnasium.utils.env_checker import check_env

from hgpo_envs.env import RENDER_MODES, TextEnv
from hgpo_envs.environment_spec import make_player

IDS = ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"]


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("mode", RENDER_MODES)
def test_every_mode_passes_the_checkers_without_a_warning(env_id, mode, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(env_id, render_mode=mode)  # with the passive checker
        check_env(env.unwrapped)  # makes the environment in every mode
        capsys.readouterr()
        env.reset(seed=1)
        shown = env.render()
        env.close()
    assert isinstance(shown, str) == (mode == "ansi")
    assert bool(capsys.readouterr().out) == (mode == "human")
    assert env.metadata["render_modes"] == list(RENDER_MODES)


@pytest.mark.parametrize("env_id", IDS)
def test_the_printed_transcript_has_every_observation_action_and_reward(env_id, capsys):
    env = gymnasium.make(env_id, render_mode="human").unwrapped
    obs, info = env.reset(seed=2)
    player = make_player("expert", env.shared.source.name)
    player.reset(env.episode.task, env.episode.state, env.episode.engine)
    printed = capsys.readouterr().out
    assert info["task"] in printed
    assert obs["state"] in printed
    done = False
    while not done:
        obs, reward, terminated, truncated, info = env.step(player.act(env.episode.state))
        printed = capsys.readouterr().out
        assert f"> {info['action']}" in printed
        assert obs["state"] in printed
        assert f"reward {reward:g}" in printed
        done = terminated or truncated
    assert ", won after" in printed
    assert info["won"]


def test_what_a_terminal_would_interpret_or_cannot_show_is_replaced():
    env = TextEnv(DoorsSource(), render_mode="human", max_steps=1)
    written = io.BytesIO()
    narrow = io.TextIOWrapper(written, encoding="ascii")
    with contextlib.redirect_stdout(narrow):
        env.reset(options={"task": "train-1"})
        env.step("look\x1b[2J é")
        sys.stdout.flush()
    shown = written.getvalue().decode("ascii")
    assert "[1] > look?[2J ?   (invalid)" in shown
    assert "stopped by the step limit after 1 steps" in shown
