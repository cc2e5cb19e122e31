"""Tasks, states and sources can be pickled without change, because worker processes exchange them."""

import copy
import pickle

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hgpo_envs  # noqa: F401 - registers the ids
from hgpo_envs.alfworld.environment import ALFWORLD
from hgpo_envs.gymnasium_source import GymnasiumSource
from hgpo_envs.webshop.environment import WEBSHOP

SOURCES = {
    "ALFWorld": lambda: ALFWORLD.open_source().source,
    "ALFWorld, put": lambda: ALFWORLD.open_source(grammar="put").source,
    "WebShop": lambda: WEBSHOP.open_source().source,
    "WebShop, human": lambda: (
        WEBSHOP.open_source(goals="human", observation_mode="text_rich", after_done="freeze").source
    ),
    "Gymnasium": lambda: GymnasiumSource("foreign:Foreign/Guess-v0"),
}


def test_every_registered_environment_is_tested():
    """AppWorld's is tested in integrations/appworld/tests."""
    ids = {env_id for env_id in gymnasium.registry if env_id.startswith("HGPO/")}
    assert ids - {"HGPO/AppWorld-v0"} == {
        f"HGPO/{name}-v0" for name in SOURCES if name.isalnum() and name != "Gymnasium"
    }


@pytest.fixture(scope="module", params=SOURCES)
def source(request):
    return SOURCES[request.param]()


@given(data=st.data())
def test_tasks_states_and_sources_survive_pickle(source, data):
    again = pickle.loads(pickle.dumps(source))
    ids = source.ids("train")
    task_id = ids[data.draw(st.integers(0, min(len(ids), 20) - 1))]
    task = source.task(task_id)
    for same in (pickle.loads(pickle.dumps(task)), copy.deepcopy(task), again.task(task_id)):
        assert same == task
        assert dict(same.versions) == dict(task.versions)
    engine, other = source.engine(), again.engine()
    state, twin = engine.start(task_id), other.start(task_id)
    for _ in range(data.draw(st.integers(0, 4))):
        for same in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state), twin):
            assert same == state
        if not state.actions:
            break
        action = data.draw(st.sampled_from([*state.actions, "search[red shoes]", "\ud800", ""]))
        state, twin = engine.act(action), other.act(action)
    for same in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state), twin):
        assert same == state


def test_unpickled_states_share_no_mutable_objects(source):
    state = source.engine().start(source.ids("train")[0])
    again = pickle.loads(pickle.dumps(state))
    before = list(again.actions)
    assert again.actions == state.actions
    assert list(again.actions) == before
