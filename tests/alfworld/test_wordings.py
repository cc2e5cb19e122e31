"""The wordings of ALFWorld: their names, prompts for the other one, and the comparison of data sets."""

import json
import random
import re
import shutil
import warnings
from pathlib import Path

import gymnasium
import polars as pl
import pytest
from doors import DoorsSource
from hypothesis import given
from hypothesis import strategies as st

from hgpo_datasets.wordings import wordings_of
from hgpo_envs import environment_spec
from hgpo_envs.alfworld.data.game_folder import write_folder
from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine.grammar import HELP, WORDINGS
from hgpo_envs.data_comparison import compare_data
from hgpo_envs.engine import Task
from hgpo_envs.env import TextEnv
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_envs.task_wordings import Wording

MOVE = "move … to … (alfworld 0.4 and later)"
PUT = "put … in/on … (alfworld 0.3 and before)"
BUNDLED = ALFWorldSource()
IDS = [BUNDLED.ids(split)[0] for split in ("train", "valid_seen", "valid_unseen")]


def wordings(text):
    """Return the wordings for which a text is written."""
    known = WORDINGS.items()
    return [
        key.removeprefix("grammar=")
        for key, wording in known
        if re.search(wording.phrase, text, re.IGNORECASE)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "The available actions are:\n3. put {obj} in/on {recep}\n4. open {recep}",
            ["put"],
        ),
        (
            "> put spraybottle 2 in/on toilet 1\nYou put the spraybottle 2 in/on the toilet 1.",
            ["put"],
        ),
        ("Put OBJECT in / on RECEPTACLE", ["put"]),
        (HELP, ["move"]),
        ("> move mug 1 to shelf 1", ["move"]),
        ("You move the mug 1 to the shelf 1.", ["move"]),
        ("move {obj} to {recep}", ["move"]),
        ("`move <object> to <receptacle>`", ["move"]),
        ("move X to Y; move ... to ...", ["move"]),
        ("put {obj} in/on {recep} (new: move {obj} to {recep})", ["move", "put"]),
        (
            "Put the answer in <action> tags. Move on to the next step; move one to the left.",
            [],
        ),
        ("Your task is to: put some laptop on bed. Put it in or on the desk.", []),
        (
            "You may move the object to another place, or move from room 1 to room 2.",
            [],
        ),
    ],
)
def test_phrases_of_prompts(text, expected):
    assert wordings(text) == expected


@pytest.mark.parametrize("name", ["move", "put"])
def test_no_text_of_a_game_looks_like_the_other_wording(name):
    source = ALFWorldSource(grammar=name)
    assert not [
        sentence
        for each in source.ids("all")[::9]
        for sentence in wordings(source.task(each).instruction)
    ]
    engine = source.engine()
    found = set()
    for task_id in IDS:
        states = [
            engine.start(task_id),
            *(engine.act(command) for command in source.read(task_id)["walkthrough"]),
        ]
        assert states[-1].won
        for state in states:
            found.update(wordings("\n".join([state.text, *state.actions])))
    assert found == {name}


