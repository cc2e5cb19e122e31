"""`hgpo --version` and `hgpo envs`."""

import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import gymnasium
import pytest
from command import ROOT, hgpo, invoke
from distribution import write_distribution
from typer.testing import CliRunner

import hgpo_envs  # noqa: F401 - registers the ids
from hgpo_envs.alfworld.data.game_folder import write_folder
from hgpo_envs.alfworld.generation.store import GeneratedStore
from hgpo_train.cli import LIBRARIES, app

HOUSE = """
from hgpo_envs.environment_spec import EnvironmentSpec

HOUSE = EnvironmentSpec(id="Mine/Doors-v0", source="doors:DoorsSource", max_steps=9)
"""


def test_the_versions_are_those_of_the_distributions() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    lines = dict(line.split(" ", 1) for line in shown.stdout.splitlines())
    assert lines["hgpo"] == version("hgpo")
    assert lines["Python"].startswith(platform.python_version())
    assert set(LIBRARIES) < lines.keys()
    assert lines["polars"] == version("polars")


def test_the_versions_import_no_library() -> None:
    script = (
        "import sys; from hgpo_train.cli import main; sys.argv = ['hgpo', '--version']\n"
        "try: main()\n"
        "except SystemExit: print(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = set(re.findall(r"\w+", done.stdout.splitlines()[-1]))
    assert "hgpo_train" in imported
    assert not imported & {*LIBRARIES, "hgpo_envs", "hgpo_datasets"}


def listed() -> dict[str, dict]:
    return {one["id"]: one for one in json.loads(invoke("envs", "--json"))}


@pytest.mark.parametrize("env_id", ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"])
def test_the_listed_splits_and_arguments_are_those_of_the_environment(env_id: str) -> None:
    one = listed()[env_id]
    defaults = {argument["name"]: argument["default"] for argument in one["arguments"]}
    explicit = gymnasium.make(env_id, **defaults).unwrapped  # every listed argument is accepted
    default = gymnasium.make(env_id).unwrapped
    assert vars(explicit.episode.settings).keys() == vars(default.episode.settings).keys()
    assert explicit.episode.settings.max_steps == default.episode.settings.max_steps == defaults["max_steps"]
    (bundled,) = [data for data in one["data"] if data["path"] is None]
    assert bundled["splits"] == {
        split: len(gymnasium.make(env_id, split=split).unwrapped.tasks) for split in bundled["splits"]
    }
    assert sum(bundled["splits"].values()) == len(gymnasium.make(env_id, split="all").unwrapped.tasks)


def test_data_in_its_usual_place_is_found_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = GeneratedStore(36, 0)
    write_folder(store, store.ids(), tmp_path / "official")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "official"))
    found = listed()["HGPO/ALFWorld-v0"]["data"]
    assert found[1]["path"] == str(tmp_path / "official")
    assert sum(found[1]["splits"].values()) == 36
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "empty"))
    found = listed()["HGPO/ALFWorld-v0"]["data"]
    assert "no playable game" in found[1]["error"]


def test_environments_of_other_packages_are_listed_and_broken_ones_hide_none(tmp_path: Path) -> None:
    points = {"hgpo.environments": {"Mine/Doors-v0": "house:HOUSE"}}
    write_distribution(tmp_path, "my-house", {"house": HOUSE}, points)
    broken = {"hgpo.environments": {"Theirs/Broken-v0": "absent_module:SPEC"}}
    write_distribution(tmp_path, "their-house", {}, broken)
    paths = [ROOT, ROOT / "datasets", ROOT / "tests/worlds", tmp_path]
    process = hgpo("envs", "--json", PYTHONPATH=os.pathsep.join(map(str, paths)))
    found = {each["id"]: each for each in json.loads(process.communicate(timeout=60)[0])}
    assert {"HGPO/ALFWorld-v0", "HGPO/WebShop-v0", "Mine/Doors-v0", "Theirs/Broken-v0"} <= found.keys()
    mine = found["Mine/Doors-v0"]
    assert mine["provider"] == "my-house"
    assert mine["data"][0]["splits"]["train"] > 0
    assert {"name": "max_steps", "default": 9} in mine["arguments"]
    assert "No module named 'absent_module'" in found["Theirs/Broken-v0"]["error"]


def test_the_table_names_ids_splits_and_defaults() -> None:
    shown = CliRunner().invoke(app, ["envs"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "HGPO/ALFWorld-v0" in shown.stdout
    assert re.search(r"bundled: train 14,736, eval 1,000, test 500", shown.stdout)
    assert "max_steps=15" in shown.stdout
