"""Pickles of version 0.1 can be loaded and continue like new environments."""

import pickle
from importlib import import_module
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from hgpo_envs.old_names import MODULES, NAMES
from hgpo_envs.sources import open_shared

RECORDED = Path(__file__).parent / "recorded/version_0_1"
ENVIRONMENTS = {
    "alfworld": ("HGPO/ALFWorld-v0", {"history_length": 2}, ["look", "inventory"]),
    "webshop": ("HGPO/WebShop-v0", {"price_seed": 1, "option_colours": "both"}, ["search[red shoes]"]),
}


def recorded(name: str) -> object:
    return pickle.loads((RECORDED / f"{name}.pickle").read_bytes())


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(name: str) -> None:
    env_id, options, commands = ENVIRONMENTS[name]
    old, new = recorded(f"{name}_env"), gymnasium.make(env_id, **options).unwrapped
    new.reset(seed=3)
    for command in commands:
        new.step(command)
    task, state = recorded(f"{name}_task")
    assert (task, state) == (new.episode.task, new.episode.state)
    for _ in range(3):
        command = new.episode.state.actions[-1]
        (was, *rest), (now, *others) = old.step(command), new.step(command)
        assert rest == others
        assert was["prompt"] == now["prompt"]
        assert np.array_equal(was["history_hash"], now["history_hash"])
    assert old.reset()[1]["task"] == new.reset()[1]["task"]  # each goes on in its order of tasks


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_vector_environments(name: str) -> None:
    env_id, options, commands = ENVIRONMENTS[name]
    old = recorded(f"{name}_vector")
    new = gymnasium.make_vec(env_id, num_envs=2, vectorization_mode="vector_entry_point", **options).unwrapped
    new.reset(seed=3)
    new.step([commands[0]] * 2)
    assert old.step(["look"] * 2)[0]["prompt"] == new.step(["look"] * 2)[0]["prompt"]


@pytest.mark.parametrize("module", MODULES)
def test_an_old_module_has_the_names_of_the_new_one(module: str) -> None:
    new = import_module(MODULES[module])
    for name in vars(new):
        if not name.startswith("__"):
            assert getattr(import_module(module), name) is getattr(new, name)


def test_old_names_of_classes_and_factories() -> None:
    for (module, old), new in NAMES.items():
        assert getattr(import_module(module), old) is getattr(import_module(MODULES[module]), new)
    with pytest.raises(AttributeError):
        import_module("hgpo_envs.sampling").no_such_name  # noqa: B018
    assert open_shared("hgpo_envs.alfworld.source:ALFWorldSource").source.ids("train")
