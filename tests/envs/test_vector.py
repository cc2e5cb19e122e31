"""The vector environment: equal to single environments, groups draw together, finished slots do not change."""

import copy
import pickle
import random

import gymnasium
import numpy as np
import pytest
from doors import DoorsSource, solution
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList

from hgpo_envs.env import TextEnv
from hgpo_envs.errors import InputError
from hgpo_envs.vector import TextVectorEnv


def test_make_vec_returns_text_vector_env(doors_id):
    envs = gymnasium.make_vec(doors_id, num_envs=4, group_size=2, split="test")
    assert isinstance(envs.unwrapped, TextVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    obs, infos = envs.reset(seed=1)
    assert envs.observation_space.contains(obs)
    assert envs.action_space.contains(("look",) * 4)
    tasks = list(infos["task_id"])
    assert tasks[0] == tasks[1]
    assert tasks[2] == tasks[3]
    assert infos["split"].tolist() == ["test"] * 4


@pytest.mark.parametrize("action_format", ["command", "response", "number"])
def test_vector_environments_equal_single_ones(action_format):
    """Compare random play in 24 slots, where finished slots are reset by mask, with 24 single environments."""
    chance = random.Random(11)
    arguments = {"split": "all", "history_depth": 3, "max_steps": 12, "action_format": action_format}
    envs = TextVectorEnv(DoorsSource(), 24, **arguments)
    singles = [TextEnv(DoorsSource(), **arguments) for _ in range(24)]
    obs, infos = envs.reset(seed=100)
    expected = [single.reset(seed=100 + slot) for slot, single in enumerate(singles)]
    finished = 0
    for _ in range(60):
        for slot, (its_obs, its_info) in enumerate(expected):
            assert obs["state"][slot] == its_obs["state"]
            assert obs["prompt"][slot] == its_obs["prompt"]
            assert (obs["history_hash"][slot] == its_obs["history_hash"]).all()
            assert {key: infos[key][slot] for key in its_info} == its_info
            assert all(infos[f"_{key}"][slot] for key in its_info)
        texts = ["open door", "go on", "go back", "press switch", "nonsense", "<action>look</action>", "2", "99"]
        actions = chance.choices(texts, k=len(singles))
        if action_format == "response":
            actions = [f"<think>x</think><action>{action}</action>" for action in actions]
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        steps = [single.step(action) for single, action in zip(singles, actions, strict=True)]
        assert rewards.tolist() == [step[1] for step in steps]
        assert terminated.tolist() == [step[2] for step in steps]
        assert truncated.tolist() == [step[3] for step in steps]
        expected = [(step[0], step[4]) for step in steps]
        done = terminated | truncated
        finished += int(done.sum())
        if done.any():
            fresh, fresh_infos = envs.reset(options={"reset_mask": done})
            for slot in np.flatnonzero(done):
                expected[slot] = singles[slot].reset()
                for key in fresh_infos:
                    infos.setdefault(key, np.copy(fresh_infos[key]))[slot] = fresh_infos[key][slot]
            obs = fresh
    assert finished > 60


def test_finished_slots_do_not_change():
    envs = TextVectorEnv(DoorsSource(), 2)
    envs.reset(options={"task": ["train-0", "train-1"]})
    short, long = solution("train-0"), solution("train-1")
    for number, action in enumerate(long):
        obs, rewards, terminated, _, infos = envs.step([short[number] if number < len(short) else None, action])
        if number >= len(short):
            assert rewards[0] == 0
            assert terminated[0]
            assert not infos["_won"][0]
            assert obs["state"][0] == "The lamp is on."
    assert terminated.all()
    _, rewards, terminated, _, infos = envs.step([None, None])
    assert not rewards.any()
    assert terminated.all()
    assert infos == {}
    envs.reset(options={"reset_mask": np.array([True, False]), "task": "train-2"})
    _, _, terminated, _, infos = envs.step(["look", None])
    assert terminated.tolist() == [False, True]
    assert infos["task_id"].tolist() == ["train-2", None]


def test_groups_draw_the_same_tasks_and_slots_reset_by_mask():
    envs = TextVectorEnv(DoorsSource(), 12, group_size=4)
    _, infos = envs.reset(seed=9)
    first = infos["task_id"].reshape(3, 4)
    assert (first == first[:, :1]).all()
    singles = [TextEnv(DoorsSource()) for _ in range(3)]
    assert first[:, 0].tolist() == [env.reset(seed=9 + group)[1]["task_id"] for group, env in enumerate(singles)]
    mask = np.repeat([False, True, False], 4)
    obs, infos = envs.reset(options={"reset_mask": mask})
    assert infos["_task_id"].tolist() == mask.tolist()
    assert set(infos["task_id"][4:8]) == {singles[1].reset()[1]["task_id"]}
    assert len(obs["state"]) == 12
    for name in ("random", "shuffled", "verl-agent"):
        unseeded = TextVectorEnv(DoorsSource(), 2, sampling=name)
        assert unseeded.reset()[1]["_task_id"].all()
        assert unseeded.reset(seed=[None, 3])[1]["_task_id"].all()
    _, infos = envs.reset(seed=[1, None, 2])
    assert infos["task_id"][4] == singles[1].reset()[1]["task_id"]  # group 1 went on where it stood


def test_infos_follow_gymnasiums_convention():
    envs = DictInfoToList(TextVectorEnv(DoorsSource(), 3))
    _, infos = envs.reset(options={"task": ["train-0", "train-1", "train-2"]})
    assert [info["task_id"] for info in infos] == ["train-0", "train-1", "train-2"]
    assert infos[0]["admissible_actions"] == ["help", "look", "open door", "press switch"]
    assert infos[1]["doors"] == {"open": []}


def test_copies(doors_id):
    envs = gymnasium.make_vec(doors_id, num_envs=6, group_size=3).unwrapped
    envs.reset(seed=2)
    envs.step(["open door"] * 6)
    for twin in (copy.deepcopy(envs), pickle.loads(pickle.dumps(envs))):
        mine, its = copy.deepcopy(envs).step(["go on"] * 6), twin.step(["go on"] * 6)
        assert mine[0]["prompt"] == its[0]["prompt"]
        assert (mine[0]["history_hash"] == its[0]["history_hash"]).all()
        assert twin.reset()[1]["task_id"].tolist() == copy.deepcopy(envs).reset()[1]["task_id"].tolist()


def test_returned_objects_may_be_changed():
    envs = TextVectorEnv(DoorsSource(), 2)
    obs, infos = envs.reset(seed=1)
    obs["history_hash"][:] = 0
    infos["admissible_actions"][0].clear()
    infos["won"][:] = True
    again, infos = envs.step(["look", "look"])[0], envs.step(["look", "look"])[4]
    assert (again["history_hash"][:, :2] != 0).all()
    assert infos["admissible_actions"][0]
    assert not infos["won"].any()


def test_render():
    envs = TextVectorEnv(DoorsSource(), 2, render_mode="ansi")
    envs.reset(options={"task": ["train-0", "train-1"]})
    envs.step(["open door", "look"])
    assert envs.render() == ("> open door\n\nThe door is open.\n", "> look\n\nYou are in the hall.\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"num_envs": 0}, "num_envs: expected at least 1, received 0"),
        ({"num_envs": 4, "group_size": 3}, "group_size: expected a divisor of num_envs (4), received 3"),
        ({"num_envs": 4, "group_size": 0}, "group_size: expected a divisor of num_envs (4), received 0"),
    ],
)
def test_bad_arguments(arguments, line):
    with pytest.raises(InputError) as caught:
        TextVectorEnv(DoorsSource(), **arguments)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"task": ["train-0"]}, "expected an id or 3 ids, received a sequence of 1"),
        (
            {"task": ["train-0", "test-10", None]},
            "expected a task of split 'train', received 'test-10' of split 'test'",
        ),
        ({"reset_mask": [True, False]}, "expected a bool array of shape (3,)"),
        ({"reset_mask": np.array([1, 0, 1])}, "expected a bool array of shape (3,)"),
        ({"tasks": "train-0"}, "unknown reset option 'tasks'; did you mean 'task'?"),
    ],
)
def test_bad_options_reset_nothing(options, line):
    envs = TextVectorEnv(DoorsSource(), 3)
    before = envs.reset(seed=1)[0]
    with pytest.raises(InputError) as caught:
        envs.reset(options=options)
    assert line in str(caught.value)
    _, _, _, _, infos = envs.step(["look"] * 3)
    assert infos["step"].tolist() == [1, 1, 1]
    assert before["state"] == envs.reset(seed=1)[0]["state"]


def test_wrong_number_of_actions_or_seeds_or_no_reset():
    envs = TextVectorEnv(DoorsSource(), 3)
    with pytest.raises(ResetNeeded):
        envs.step(["look"] * 3)
    with pytest.raises(InputError, match="expected an integer or 3, one for each group, received a sequence of 2"):
        envs.reset(seed=[1, 2])
    envs.reset(seed=1)
    with pytest.raises(InputError, match="expected 3 actions"):
        envs.step(["look"] * 2)
