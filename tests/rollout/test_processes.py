"""What crosses to worker processes: every object round-trips, every shipped environment plays there by the command."""

import pickle
from types import MappingProxyType

import gymnasium
import pytest
from command import hgpo
from hypothesis import given
from hypothesis import strategies as st

import hgpo_envs
from hgpo_datasets import scan_steps, verify
from hgpo_envs.engine import State, Task
from hgpo_train.policies.base import Failure
from hgpo_train.rollout.env_handle import open_env

gymnasium.register_envs(hgpo_envs)
SHIPPED = ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"]

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
MAPPINGS = st.dictionaries(st.text(max_size=5), PLAIN, max_size=3).flatmap(
    lambda mapping: st.sampled_from([mapping, MappingProxyType(mapping)])
)
TEXTS = st.text(max_size=9)
STATES = st.builds(
    State,
    TEXTS,
    st.lists(TEXTS, max_size=3) | st.lists(TEXTS, max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False),
    MAPPINGS,
)


@given(
    STATES | st.builds(Task, TEXTS, TEXTS, TEXTS, TEXTS, MAPPINGS) | st.builds(Failure, TEXTS, TEXTS),
    st.integers(2, pickle.HIGHEST_PROTOCOL),
)
def test_states_tasks_and_failures_round_trip(thing, protocol):
    assert pickle.loads(pickle.dumps(thing, protocol)) == thing


@pytest.mark.parametrize("env_id", SHIPPED)
def test_sources_tasks_and_states_of_every_shipped_environment_round_trip(env_id):
    handle = open_env(env_id, action_format="command")
    there = pickle.loads(pickle.dumps(handle.shared))
    for task_id in handle.tasks[:3]:
        assert pickle.loads(pickle.dumps(handle.shared.source.task(task_id))) == there.source.task(task_id)
        one, other = handle.shared.source.engine(), there.source.engine()
        state, same = one.start(task_id), other.start(task_id)
        for step in range(8):
            assert pickle.loads(pickle.dumps(state)) == state == same
            action = state.actions[step % len(state.actions)].replace("<your query>", "red shoe")
            state, same = one.act(action), other.act(action)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [*SHIPPED, "foreign:Foreign/Guess-v0"])
def test_the_commands_play_every_environment_in_workers(tmp_path, env_id):
    command = ["rollout", "--env", env_id, "--tasks", "3", "--group-size", "2", "--max-steps", "6"]
    for name, more in (("there", ["--workers", "2"]), ("here", [])):
        process = hgpo(*command, "--out", str(tmp_path / name), *more)
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, out + error
        assert "Error" not in error
        assert verify(tmp_path / name).ok
    order = ["trajectory", "step"]
    here, there = (scan_steps(tmp_path / name).drop("run").sort(order).collect() for name in ("here", "there"))
    assert there.equals(here)
    assert not there["aborted"].any()
    if env_id == SHIPPED[0]:
        process = hgpo(
            "eval", "--env", env_id, "--seeds", "5", "--max-steps", "2", "--out", tmp_path / "eval", "--workers=2"
        )
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        assert "success of all tasks" in out
