"""ALFWorld and WebShop as Gymnasium environments on their bundled data."""

import pickle
import random
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AsyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList

import hgpo_envs
from hgpo_envs.errors import InputError
from hgpo_envs.registration import register_environments

IDS = ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"]
KEYS = {"task", "task_id", "task_type", "split", "versions", "admissible_actions", "action_valid", "won", "score"}


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"action_format": "response", "split": "all", "history_length": 0, "history_depth": 0},
        {"action_format": "number", "sampling": "sweep"},
    ],
)
def test_check_env_without_a_single_warning(env_id, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(env_id, **arguments)
        check_env(env.unwrapped)
        assert set(env.reset(seed=1)[1]) >= KEYS
        again = gymnasium.make(type(env.spec).from_json(env.spec.to_json()))
        assert again.reset(seed=1)[1]["task_id"] == env.reset(seed=1)[1]["task_id"]


@pytest.mark.parametrize("env_id", IDS)
def test_ids_are_registered_once_by_import_and_described_in_json(env_id):
    before = gymnasium.spec(env_id)
    gymnasium.register_envs(hgpo_envs)
    register_environments()
    assert gymnasium.spec(env_id) is before
    assert EnvSpec.from_json(before.to_json()) == before
    assert {name for name in gymnasium.registry if name.startswith("HGPO/")} >= set(IDS)


@pytest.mark.slow
def test_module_colon_id_needs_no_import():
    code = "import gymnasium; gymnasium.make('hgpo_envs:HGPO/ALFWorld-v0', backend='x')"
    root = Path(hgpo_envs.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert "unknown backend 'x'. Known: native, original" in done.stderr


@pytest.mark.parametrize("env_id", IDS)
def test_random_play_equals_gymnasiums_own_vector_environment(env_id):
    chance, options = random.Random(3), {"num_envs": 8, "split": "all", "max_steps": 6}
    pair = [DictInfoToList(gymnasium.make_vec(env_id, vectorization_mode=mode, **options)) for mode in (None, "sync")]
    (_, infos), expected = [envs.reset(seed=5) for envs in pair]
    assert infos == expected[1]
    for _ in range(15):
        actions = [chance.choice([*info["admissible_actions"], "no such thing"]) for info in infos]
        steps = [envs.step([action.replace("<your query>", "red shoe") for action in actions]) for envs in pair]
        assert all(map(data_equivalence, steps[0][:4], steps[1][:4]))
        infos = steps[0][4]
        assert infos == steps[1][4]


@pytest.mark.parametrize("env_id", IDS)
def test_a_thousand_environments_share_one_source(env_id):
    envs = gymnasium.make_vec(env_id, num_envs=1000, group_size=8).unwrapped
    obs, infos = envs.reset(seed=1)
    assert (infos["task_id"].reshape(125, 8) == infos["task_id"][::8, None]).all()
    assert (obs["history_hash"][:, 0].reshape(125, 8) == obs["history_hash"][::8, :1]).all()
    obs, _, terminated, truncated, _ = envs.step(["look"] * 1000)
    assert obs["history_hash"].shape == (1000, 9)
    assert not (terminated | truncated).any()
    assert len(pickle.dumps(envs)) < 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_gymnasiums_async_vector_env(env_id):
    envs = AsyncVectorEnv([lambda: gymnasium.make(env_id)] * 2, shared_memory=False)
    here = gymnasium.make_vec(env_id, num_envs=2)
    assert envs.reset(seed=1)[0]["prompt"] == here.reset(seed=1)[0]["prompt"]
    there, expected = envs.step(("look", "search[žluť]")), here.step(("look", "search[žluť]"))
    assert there[0]["state"] == expected[0]["state"]
    assert (there[0]["history_hash"] == expected[0]["history_hash"]).all()
    envs.close()


@pytest.mark.parametrize(
    ("env_id", "arguments", "line"),
    [
        (IDS[0], {"splt": "train"}, "unknown argument 'splt'; did you mean 'split'?"),
        (IDS[0], {"goals": "human"}, "unknown argument 'goals'"),
        (IDS[0], {"split": "valid_sen"}, "unknown split 'valid_sen'; did you mean 'valid_seen'?"),
        (IDS[0], {"data": "/no/such/place"}, "/no/such/place"),
        (IDS[0], {"backend": "orginal"}, "unknown backend 'orginal'; did you mean 'original'? Known: native, original"),
        (IDS[0], {"data": 3}, "data: expected a path or None for the bundled set, received 3"),
        (IDS[1], {"data": 3}, "data: expected a path or None for the bundled set, received 3"),
        (IDS[0], {"grammar": "pot"}, "unknown grammar 'pot'; did you mean 'put'?"),
        (IDS[1], {"goals": "humans"}, "unknown kind of goals 'humans'; did you mean 'human'?"),
        (IDS[1], {"observation_mode": "html"}, "unknown observation_mode 'html'"),
        (IDS[1], {"split": "valid_seen"}, "unknown split 'valid_seen'"),
        (IDS[1], {"data": "/no/such/place"}, "/no/such/place"),
    ],
)
@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
def test_bad_arguments(env_id, arguments, line, make):
    with pytest.raises(InputError) as caught:
        make(env_id, **arguments)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "split", "task", "line"),
    [
        (IDS[0], "train", "train/nowhere/trial", "unknown"),
        (IDS[1], "train", "x17", "x17"),
        (IDS[1], "train", "99999999", "99999999"),
        (IDS[1], "train", 3, "expected a task of split 'train', received '3' of split 'test'"),
    ],
)
def test_bad_tasks(env_id, split, task, line):
    env = gymnasium.make(env_id, split=split)
    with pytest.raises(InputError) as caught:
        env.reset(options={"task": task})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_webshop_accepts_an_integer_as_a_task_id():
    env = gymnasium.make(IDS[1], split="all")
    assert env.reset(options={"task": 17})[1]["task_id"] == "17"
    assert env.reset(options={"task": np.int64(17)})[1]["task_id"] == "17"
