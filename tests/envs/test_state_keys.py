"""Keys of states: which texts count as one state."""

from __future__ import annotations

import dataclasses

import gymnasium
import polars as pl
import pytest
from refusals import refused

from hgpo_datasets import verify
from hgpo_envs import environment_spec
from hgpo_envs.engine import State, Task
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_envs.episode import Episode, settings_for
from hgpo_envs.registration import register
from hgpo_envs.sources import SharedSource
from hgpo_envs.state_keys import state_key
from hgpo_train.rollout.collection import collect


def test_named_keys():
    mask = state_key("mask-numbers")
    assert mask("-= Kitchen =- 0/13 moves") == mask("-= Kitchen =- 5/0013 moves")
    assert state_key("textwrap:dedent")("  a") == "a"
    for name, reason in (
        ("mask-number", "mask-numbers"),
        ("textwrap:nothing", "nothing"),
        ("string:digits", "str"),
    ):
        with refused(reason):
            state_key(name)


@pytest.mark.parametrize(
    ("key", "reason"),
    [(lambda _: None, "returned None"), (len, "returned 8"), (int, "raised V")],
)
def test_a_key_that_is_no_text_is_an_error(key, reason):
    """With the key None, all states were equal."""
    episode = Episode(
        SharedSource(CounterSource()), settings_for("None", state_key=key)
    )
    episode.begin(Task("a", "train", "", ""), State("a corner", []))
    with refused(f"^state key: expected a function that returns text, which {reason}"):
        _ = episode.state_hash


class CounterSource:
    """Two rooms, and a status line that counts the moves of the process: no two states have the same text."""

    name = "Counter"
    moves = 0

    def ids(self, split: str) -> list[str]:
        return ["a", "b", "c"]

    def task(self, task_id: str) -> Task:
        return Task(task_id, "train", "Walk.", "walk")

    def engine(self) -> CounterSource:
        return self

    def start(self, task_id: str) -> State:
        return self.act("hall")

    def act(self, command: str) -> State:
        CounterSource.moves += 1
        return State(
            f"You are in the {command}. Moves: {CounterSource.moves}", ["hall", "attic"]
        )


class KeyedSource(CounterSource):
    name = "Keyed"

    def act(self, command: str) -> State:
        return dataclasses.replace(super().act(command), key=command)


class MaskedSource(CounterSource):
    name = "Masked"


SPECS = [
    EnvironmentSpec(id="Test/Counter-v0", source=CounterSource, max_steps=4),
    EnvironmentSpec(
        id="Test/Keyed-v0", source=KeyedSource, max_steps=4, state_key="sort-lines"
    ),
    EnvironmentSpec(
        id="Test/Masked-v0", source=MaskedSource, max_steps=4, state_key="mask-numbers"
    ),
]


@pytest.fixture(params=SPECS, ids=lambda spec: spec.name)
def spec(request):
    register(request.param)
    yield request.param
    environment_spec._added.pop(request.param.id)
    gymnasium.registry.pop(request.param.id)


def test_observations_hash_keys(spec):
    """The hashes of both kinds of environments are of keys, and the texts are what the policy reads."""
    keyed = spec.name != "Counter"
    env = gymnasium.make(spec.id)
    first = env.reset(options={"task": "a"})[0]
    env.step("attic")
    again = env.step("hall")[0]
    assert first["state"] != again["state"]
    assert first["state"] in first["prompt"]
    assert (first["history_hash"][0] == again["history_hash"][0]) == keyed
    vector = gymnasium.make_vec(spec.id, num_envs=2)
    vector.reset(options={"task": "a"})
    obs = vector.step(["attic", "attic"])[0]
    assert (obs["history_hash"][0] == obs["history_hash"][1]).all() == keyed


def test_rollouts_group_by_keys(spec, tmp_path):
    """A counter in the status line left almost no step with a group, and made HGPO's advantages 0."""
    run = collect(
        spec.id, lambda request: "attic", tmp_path / "run", tasks=3, group_size=4
    )
    steps = run.steps.collect()
    assert steps["state"].n_unique() == steps.height
    groups = (
        steps.group_by("task_id", "step")
        .agg(pl.col("history_hash_0").n_unique())["history_hash_0"]
        .to_list()
    )
    assert set(groups) == ({4} if spec.name == "Counter" else {1})
    assert verify(run).ok
    last = steps.filter("truncated")
    assert last["next_state"].str.starts_with("You are in the attic.").all()
    attic = steps.filter(state=last["state"][0])["state_hash"][0]
    assert (last["next_state_hash"] == attic).all() == (spec.name != "Counter")
