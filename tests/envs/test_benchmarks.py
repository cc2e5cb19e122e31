"""ALFWorld and WebShop as Gymnasium environments on their bundled data, and how they are rendered."""

import contextlib
import io
import pickle
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from command import python
from doors import DoorsSource
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from refusals import refused, refused_saying

from hgpo_envs.env import RENDER_MODES, TextEnv
from hgpo_envs.environment_spec import make_player

IDS = ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"]
KEYS = {
    "task",
    "task_id",
    "task_type",
    "split",
    "versions",
    "admissible_actions",
    "action_valid",
    "won",
    "score",
}


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {
            "action_format": "response",
            "split": "all",
            "history_length": 0,
            "history_depth": 0,
        },
        {"action_format": "number", "sampling": "sweep"},
        {"render_mode": "human"},
        {"render_mode": "ansi"},
    ],
)
def test_check_env_without_a_single_warning(env_id, arguments, capsys):
    mode = arguments.get("render_mode")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(env_id, **arguments)
        check_env(env.unwrapped)  # makes the environment in every mode
        capsys.readouterr()
        _, info = env.reset(seed=1)
        assert set(info) >= KEYS
        assert isinstance(env.render(), str) == (mode == "ansi")
        assert bool(capsys.readouterr().out) == (mode == "human")
        again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
        assert again.reset(seed=1)[1]["task_id"] == info["task_id"]
        env.close()
    assert env.metadata["render_modes"] == list(RENDER_MODES)


@pytest.mark.slow
def test_module_colon_id_needs_no_import():
    code = "import gymnasium; gymnasium.make('hgpo_envs:HGPO/ALFWorld-v0', backend='x')"
    assert "unknown backend 'x'. Known: native, original" in python(code).stderr


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_a_thousand_environments_share_one_source(env_id):
    envs = gymnasium.make_vec(env_id, num_envs=1000, group_size=8).unwrapped
    obs, infos = envs.reset(seed=1)
    assert (infos["task_id"].reshape(125, 8) == infos["task_id"][::8, None]).all()
    assert (
        obs["history_hash"][:, 0].reshape(125, 8) == obs["history_hash"][::8, :1]
    ).all()
    obs, _, terminated, truncated, _ = envs.step(["look"] * 1000)
    assert obs["history_hash"].shape == (1000, 9)
    assert not (terminated | truncated).any()
    assert len(pickle.dumps(envs)) < 2_000_000


def test_bad_arguments():
    for env_id, arguments, line in (
        (IDS[0], {"splt": "train"}, "unknown argument 'splt'; did you mean 'split'?"),
        (
            IDS[0],
            {"split": "valid_sen"},
            "unknown split 'valid_sen'; did you mean 'valid_seen'?",
        ),
        (IDS[0], {"data": "/no/such/place"}, "/no/such/place"),
        (
            IDS[0],
            {"backend": "orginal"},
            "unknown backend 'orginal'; did you mean 'original'? Known: native, original",
        ),
        (
            IDS[0],
            {"data": 3},
            "data: expected a path or None for the bundled set, received 3",
        ),
        (
            IDS[1],
            {"data": 3},
            "data: expected a path or None for the bundled set, received 3",
        ),
        (IDS[0], {"grammar": "pot"}, "unknown grammar 'pot'; did you mean 'put'?"),
        (
            IDS[1],
            {"goals": "humans"},
            "unknown kind of goals 'humans'; did you mean 'human'?",
        ),
        (IDS[1], {"observation_mode": "html"}, "unknown observation_mode 'html'"),
        (IDS[1], {"data": "/no/such/place"}, "/no/such/place"),
        (
            IDS[1],
            {"option_colors": "both"},
            "unknown argument 'option_colors'; did you mean 'option_colours'?",
        ),
        (
            IDS[1],
            {"after_done": "stop"},
            "unknown after_done 'stop'. Known: continue, freeze",
        ),
        (IDS[1], {"price_seed": None}, "price_seed: expected an integer, received"),
    ):
        with refused_saying(line):
            gymnasium.make(env_id, **arguments)


def test_webshop_accepts_an_integer_as_a_task_id():
    env = gymnasium.make(IDS[1], split="all")
    assert env.reset(options={"task": 17})[1]["task_id"] == "17"
    assert env.reset(options={"task": np.int64(17)})[1]["task_id"] == "17"
    for task, line in (("x17", "x17"), (99999999, "99999999")):
        with refused(line):
            env.reset(options={"task": task})


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
        obs, reward, terminated, truncated, info = env.step(
            player.act(env.episode.state)
        )
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
