"""Panels: their identity, overrides and files, and the checksums of their tasks."""

import hashlib
import json
import os
import random
import re
import shutil
import tarfile
import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from types import SimpleNamespace

import pytest
from refusals import refused

from hgpo_envs.alfworld.data.game_folder import GAME_FILE, write_folder
from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.engine import State, Task
from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_train.panels import list_panels, load_panel, loading
from hgpo_train.panels.data import find_data, task_checksum
from hgpo_train.settings import to_toml

OWN = (files("hgpo_train.panels") / "bundled" / "alfworld-bundled@1.toml").read_text(
    "utf-8"
)


def test_the_digest_is_the_sha256_of_the_canonical_json():
    values = tomllib.loads(OWN)
    del values["about"]
    text = json.dumps(
        values | {"files": {}},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    panel = load_panel("alfworld-bundled@1")
    assert panel.digest == hashlib.sha256(text.encode()).hexdigest()
    assert replace(panel, about="other words").digest == panel.digest


def test_the_papers_panels_are_whole_splits_with_their_seeds():
    sizes = {
        panel.title: (len(panel.tasks), panel.environment["split"])
        for panel in list_panels()
    }
    assert sizes["alfworld-unseen@1"] == (134, "valid_unseen")
    assert sizes["alfworld-seen@1"] == (140, "valid_seen")
    assert sizes["webshop-human@1"] == sizes["webshop-human-small@1"] == (500, "test")
    assert {panel.seeds for panel in list_panels()} == {(123, 456, 789)}
    assert {panel.temperature for panel in list_panels()} == {0.4}


@pytest.mark.parametrize("name", ["alfworld-bundled", "webshop-bundled"])
def test_bundled_panels_have_their_data(name):
    arguments, checksum = find_data(load_panel(name))
    assert checksum == load_panel(name).checksum
    assert "data" not in arguments


def test_an_override_changes_title_and_digest_but_not_the_data():
    plain = load_panel("alfworld-bundled")
    changed = load_panel("alfworld-bundled@1+temperature=0.70+grammar=put+seeds=[7]")
    assert changed.title == "alfworld-bundled@1+grammar=put+seeds=[7]+temperature=0.7"
    assert (changed.temperature, changed.seeds, changed.environment["grammar"]) == (
        0.7,
        (7,),
        "put",
    )
    assert changed.digest != plain.digest
    assert load_panel(changed.title).digest == changed.digest
    assert find_data(changed)[1] == plain.checksum
    twice = changed.with_overrides({"temperature": 1e5})
    assert load_panel(twice.title) == twice
    assert load_panel("alfworld-bundled+temperature=0.4").title == "alfworld-bundled@1"
    assert (
        changed.with_overrides(
            {"temperature": 0.4, "grammar": "move", "seeds": [123, 456, 789]}
        ).title
        == plain.title
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("alfworld-unsen@1", "did you mean 'alfworld-unseen@1'"),
        ("alfworld-unseen@2", "did you mean 'alfworld-unseen@1'"),
        ("alfworld-bundled+temprature=1", "did you mean 'temperature'"),
        (
            "alfworld-bundled+env=HGPO/WebShop-v0",
            "unknown setting of alfworld-bundled@1 to override 'env'",
        ),
        ("alfworld-bundled+tasks=[]", "to override 'tasks'"),
        (
            "alfworld-bundled+temperature=hot",
            "setting temperature: expected float, received 'hot'",
        ),
        ("alfworld-bundled+seeds=[1,1]", "expected distinct seeds"),
        ("alfworld-bundled+seeds=[]", "setting seeds: expected a list of length >= 1"),
        ("missing.toml", "cannot read"),
        (3, "expected a name or the path of a file, received 3"),
    ],
)
def test_a_wrong_name_or_override_is_one_line(text, line):
    with refused(line.replace("[", r"\[").replace("(", r"\(")):
        load_panel(text)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("temperature = 0.4", "temprature = 0.4", "did you mean 'temperature'"),
        ("seeds = [123, 456, 789]", "seeds = [-1]", "seeds"),
        ('split = "valid_unseen"', "", "expected environment.split"),
        ('env = "HGPO/ALFWorld-v0"', "env = 3", "expected a text as environment.env"),
        ('checksum = "c5d9', 'checksum = "xyz', "checksum"),
        ('name = "alfworld-bundled"', 'name = "../x"', "name"),
        ("version = 1", "version = 1\nbase = 2", "unknown panel setting 'base'"),
        ("version = 1", "version = [", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_name(tmp_path, old, new, line):
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace(old, new, 1), "utf-8")
    with refused(line) as error:
        load_panel(str(path))
    assert "own.toml" in str(error.value)


