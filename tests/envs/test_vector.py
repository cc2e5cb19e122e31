"""The vector environment: equal to single environments, groups draw together, finished slots do not change."""

import random
from functools import partial

import gymnasium
import numpy as np
import pytest
from doors import DoorsSource, solution
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import ClipReward, RecordEpisodeStatistics
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refused_saying

import hgpo_envs  # noqa: F401 - registers the environments
from hgpo_envs.env import TextEnv
from hgpo_envs.vector import TextVectorEnv, _batched

TEXTS = [
    "open door",
    "go on",
    "go back",
    "press switch",
    "nonsense",
    "<action>look</action>",
    "2",
    "99",
]
ARGUMENTS = {"split": "all", "history_depth": 3, "max_steps": 6}


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("action_format", ["command", "response", "number"])
def test_random_play_equals_gymnasiums_own_vector_environment(mode, action_format):
    """Everything that 12 slots return equals what `SyncVectorEnv` makes of 12 single environments, in each mode."""
    chance = random.Random(11)
    arguments = {**ARGUMENTS, "action_format": action_format}
    ours = TextVectorEnv(DoorsSource(), 12, autoreset_mode=mode, **arguments)
    assert ours.metadata["autoreset_mode"] is mode
    theirs = SyncVectorEnv(
        [partial(TextEnv, DoorsSource(), **arguments)] * 12, autoreset_mode=mode
    )
    pair = [ClipReward(envs, 0, 0.5) for envs in (ours, theirs)]
    # SyncVectorEnv takes the mask away from wrappers
    if mode is not AutoresetMode.DISABLED:
        pair = [RecordEpisodeStatistics(envs) for envs in pair]
    assert data_equivalence(*[envs.reset(seed=100) for envs in pair])
    finished = 0
    for _ in range(60):
        actions = chance.choices(TEXTS, k=12)
        if action_format == "response":
            actions = [
                f"<think>x</think><action>{action}</action>" for action in actions
            ]
        steps = [envs.step(actions) for envs in pair]
        assert all(map(data_equivalence, steps[0][:4], steps[1][:4]))
        for *_, infos in steps:
            infos.get("episode", {}).pop("t", None)  # seconds
        assert data_equivalence(steps[0][4], steps[1][4])
        done = steps[0][2] | steps[0][3]
        finished += int(done.sum())
        if mode is AutoresetMode.DISABLED and done.any():
            assert data_equivalence(
                *[envs.reset(options={"reset_mask": done.copy()}) for envs in pair]
            )
    assert finished > 60


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("env_id", ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"])
def test_benchmarks_equal_gymnasiums_own_vector_environment(env_id, mode):
    arguments = {"max_steps": 3}
    ours = gymnasium.make_vec(env_id, num_envs=2, autoreset_mode=mode, **arguments)
    single = gymnasium.make(env_id, disable_env_checker=True, **arguments).unwrapped
    theirs = SyncVectorEnv([single.fork] * 2, autoreset_mode=AutoresetMode(mode))
    assert data_equivalence(ours.reset(seed=[3, 3]), theirs.reset(seed=[3, 3]))
    for _ in range(5):
        steps = [envs.step(["look", "search[shoes]"]) for envs in (ours, theirs)]
        assert data_equivalence(*steps)


VALUES = {
    "bool": st.booleans(),
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "float32": st.floats(width=32, allow_nan=False).map(np.float32),
    "array": st.lists(st.integers(0, 9), min_size=2, max_size=2).map(np.array),
    "text": st.text(max_size=3),
    "list": st.lists(st.text(max_size=3), max_size=2),
    "none": st.none(),
    "flag": st.booleans().map(np.bool_),
}
entries = st.recursive(
    st.sampled_from(list(VALUES)),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)


def drawn(draw, entry):
    """Draw a value of a kind, or a dictionary, which may lack some of its keys."""
    if isinstance(entry, str):
        return draw(VALUES[entry])
    return {
        key: drawn(draw, inner) for key, inner in entry.items() if draw(st.booleans())
    }


@given(
    st.dictionaries(st.sampled_from("abc"), entries),
    st.sets(st.integers(0, 3), min_size=1),
    st.data(),
)
def test_infos_are_nested_as_gymnasium_nests_them(entry, slots, data):
    infos = {slot: drawn(data.draw, entry) for slot in slots}
    envs = VectorEnv()
    theirs = {}
    envs.num_envs = 4
    for slot, info in infos.items():
        theirs = envs._add_info(theirs, info, slot)
    assert data_equivalence(_batched(infos, 4), theirs)


def test_values_of_several_types_are_kept():
    """Gymnasium would convert them to the type of the first."""
    infos = {0: {"won": True}, 2: {"won": None}, 3: {"won": {}}}
    assert _batched(infos, 4)["won"].tolist() == [True, None, None, {}]


def test_an_ended_episode_waits_for_its_reset_if_autoreset_is_disabled():
    envs = TextVectorEnv(DoorsSource(), 2, autoreset_mode="Disabled")
    envs.reset(options={"task": ["train-0", "train-1"]})
    for action in solution("train-0"):
        _, _, terminated, _, _ = envs.step([action, "look"])
    assert terminated.tolist() == [True, False]
    with pytest.raises(ResetNeeded, match=r"the episodes of slots \[0\] have ended"):
        envs.step(["look", "look"])
    assert (
        envs.reset(options={"reset_mask": np.array([True, False]), "task": "train-2"})[
            1
        ]["task_id"][0]
        == "train-2"
    )
    assert envs.step(["look", "look"])[4]["task_id"].tolist() == ["train-2", "train-1"]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_members_of_a_group_play_the_same_tasks_in_turn(mode):
    """Members that need different numbers of steps still draw the same tasks."""
    envs = TextVectorEnv(
        DoorsSource(), 4, group_size=2, autoreset_mode=mode, max_steps=4
    )
    tasks = [[task] for task in envs.reset(seed=5)[1]["task_id"]]
    for _ in range(40):
        _, _, _, _, infos = envs.step(
            ["press switch" if slot % 2 else "look" for slot in range(4)]
        )
        for slot, number in enumerate(infos["step"]):
            tasks[slot] += [infos["task_id"][slot]] if number == 0 else []
    for one, other in ((tasks[0], tasks[1]), (tasks[2], tasks[3])):
        assert len(other) > len(one) > 5
        assert other[: len(one)] == one
    assert tasks[0] != tasks[2]


def test_groups_draw_the_same_tasks_and_slots_reset_by_mask(doors_id):
    envs = gymnasium.make_vec(doors_id, num_envs=12, group_size=4).unwrapped
    assert isinstance(envs, TextVectorEnv)
    with pytest.raises(ResetNeeded):
        envs.step(["look"] * 12)
    obs, infos = envs.reset(seed=9)
    assert envs.observation_space.contains(obs)
    obs["history_hash"][:] = 0  # a copy
    first = infos["task_id"].reshape(3, 4)
    assert (first == first[:, :1]).all()
    singles = [TextEnv(DoorsSource()) for _ in range(3)]
    assert first[:, 0].tolist() == [
        env.reset(seed=9 + group)[1]["task_id"] for group, env in enumerate(singles)
    ]
    mask = np.repeat([False, True, False], 4)
    obs, infos = envs.reset(options={"reset_mask": mask})
    assert infos["_task_id"].tolist() == mask.tolist()
    assert set(infos["task_id"][4:8]) == {singles[1].reset()[1]["task_id"]}
    assert len(obs["state"]) == 12
    assert (obs["history_hash"][:, 0] != 0).all()
    assert TextVectorEnv(DoorsSource(), 2).reset(seed=[None, 3])[1]["_task_id"].all()
    for seed in ([1, 2], 3.0, [1, 2, 3.0], "123", {1, 2, 3}, True):
        with refused(r"^seed: expected an integer or 3, one for each group, received "):
            envs.reset(seed=seed)
    _, infos = envs.reset(seed=[1, None, 2])
    # group 1 went on where it stood
    assert infos["task_id"][4] == singles[1].reset()[1]["task_id"]
    # and it does where the seed is for others, as in Gymnasium
    envs.reset(seed=3, options={"reset_mask": np.repeat([True, False, True], 4)})
    _, infos = envs.reset(options={"reset_mask": mask})
    assert infos["task_id"][4] == singles[1].reset()[1]["task_id"]


def test_render():
    envs = TextVectorEnv(DoorsSource(), 2, render_mode="ansi")
    envs.reset(options={"task": ["train-0", "train-1"]})
    envs.step(["open door", "look"])
    door, hall = envs.render()
    assert door.startswith("[1] > open door\nThe door is open.\n")
    assert hall.startswith("[1] > look\nYou are in the hall.\n")


def test_bad_arguments():
    for arguments, line in (
        ({"num_envs": 0}, "num_envs: expected an integer of at least 1, received 0"),
        (
            {"num_envs": 2.0},
            "num_envs: expected an integer of at least 1, received 2.0",
        ),
        (
            {"num_envs": True},
            "num_envs: expected an integer of at least 1, received True",
        ),
        (
            {"num_envs": 4, "group_size": 2.0},
            "group_size: expected an integer of at least 1, received 2.0",
        ),
        (
            {"num_envs": 4, "group_size": "2"},
            "group_size: expected an integer of at least 1, received '2'",
        ),
        (
            {"num_envs": 4, "group_size": 3},
            r"group_size: expected a divisor of num_envs \(4\), received 3",
        ),
        (
            {"autoreset_mode": "Never"},
            "unknown autoreset_mode 'Never'. Known: NextStep, SameStep, Disabled",
        ),
    ):
        with refused(line):
            TextVectorEnv(DoorsSource(), **arguments)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"task": ["train-0"]}, "expected an id or 3 ids, received a sequence of 1"),
        (
            {"task": ["train-0", "test-10", None]},
            "expected a task of split 'train', received 'test-10' of split 'te",
        ),
        ({"reset_mask": [True, False]}, "expected a bool array of shape (3,)"),
        ({"reset_mask": np.array([1, 0, 1])}, "expected a bool array of shape (3,)"),
        ({"tasks": "train-0"}, "unknown reset option 'tasks'; did you mean 'task'?"),
    ],
)
def test_bad_options_reset_nothing(options, line):
    envs = TextVectorEnv(DoorsSource(), 3)
    before = envs.reset(seed=1)[0]
    with refused_saying(line):
        envs.reset(options=options)
    _, _, _, _, infos = envs.step(["look"] * 3)
    assert infos["step"].tolist() == [1, 1, 1]
    assert before["state"] == envs.reset(seed=1)[0]["state"]


def test_wrong_actions():
    envs = TextVectorEnv(DoorsSource(), 4)
    for actions in (
        "look",
        ["look"] * 3,
        ["look", "look", "look", None],
        b"look",
        None,
        {"look", "a", "b", "c"},
    ):
        with refused("expected 4 texts, one for each slot, received "):
            envs.step(actions)
    single = TextEnv(DoorsSource())
    single.reset()
    for action in (None, ["look"], b"look", 3):
        with refused("action: expected a text, received"):
            single.step(action)