def opened(**arguments):
    """Return the warnings of an environment with these arguments."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gymnasium.make("HGPO/ALFWorld-v0", disable_env_checker=True, **arguments)
    return [str(one.message) for one in caught]


def test_a_prompt_for_the_other_wording_is_one_warning_that_says_how_to_fix_it(
    tmp_path,
):
    template = tmp_path / "react.j2"
    template.write_text(
        "{# not shown: move X to Y #}\n> put mug 1 in/on desk 1\n> put egg 2 in/on sink 1\n{{ observation }}"
    )
    (line,) = opened(prompt_template=str(template))
    assert f'prompt template {template} says "put mug 1 in/on"' in line
    assert f"the wording of these tasks is {MOVE}" in line
    assert 'grammar="put"' in line
    assert not opened(prompt_template=str(template), grammar="put")
    (line,) = opened(system_prompt="Commands: move {obj} to {recep}.", grammar="put")
    assert 'the system prompt says "move {obj} to {recep}"' in line
    assert f"is {PUT}" in line
    assert not opened(system_prompt="Commands: move {obj} to {recep}.")
    assert not opened(
        prompt_template="compact",
        system_prompt="Put the action in tags.",
        grammar="put",
    )


class SlidingDoors(DoorsSource):
    """Doors of a benchmark with two wordings."""

    name = "SlidingDoors"


def test_other_benchmarks_declare_their_wordings(monkeypatch):
    known = {
        "house=1": Wording("doors that open", "open door"),
        "house=2": Wording("doors that slide", "slide door"),
    }
    spec = EnvironmentSpec(
        id="Mine/SlidingDoors-v0", source=SlidingDoors, wordings=known
    )
    monkeypatch.setitem(environment_spec._added, spec.id, spec)
    with pytest.warns(
        UserWarning,
        match='says "Slide door", but the wording of these tasks is doors that open; ',
    ):
        TextEnv(SlidingDoors(), system_prompt="Slide door, then go on.")


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    folder = tmp_path_factory.mktemp("games")
    write_folder(BUNDLED, IDS, folder)
    return folder


@pytest.fixture
def edited(games, tmp_path):
    """Return a function that copies the games, and changes a text of the first by a pattern."""

    def edit(key: str, pattern: str, new: str) -> Path:
        copy = tmp_path / "copy"
        shutil.copytree(games, copy)
        path = copy / "json_2.1.1" / IDS[0] / "game.tw-pddl"
        data = json.loads(path.read_text())
        text, changes = re.subn(pattern, new, data[key], count=1)
        assert changes
        path.write_text(json.dumps(data | {key: text}))
        return copy

    return edit


def compared(hgpo, *arguments):
    code, out, _ = hgpo("data", "compare", *arguments, "--json")
    return code, json.loads(out)


def test_equal_games_in_a_folder_and_in_a_pack(hgpo, games, tmp_path):
    source = ALFWorldSource(games)
    write_pack(tmp_path / "a.pack", [(task, source.read(task), None) for task in IDS])
    code, found = compared(hgpo, games, tmp_path / "a.pack")
    assert (code, found["equal"], found["tasks_in_a"], found["tasks_in_b"]) == (
        0,
        True,
        3,
        3,
    )
    assert found["differences"] == {
        "sentence": [],
        "wording": [],
        "initial state": [],
        "goal": [],
    }
    out = hgpo.output("data", "compare", games, tmp_path / "a.pack")
    assert "equal" in out


def test_games_in_the_other_wording(hgpo, games, tmp_path):
    older = ALFWorldSource(games, grammar="put")
    write_pack(tmp_path / "put.pack", [(task, older.read(task), None) for task in IDS])
    code, found = compared(hgpo, games, tmp_path / "put.pack")
    assert code == 1
    assert {name: len(each) for name, each in found["differences"].items() if each} == {
        "wording": 3
    }
    assert MOVE in found["differences"]["wording"][0]["a"]
    assert PUT in found["differences"]["wording"][0]["b"]
    assert (
        compared(hgpo, games, tmp_path / "put.pack", "--env-option", "grammar=put")[0]
        == 0
    )
    shown = hgpo("data", "compare", games, tmp_path / "put.pack")[1]
    assert f"wording of {IDS[0]} and 2 more" in shown
    assert (
        f"  B: {PUT}; You put the {{object}} in/on the {{receptacle}}.; arrival names the location; no help"
        in shown
    )


@pytest.mark.parametrize(
    ("key", "pattern", "new", "different"),
    [
        (
            "grammar",
            r"(Your task is to: )[^\"]*",
            r"\1put a laptop in bed.",
            "sentence",
        ),
        (
            "pddl_problem",
            r"\(inReceptacle (\S+) \S+\)",
            r"(inReceptacle \1 Elsewhere)",
            "initial state",
        ),
        ("pddl_problem", r"(\(:goal[\s\S]*?)DeskLampType", r"\1FloorLampType", "goal"),
    ],
)
def test_one_changed_game(hgpo, games, edited, key, pattern, new, different):
    code, found = compared(hgpo, games, edited(key, pattern, new))
    assert code == 1
    assert {
        name: [one["task_id"] for one in each]
        for name, each in found["differences"].items()
        if each
    } == {different: [IDS[0]]}
    (change,) = found["differences"][different]
    if different == "sentence":
        assert change["b"] == "put a laptop in bed."
    if different == "initial state":
        assert re.fullmatch(r"\(inreceptacle \S+ \S+\)", change["a"])
        assert change["b"] == re.sub(r" \S+\)$", " elsewhere)", change["a"])


def test_the_order_and_layout_of_facts_do_not_count(games, tmp_path):
    def shuffle(data: dict) -> dict:
        head, rest = data["pddl_problem"].split("(:init", 1)
        start, goal = rest.split("(:goal", 1)
        facts = re.findall(r"\([^()]+\)", start)
        random.Random(1).shuffle(facts)
        return data | {
            "pddl_problem": f"{head}(:init\n {' '.join(facts)})\n\n(:goal\n  {goal}"
        }

    source = ALFWorldSource(games)
    write_pack(
        tmp_path / "b.pack", [(task, shuffle(source.read(task)), None) for task in IDS]
    )
    assert compare_data(source, ALFWorldSource(tmp_path / "b.pack"), (IDS, IDS)).equal


def test_what_cannot_be_read_is_one_line_and_exit_status_2(
    hgpo, games, edited, tmp_path
):
    broken = edited("grammar", "You arrive at", "You walk to")
    for other, *options, reason in (
        (broken, f"B: {IDS[0]}: unknown grammar"),
        (tmp_path / "absent", "no ALFWorld data"),
        (games, "--split", "tran", "did you mean 'train'"),
        (games, "--env-option", "data=x", "--env-option data"),
        (games, "--env-option", "grammer=put", "unexpected keyword argument 'grammer'"),
    ):
        code, _, err = hgpo("data", "compare", games, other, *options)
        assert (code, err.strip().count("\n"), reason in err) == (2, 0, True), err


class Sentences:
    """A source without `contents`."""

    name = "Sentences"

    def __init__(self, tasks: dict[str, str]) -> None:
        self.tasks = tasks

    def task(self, task_id: str) -> Task:
        return Task(task_id, "train", self.tasks[task_id], "", {"release": "1"})


SETS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["open", "close"]))


@given(SETS, SETS)
def test_any_source_is_compared_by_the_descriptions_of_its_tasks(first, second):
    found = compare_data(
        Sentences(first), Sentences(second), (list(first), list(second))
    )
    assert set(found.only_in_a) == first.keys() - second.keys()
    assert set(found.only_in_b) == second.keys() - first.keys()
    changed = {
        one.task_id: (one.a, one.b) for one in found.differences.get("sentence", [])
    }
    assert changed == {
        key: (first[key], second[key])
        for key in first
        if second.get(key, first[key]) != first[key]
    }
    assert found.equal == (first == second)


def test_tables_of_any_origin_name_their_wordings():
    versions = [
        '{"grammar": "put"}',
        '{"grammar": "unknown"}',
        '{"grammar": ["put"]}',
        "[1]",
        "put",
        "[" * 9000,
        None,
    ]
    env_ids = ["HGPO/ALFWorld-v0"] * len(versions)
    steps = pl.LazyFrame({"env_id": env_ids, "env_version": versions})
    assert wordings_of(steps) == [PUT]
    others = pl.LazyFrame(
        {
            "env_id": ["HGPO/WebShop-v0", "Not/Here-v0", "no id"],
            "env_version": versions[:1] * 3,
        }
    )
    assert wordings_of(pl.concat([steps, others])) == [PUT]


@pytest.mark.slow
def test_the_official_games_against_themselves_and_the_older_wording(official):
    source = ALFWorldSource(official)
    ids = source.ids("all")
    assert len(ids) == 3827
    assert compare_data(source, ALFWorldSource(official), (ids, ids)).equal
    unseen = source.ids("valid_unseen")
    older = compare_data(
        source, ALFWorldSource(official, grammar="put"), (unseen, unseen)
    )
    assert [name for name, found in older.differences.items() if found] == ["wording"]
    assert len(older.differences["wording"]) == 134