def test_a_panel_written_as_toml_is_read_again(tmp_path):
    panel = replace(load_panel("webshop-bundled"), name="own", version=3)
    (tmp_path / "own.toml").write_text(to_toml(panel), "utf-8")
    read = load_panel(f"{tmp_path / 'own.toml'}+max_steps=9")
    assert (read.title, read.base.digest) == ("own@3+max_steps=9", panel.digest)


def test_panels_of_other_packages(monkeypatch, tmp_path):
    (tmp_path / "own.toml").write_text(
        OWN.replace("alfworld-bundled", "of-a-file", 1), "utf-8"
    )
    objects = {
        "file": tmp_path / "own.toml",
        "function": lambda: replace(
            load_panel(str(tmp_path / "own.toml")), name="of-a-function"
        ),
        "wrong": 3,
    }
    points = {
        name: SimpleNamespace(
            name=name, dist=None, load=lambda name=name: objects[name]
        )
        for name in objects
    }
    monkeypatch.setattr(
        loading,
        "installed",
        lambda _: {name: points[name] for name in ("file", "function")},
    )
    assert {"of-a-file@1", "of-a-function@1"} < {panel.title for panel in list_panels()}
    monkeypatch.setattr(loading, "installed", lambda _: {"wrong": points["wrong"]})
    with refused("expected a Panel or the path of its file, received int"):
        list_panels()


@pytest.fixture
def games(tmp_path):
    """Return a panel of three bundled games, and a folder with them and another one, written in shuffled order."""
    panel = load_panel("alfworld-bundled")
    source = ALFWorldSource()
    ids = list(panel.tasks[:4])
    random.Random(3).shuffle(ids)
    write_folder(source, ids, tmp_path / "games")
    chosen = panel.tasks[:3]
    return replace(
        panel, tasks=chosen, checksum=task_checksum(source, chosen)
    ), tmp_path / "games"


def test_the_checksum_does_not_depend_on_place_order_and_format(games, tmp_path):
    panel, folder = games
    source = ALFWorldSource(folder)
    write_pack(
        tmp_path / "games.pack",
        ((name, source.read(name), None) for name in sorted(source.ids("all"))),
    )
    for data in (folder, tmp_path / "games.pack"):
        arguments, checksum = find_data(panel, data)
        assert checksum == panel.checksum
        assert arguments["data"] == str(data)


@pytest.mark.parametrize(
    ("key", "pattern", "replacement"),
    [
        ("grammar", r"(Your task is to: )", r"\1please "),
        ("pddl_problem", r"\(openable [^)]*\)", ""),
    ],
)
def test_any_change_of_a_game_is_refused_with_both_checksums(
    games, key, pattern, replacement
):
    panel, folder = games
    path = folder / "json_2.1.1" / panel.tasks[0] / GAME_FILE
    game = json.loads(path.read_text("utf-8"))
    changed, times = re.subn(pattern, replacement, game[key], count=1)
    assert times == 1
    path.write_text(json.dumps(game | {key: changed}), "utf-8")
    with refused(
        f"expected tasks with checksum {panel.checksum}, found [0-9a-f]{{64}};"
    ):
        find_data(panel, folder)


