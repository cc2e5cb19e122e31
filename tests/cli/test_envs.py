"""`hgpo --version` and `hgpo envs`."""

import json
import platform
import re
from importlib.metadata import version

import gymnasium
import pytest
from command import environment, finished, invoke, python
from distribution import write_distribution

import hgpo_envs  # noqa: F401 - registers the ids
from hgpo_envs.alfworld.data.game_folder import write_folder
from hgpo_envs.alfworld.generation.store import GeneratedStore
from hgpo_train.cli.app import LIBRARIES

HOUSE = """
from hgpo_envs.environment_spec import EnvironmentSpec

HOUSE = EnvironmentSpec(id="Mine/Doors-v0", source="doors:DoorsSource", max_steps=9)
"""


def test_the_versions_are_those_of_the_distributions():
    lines = dict(line.split(" ", 1) for line in invoke("--version").splitlines())
    assert lines["hgpo"] == version("hgpo")
    assert lines["Python"].startswith(platform.python_version())
    assert set(LIBRARIES) < lines.keys()
    assert lines["polars"] == version("polars")


def test_the_versions_import_no_library():
    script = (
        "import sys; from hgpo_train.cli import main; sys.argv = ['hgpo', '--version']\n"
        "try: main()\n"
        "except SystemExit: print(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    imported = set(re.findall(r"\w+", python(script).stdout.splitlines()[-1]))
    assert "hgpo_train" in imported
    assert not imported & {*LIBRARIES, "hgpo_envs", "hgpo_datasets"}


def listed():
    return {one["id"]: one for one in json.loads(invoke("envs", "--json"))}


@pytest.mark.parametrize("env_id", ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"])
def test_the_listed_splits_and_arguments_are_those_of_the_environment(env_id):
    one = listed()[env_id]
    defaults = {argument["name"]: argument["default"] for argument in one["arguments"]}
    # every listed argument is accepted
    explicit = gymnasium.make(env_id, **defaults).unwrapped
    default = gymnasium.make(env_id).unwrapped
    assert (
        vars(explicit.episode.settings).keys() == vars(default.episode.settings).keys()
    )
    assert (
        explicit.episode.settings.max_steps
        == default.episode.settings.max_steps
        == defaults["max_steps"]
    )
    (bundled,) = [data for data in one["data"] if data["path"] is None]
    assert bundled["wordings"] == (
        ["move … to … (alfworld 0.4 and later)"] if "ALFWorld" in env_id else []
    )
    for split, tasks in {
        **bundled["splits"],
        "all": sum(bundled["splits"].values()),
    }.items():
        assert tasks == len(gymnasium.make(env_id, split=split).unwrapped.tasks)


@pytest.mark.slow
def test_data_in_its_usual_place_is_found_with_its_size(tmp_path, monkeypatch):
    store = GeneratedStore(36, 0)
    write_folder(store, store.ids, tmp_path / "official")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "official"))
    found = listed()["HGPO/ALFWorld-v0"]["data"]
    assert found[1]["path"] == str(tmp_path / "official")
    assert sum(found[1]["splits"].values()) == 36
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "empty"))
    found = listed()["HGPO/ALFWorld-v0"]["data"]
    assert "no playable game" in found[1]["error"]


@pytest.mark.slow
def test_environments_of_other_packages_are_listed_and_broken_ones_hide_none(tmp_path):
    points = {"hgpo.environments": {"Mine/Doors-v0": "house:HOUSE"}}
    write_distribution(tmp_path, "my-house", {"house": HOUSE}, points)
    broken = {"hgpo.environments": {"Theirs/Broken-v0": "absent_module:SPEC"}}
    write_distribution(tmp_path, "their-house", {}, broken)
    _, printed, _ = finished(
        "envs", "--json", PYTHONPATH=environment(tmp_path)["PYTHONPATH"]
    )
    found = {each["id"]: each for each in json.loads(printed)}
    assert {
        "HGPO/ALFWorld-v0",
        "HGPO/WebShop-v0",
        "Mine/Doors-v0",
        "Theirs/Broken-v0",
    } <= found.keys()
    mine = found["Mine/Doors-v0"]
    assert mine["provider"] == "my-house"
    assert mine["data"][0]["splits"]["train"] > 0
    assert {"name": "max_steps", "default": 9} in mine["arguments"]
    assert "No module named 'absent_module'" in found["Theirs/Broken-v0"]["error"]


def test_the_table_names_ids_splits_and_defaults():
    shown = invoke("envs")
    for part in (
        "HGPO/ALFWorld-v0",
        "bundled: train 14,736, eval 1,000, test 500",
        "max_steps=15",
    ):
        assert part in shown


def test_an_environment_that_is_not_installed_is_no_error(hgpo):
    absent = {
        env_id: one["install"] for env_id, one in listed().items() if one["install"]
    }
    assert all(command.startswith("pip install") for command in absent.values())
    shown = hgpo("envs")[1]
    assert not re.search(r"^error", shown, re.MULTILINE)
    assert ("Not installed" in shown) == bool(absent)
    assert {env_id for env_id in absent if env_id in shown} == set(absent)
