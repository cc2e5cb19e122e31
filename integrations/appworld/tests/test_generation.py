"""The generated world: its plan, and what AppWorld makes of it."""

import ast
import itertools
import json
import sqlite3
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import ALL

from hgpo_appworld.engine.source import AppWorldSource
from hgpo_appworld.generation.plan import (
    DEFAULT_TASKS,
    SCENARIOS,
    SPLITS,
    Plan,
    make_plan,
)
from hgpo_appworld.generation.root import write_root
from hgpo_appworld.players.expert import split_solution
from hgpo_envs.errors import InputError

SEEDS = st.integers(0, 2**31)


def some(source: AppWorldSource) -> list[str]:
    """Return one task of each scenario, or all tasks."""
    return source.ids("all") if ALL else first_of_each_scenario(source)


def first_of_each_scenario(source: AppWorldSource) -> list[str]:
    return [task_id for task_id in source.ids("all") if task_id.endswith("_1")]


# ------------------------------------------------------------------------------------------- plans, without AppWorld


def test_a_plan_has_what_a_benchmark_needs() -> None:
    plan = make_plan()
    assert len(plan.tasks) == DEFAULT_TASKS >= 40
    assert len({app for task in plan.tasks for app in task.scenario.apps}) >= 5
    found = {(task.scenario.split, task.scenario.difficulty) for task in plan.tasks}
    assert found == set(itertools.product(SPLITS, (1, 2, 3)))
    scenarios = defaultdict(list)
    for task in plan.tasks:
        scenarios[task.id.partition("_")[0]].append(task)
    assert len(scenarios) == len(SCENARIOS)
    for tasks in scenarios.values():
        assert [task.id.partition("_")[2] for task in tasks] == ["1", "2", "3"]
        assert len({task.supervisor.id for task in tasks}) == 3
        assert len({task.scenario.name for task in tasks}) == 1


@settings(max_examples=5)  # each makes whole worlds
@given(SEEDS)
def test_a_plan_is_its_seed(seed: int) -> None:
    plan = make_plan(seed, 9).to_dict()
    assert json.dumps(plan) == json.dumps(make_plan(seed, 9).to_dict())
    assert plan["tasks"][:4] == make_plan(seed, 4).to_dict()["tasks"]
    assert plan["rows"] != make_plan(seed + 1, 1).to_dict()["rows"]
    assert all(plan["splits"].values())


@settings(max_examples=5)  # each makes whole worlds
@given(SEEDS)
def test_every_row_has_the_id_that_a_database_gives(seed: int) -> None:
    plan = make_plan(seed)
    for task in plan.tasks:
        seen: defaultdict[tuple[str, str], int] = defaultdict(int)
        for row in (*plan.world.rows.rows, *task.rows.rows):
            seen[row.app, row.model] += 1
            assert row.id == seen[row.app, row.model]
            owner = row.fields.get("user_id", 1)
            assert 1 <= owner <= len(plan.world.people)


@settings(max_examples=5)  # each makes whole worlds
@given(SEEDS)
def test_every_task_asks_for_something_that_can_be_done(seed: int) -> None:
    for task in make_plan(seed).tasks:
        asks = task.draft.answer is not None
        assert asks == any(
            check.requirement == "the answer is right" for check in task.scenario.checks
        )
        assert asks or all(
            value or value is False for value in task.draft.private.values()
        )
        ast.parse(task.to_dict()["evaluation"])
        steps = split_solution(task.to_dict()["solution"], task.id)
        # Before them the passwords and a login to each app, and the end after them.
        assert len(steps) == len(task.scenario.apps) + len(task.draft.steps) + 2 >= 4
        assert steps[-1].startswith("apis.supervisor.complete_task(")
        labels = {check.label for check in task.scenario.checks}
        assert "no_op_fail" in labels


def rows_of(plan: Plan, model: str, **fields: object) -> list[dict]:
    app, _, name = model.partition(".")
    rows = [
        row.fields | {"id": row.id}
        for row in plan.world.rows.rows
        if (row.app, row.model) == (app, name)
    ]
    return [row for row in rows if fields.items() <= row.items()]


@settings(max_examples=5)  # each makes whole worlds
@given(SEEDS)
def test_answers_follow_from_the_rows(seed: int) -> None:
    """The answers are worked out again from what the databases will hold, not from the objects of the generator."""
    plan = make_plan(seed)
    for task in plan.tasks:
        user = task.supervisor.id
        asked = task.draft.instruction
        answer = task.draft.answer
        match task.scenario.name:
            case "library_size":
                model = next(
                    m for m in ("song", "album", "playlist") if f"many {m}s" in asked
                )
                table = {
                    "song": "UserLibrarySong",
                    "album": "UserLibraryAlbum",
                    "playlist": "Playlist",
                }[model]
                assert answer == len(rows_of(plan, f"spotify.{table}", user_id=user))
            case "alarm_time":
                label = asked.split('"')[1]
                assert [answer] == [
                    row["time"]
                    for row in rows_of(plan, "phone.Alarm", user_id=user, label=label)
                ]
            case "tagged_notes":
                notes = rows_of(plan, "simple_note.Note", user_id=user)
                assert (
                    answer
                    == sum(asked.split('"')[1] in note["tags"] for note in notes)
                    > 0
                )
            case "most_played":
                ids = [
                    row["song_id"]
                    for row in rows_of(plan, "spotify.UserLibrarySong", user_id=user)
                ]
                songs = sorted(
                    (row["play_count"], row["title"])
                    for row in rows_of(plan, "spotify.Song")
                    if row["id"] in ids
                )
                assert answer == songs[-1 if "most" in asked else 0][1]
                assert len({count for count, _ in songs}) == len(songs)
            case "money_sent":
                other = next(
                    person.id
                    for person in plan.world.people
                    if f"to {person.name} on" in asked
                )
                sent = rows_of(
                    plan, "venmo.Transaction", sender_id=user, receiver_id=other
                )
                assert answer == pytest.approx(
                    sum(row["amount"] for row in sent if row["created_at"] >= "2023")
                )