def test_other_wording_other_tasks_and_missing_ones(games):
    panel, folder = games
    found = {
        task_checksum(ALFWorldSource(folder, grammar=wording), panel.tasks)
        for wording in ("move", "put")
    }
    found.add(task_checksum(ALFWorldSource(folder), panel.tasks[::-1]))
    assert len(found) == 3
    shutil.rmtree(folder / "json_2.1.1" / panel.tasks[0])
    with refused(f"unknown ALFWorld task '{panel.tasks[0]}'"):
        find_data(panel, folder)


def test_webshop_tasks_depend_on_goals_prices_and_pages():
    ids = load_panel("webshop-bundled").tasks[:3]
    options = [
        {},
        {"goals": "human"},
        {"price_seed": 1},
        {"shuffle_seed": 1},
        {"observation_mode": "text_rich"},
    ]
    checksums = {task_checksum(WebShopSource(**each), ids) for each in options}
    assert len(checksums) == len(options)


def test_files_that_data_were_made_from_are_compared():
    panel = load_panel("webshop-bundled")
    known = WebShopSource().files["items_shuffle.json"]
    find_data(replace(panel, files={"items_shuffle.json": known}))
    with refused(f"expected items_shuffle.json with SHA-256 {'0' * 64}, found {known}"):
        find_data(replace(panel, files={"items_shuffle.json": "0" * 64}))


def test_missing_data_are_one_line_with_the_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with refused("get them with `hgpo data fetch alfworld`"):
        find_data(load_panel("alfworld-unseen"))


def test_another_prompt_template_is_refused():
    panel = replace(load_panel("alfworld-bundled"), prompt_hash="0" * 16)
    with refused("expected a prompt template with hash 0000000000000000, found"):
        find_data(panel)


@dataclass
class Counter:
    """A benchmark of another package, without `content`: its tasks are their first states and versions."""

    first: str = "0"
    version: str = "1"

    def task(self, task_id: str) -> Task:
        return Task(
            task_id, "test", f"count to {task_id}", "count", {"rules": self.version}
        )

    def engine(self) -> "Counter":
        return self

    def start(self, task_id: str) -> State:
        return State(self.first, ["add"])


def test_the_checksum_of_a_benchmark_without_content_is_of_first_states_and_versions():
    checksums = [
        task_checksum(source, ["3"])
        for source in (Counter(), Counter("1"), Counter(version="2"), Counter())
    ]
    assert checksums[0] == checksums[3]
    assert len(set(checksums)) == 3


@pytest.mark.skipif(os.environ.get("HGPO_TESTS") != "all", reason="unpacks 400 MB")
@pytest.mark.slow
def test_the_official_games_are_those_of_the_panels(shared, tmp_path):
    with tarfile.open(shared / "data/alfworld/official-games.tar.xz") as archive:
        archive.extractall(
            tmp_path,
            [each for each in archive if "/valid_" in each.name],
            filter="data",
        )
    for name in ("alfworld-unseen", "alfworld-seen"):
        assert find_data(load_panel(name), tmp_path)[1] == load_panel(name).checksum


def test_commands_list_and_show_panels(hgpo):
    code, out, _ = hgpo("panels", "--json")
    listed = {panel["panel"]: panel for panel in json.loads(out)}
    assert (
        code,
        listed["alfworld-bundled@1"]["data"],
        listed["alfworld-bundled@1"]["tasks"],
    ) == (
        0,
        "bundled",
        12,
    )
    code, out, _ = hgpo("panels", "show", "alfworld-bundled+max_steps=9", "--json")
    shown = json.loads(out)
    assert (shown["panel"], shown["settings"]["environment"]["max_steps"]) == (
        "alfworld-bundled@1+max_steps=9",
        9,
    )
    assert shown["digest"] == load_panel("alfworld-bundled+max_steps=9").digest
    code, _, error = hgpo("panels", "show", "alfword-bundled")
    assert (code, error.count("\n")) == (2, 1)
