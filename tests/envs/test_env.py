"""The single environment: Gymnasium's checker, observations and infos, bad input, and copies."""

import copy
import pickle

import cloudpickle
import gymnasium
import numpy as np
import pytest
from doors import DoorsSource, solution
from gymnasium.error import CustomSpaceError, ResetNeeded
from gymnasium.vector import AsyncVectorEnv
from gymnasium.wrappers import TimeAwareObservation
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refused_saying

from hgpo_envs import hashing
from hgpo_envs.env import TextEnv
from hgpo_envs.episode import ACTION_FORMATS
from hgpo_envs.spaces import UnicodeText

ANY_TEXT = st.one_of(
    st.text(st.characters(exclude_categories=[])),
    st.sampled_from(["look", "open door", "go on", "go back"]),
)
INFO_KEYS = {
    "task", "task_id", "task_type", "split", "versions", "step", "action", "action_valid", "action_admissible",
    "admissible_actions", "won", "score", "place", "doors",
}  # fmt: skip


def play(env, task, actions):
    obs, info = env.reset(options={"task": task})
    steps = [(obs, 0.0, False, False, info)]
    for action in actions:
        steps.append(env.step(action))
    return steps


def test_a_won_episode_step_by_step():
    env = TextEnv(DoorsSource(), history_length=2, history_depth=3)
    actions = solution("train-1")
    steps = play(env, "train-1", actions)
    states = [obs["state"] for obs, *_ in steps]
    assert states[0].startswith("You are in the hall. Your task is to: light the lamp")
    assert [reward for _, reward, *_ in steps] == [0.0] * len(actions) + [1.0]
    assert [terminated for _, _, terminated, _, _ in steps] == [False] * len(
        actions
    ) + [True]
    assert not any(truncated for _, _, _, truncated, _ in steps)
    for number, (obs, reward, terminated, truncated, info) in enumerate(steps):
        assert set(info) == INFO_KEYS
        assert [
            type(value) for value in (reward, terminated, truncated, info["won"])
        ] == [
            float,
            bool,
            bool,
            bool,
        ]
        assert info["step"] == number
        assert info["action"] == ("" if number == 0 else actions[number - 1])
        assert info["action_valid"]
        assert info["task"] == "light the lamp in the study 'blue'."
        assert info["won"] == terminated
        assert info["versions"] == {"house": "1"}
        shown = list(zip(states, actions, strict=False))[max(0, number - 2) : number]
        for earlier, (state, action) in enumerate(shown, start=max(0, number - 2) + 1):
            assert (
                f"[Observation {earlier}: '{state}', Action {earlier}: '{action}']"
                in obs["prompt"]
            )
        assert obs["prompt"].count("[Observation") == min(number, 2)
    hashes = np.array([obs["history_hash"] for obs, *_ in steps])
    first = np.arange(len(steps)) == 0
    values, defined = hashing.chain_columns(hashing.text_hashes(states), first, 3)
    assert (hashes == np.where(defined, values, hashing.UNDEFINED).T).all()
    assert hashes.dtype == np.int64


def test_a_command_is_valid_if_it_is_admissible_and_a_response_by_its_form():
    env = TextEnv(DoorsSource())
    env.reset(seed=1)
    obs, reward, terminated, truncated, info = env.step("dance")
    assert (obs["state"], reward, terminated, truncated) == (
        "Nothing happens.",
        0.0,
        False,
        False,
    )
    assert (info["action_valid"], info["action_admissible"]) == (False, False)
    env = TextEnv(DoorsSource(), action_format="response")
    env.reset(seed=1)
    well_formed = env.step("<think>hm</think><action>Dance</action>")[4]
    flags = (
        well_formed["action"],
        well_formed["action_valid"],
        well_formed["action_admissible"],
    )
    assert flags == ("Dance", True, False)
    without_thought = env.step("<action>open door</action>")[4]
    assert (without_thought["action"], without_thought["action_valid"]) == (
        "open door",
        False,
    )
    assert without_thought["action_admissible"]  # still executed
    bare = env.step("I shall now, after all of this, go on")[4]
    assert (bare["action"], bare["action_valid"]) == (
        "shall now, after all of this, go on"[-30:],
        False,
    )


@given(st.lists(ANY_TEXT, max_size=6), st.sampled_from(ACTION_FORMATS))
def test_any_text_is_an_action(texts, action_format):
    env = TextEnv(DoorsSource(), action_format=action_format, max_steps=50)
    env.reset(seed=3)
    for text in texts:
        obs, reward, terminated, truncated, _ = env.step(text)
        assert env.observation_space.contains(obs)
        assert np.isfinite(reward)
        assert not terminated
        assert not truncated