@pytest.mark.parametrize("tasks", [0, -1, 10_001])
def test_a_wrong_number_of_tasks_is_one_line(tasks: int) -> None:
    with pytest.raises(
        InputError, match=f"tasks: expected 1 to 10,000, received {tasks}"
    ):
        make_plan(0, tasks)


@pytest.mark.parametrize(
    ("python", "line"),
    [
        (sys.executable, "writing the world failed: .*No module named 'appworld'"),
        ("/no/python", "cannot run /no/python"),
    ],
)
def test_a_failure_is_one_line_and_leaves_nothing(
    tmp_path: Path, python: str, line: str
) -> None:
    with pytest.raises(InputError, match=line) as caught:
        write_root(tmp_path / "root", python, tasks=3)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------ with AppWorld


@pytest.mark.original
@pytest.mark.slow
def test_every_task_is_won_by_its_solution_alone(opened) -> None:
    source = opened()
    for task_id in some(source):
        engine = source.engine()
        state = engine.start(task_id)
        for step in split_solution(engine.ground_truth_solution(), task_id):
            assert not state.terminated
            state = engine.act(step)
            assert not state.info["execution_failed"], state.text
        assert (state.terminated, state.won, state.score) == (True, True, 1.0), (
            task_id,
            state.info,
        )


@pytest.mark.original
@pytest.mark.slow
def test_no_task_is_won_by_doing_nothing_or_by_a_wrong_answer(
    opened, appworld_root: Path
) -> None:
    source = opened()
    for task_id in some(source):
        data = json.loads(
            (
                appworld_root / "data/tasks" / task_id / "ground_truth/test_data.json"
            ).read_text("utf-8")
        )
        expected = sorted(
            test["requirement"] for test in data if test["label"] == "no_op_fail"
        )
        engine = source.engine()
        engine.start(task_id)
        state = engine.act("apis.supervisor.complete_task()")
        assert (state.terminated, state.won) == (True, False)
        assert sorted(state.info["failed_tests"]) == expected
        engine.start(task_id)
        assert not engine.act(
            "apis.supervisor.complete_task(answer='no such thing')"
        ).won


@pytest.mark.original
@pytest.mark.slow
def test_no_task_is_won_with_a_change_that_was_not_asked_for(opened) -> None:
    source = opened()
    others = {
        "phone": "create_alarm(time='04:44'",
        "simple_note": "create_note(title='Mine', content='x'",
    }
    for task_id in first_of_each_scenario(source):
        engine = source.engine()
        engine.start(task_id)
        solution = split_solution(engine.ground_truth_solution(), task_id)
        for app, call in others.items():
            user = "phone_number" if app == "phone" else "email"
            login = f"apis.{app}.login(username=apis.supervisor.show_profile()['{user}'], password=passwords['{app}'])"
            program = f"print(apis.{app}.{call}, access_token={login}['access_token']))"
            solution.insert(len(solution) - 1, program)
        for step in solution:
            state = engine.act(step)
            assert not state.info["execution_failed"], state.text
        assert not state.won, task_id


@pytest.mark.original
def test_a_root_is_what_appworld_reads(appworld_root: Path, opened) -> None:
    data = appworld_root / "data"
    tasks = {path.name for path in (data / "tasks").iterdir()}
    assert tasks == {
        line
        for split in SPLITS
        for line in (data / "datasets" / f"{split}.txt").read_text().split()
    }
    assert len(list((data / "base_dbs").glob("*.db"))) == 12
    engine = opened().engine()
    engine.start(min(tasks))
    apps = engine.act("print(apis.api_docs.show_app_descriptions())").text
    assert '"name": "spotify"' in apps
    assert '"name": "todoist"' in apps


@pytest.mark.original
@pytest.mark.slow
def test_the_same_seed_gives_the_same_files(
    appworld_python: str, tmp_path: Path
) -> None:
    roots = [tmp_path / "first", tmp_path / "second in memory"]
    for root in roots:
        write_root(root, appworld_python, seed=3, tasks=2)
    contents = [
        {
            str(path.relative_to(root)): content(path)
            for path in root.rglob("*")
            if path.is_file()
        }
        for root in roots
    ]
    assert contents[0].keys() == contents[1].keys()
    assert [
        name for name in contents[0] if contents[0][name] != contents[1][name]
    ] == []


def content(path: Path) -> object:
    """Return a file's content; of a database, its dump."""
    if path.suffix != ".db":
        return path.read_bytes()
    with sqlite3.connect(path) as database:
        return list(database.iterdump())