def test_the_step_limit_truncates_and_does_not_terminate():
    env = TextEnv(DoorsSource(), max_steps=3)
    with pytest.raises(ResetNeeded):
        env.step("look")
    env.reset(seed=0)
    flags = [env.step("look")[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    with pytest.raises(ResetNeeded):
        env.step("look")
    actions = solution("train-0")
    steps = play(TextEnv(DoorsSource(), max_steps=len(actions)), "train-0", actions)
    # won with the last step allowed: terminated alone
    assert steps[-1][2:4] == (True, False)


def test_seeds_determine_tasks():
    env = TextEnv(DoorsSource())
    other = TextEnv(DoorsSource())
    chosen = [env.reset(seed=seed)[1]["task_id"] for seed in range(60)]
    assert chosen == [other.reset(seed=seed)[1]["task_id"] for seed in range(60)]
    assert set(chosen) == set(DoorsSource().ids("train"))
    env.reset(seed=5)
    other.reset(seed=5)
    following = [env.reset()[1]["task_id"] for _ in range(20)]
    assert following == [other.reset()[1]["task_id"] for _ in range(20)]
    assert len(set(following)) > 1
    for name in ("random", "shuffled", "verl-agent"):  # unseeded: any order, but one
        assert TextEnv(DoorsSource(), sampling=name).reset()[1]["split"] == "train"
    sweeping = TextEnv(DoorsSource(), split="test", sampling="sweep")
    assert [sweeping.reset()[1]["task_id"] for _ in range(4)] == DoorsSource().ids(
        "test"
    )


def test_observations_and_infos_are_new_objects_at_every_call():
    env = TextEnv(DoorsSource())
    obs, info = env.reset(seed=1)
    kept = copy.deepcopy((obs, info))
    info["admissible_actions"].clear()
    info["doors"]["open"].append("mischief")
    info["versions"].clear()
    obs["history_hash"][:] = 0
    obs_2, info_2 = env.reset(seed=1)
    assert (obs_2["state"], info_2) == (kept[0]["state"], kept[1])
    assert (obs_2["history_hash"] == kept[0]["history_hash"]).all()


def test_pickles_contain_no_data(doors_id):
    env = gymnasium.make(doors_id, count=100_000).unwrapped
    env.reset(seed=1)
    assert len(pickle.dumps(env)) < 20_000
    # a source made by hand travels whole
    assert len(cloudpickle.dumps(TextEnv(DoorsSource(5)))) > 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            {"history_length": 2.5},
            "history_length: expected an integer of at least 0, received 2.5",
        ),
        ({"max_steps": 0}, "max_steps: expected an integer of at least 1, received 0"),
        (
            {"action_format": "comand"},
            "unknown action_format 'comand'; did you mean 'command'? Known: command, resp",
        ),
        (
            {"action_format": np.array(["a", "b"])},
            "unknown action_format array(['a', 'b'], dtype='<U1'). Known: comma",
        ),
        (
            {"sampling": "shufled"},
            "unknown sampling 'shufled'; did you mean 'shuffled'?",
        ),
        ({"split": "valid"}, "unknown split 'valid'"),
        ({"render_mode": "rgb_array"}, "unknown render_mode 'rgb_array'. Known: "),
        (
            {"prompt_template": "/no/such/file"},
            "prompt_template: unknown template or missing file '/no/such/file'",
        ),
    ],
)
@pytest.mark.parametrize("vector", [False, True])
def test_bad_arguments(doors_id, arguments, line, vector):
    make = gymnasium.make_vec if vector else gymnasium.make
    with refused_saying(line):
        make(doors_id, **arguments)


class Listed(DoorsSource):
    """Has its splits in a dictionary."""

    def ids(self, split):
        of_split = {name: DoorsSource.ids(self, name) for name in ("train", "test")}
        return (of_split | {"all": DoorsSource.ids(self, "all")})[split]


class Empty(DoorsSource):
    """Has no tasks in other splits."""

    def ids(self, split):
        return [] if split == "dev" else super().ids(split)


@pytest.mark.parametrize("source", [Listed, Empty])
def test_a_split_that_does_not_exist_is_refused_with_those_that_do(source):
    with refused("split 'dev'.*Known: train, test, all$"):
        TextEnv(source(), split="dev")


def test_bad_options():
    env = TextEnv(DoorsSource())
    for options, line in (
        ({"task": "train-99"}, "unknown task id 'train-99'; did you mean 'train-9'"),
        (
            {"task": "test-10"},
            "expected a task of split 'train', received 'test-10' of split 'test'; create the env",
        ),
        ({"task": None, "seed": 3}, "unknown reset option 'seed'"),
        ({"task": True}, "expected a task id"),
    ):
        with refused(line):
            env.reset(options=options)
    env.reset(seed=1)  # still usable


def test_async_vector_env_with_shared_memory_raises_an_error(doors_id):
    with pytest.raises((CustomSpaceError, ValueError), match="shared_memory=False"):
        AsyncVectorEnv([lambda: gymnasium.make(doors_id)] * 2)


def test_text_space_samples_and_serialises():
    space = UnicodeText(5, seed=3)
    assert all(space.contains(text) for text in ("", "\ud800\0打😀"))
    assert not any(space.contains(value) for value in ("123456", b"12", 3))
    samples = [space.sample() for _ in range(50)]
    assert all(space.contains(sample) for sample in samples)
    assert {len(sample) for sample in samples} == set(range(6))
    assert pickle.loads(pickle.dumps(space)) == space != gymnasium.spaces.Text(5)
    minari = pytest.importorskip("minari.serialization")
    assert minari.deserialize_space(minari.serialize_space(space)).max_length == 5


def test_wrappers_read_the_step_limit():
    env = gymnasium.make("HGPO/ALFWorld-v0", max_steps=7)
    assert env.spec.max_episode_steps == 7
    timed = TimeAwareObservation(env, flatten=False, normalize_time=False)
    assert timed.reset(seed=1)[0]["time"] == 0
    assert timed.step("look")[0]["time"] == 1
    assert gymnasium.make("HGPO/ALFWorld-v0").spec.max_episode_steps == 50
    env.reset(seed=1)
    assert [env.step("look")[3] for _ in range(7)] == [False] * 6 + [True]


def test_vector_environments_take_gymnasiums_step_limit():
    default = gymnasium.make("HGPO/ALFWorld-v0")
    for envs, limit in (
        (gymnasium.make_vec(default.spec, num_envs=2), 50),
        (gymnasium.make_vec("HGPO/ALFWorld-v0", max_episode_steps=3), 3),
        (gymnasium.make_vec("HGPO/ALFWorld-v0", max_episode_steps=3, max_steps=4), 4),
    ):
        assert envs.unwrapped.episodes[0].settings.max_steps == limit
