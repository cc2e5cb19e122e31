"""The server's addresses: what they answer, and what they refuse."""

import base64
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import xxhash
from polars.testing import assert_series_equal
from viewed import HOSTILE, small_rows

pytest.importorskip("starlette")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette prefers another client
    from starlette.testclient import TestClient

from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute, names
from hgpo_train.local_server import is_known_host
from hgpo_train.proportions import paired_interval, wilson_interval
from hgpo_train.rollout import collect
from hgpo_train.view.app import HEADERS, make_app
from hgpo_train.view.sources import open_sources

TOKEN = "the-token"
Get = Callable[..., Any]


def client_of(*runs: Path) -> TestClient:
    return TestClient(
        make_app(open_sources(map(str, runs)), TOKEN), base_url="http://127.0.0.1:8000"
    )


@pytest.fixture
def get() -> Callable[..., Get]:
    """Return a function of runs, which returns a function of an address: its document."""

    def of(*runs: Path) -> Get:
        client = client_of(*runs)

        def document(path: str, **query: Any) -> Any:
            answer = client.get(f"/{TOKEN}/api/{path}", params=query)
            assert answer.status_code == 200, answer.text
            return answer.json()

        return document

    return of


# ------------------------------------------------------------------------------------------------------- documents


def test_the_overview_counts_a_small_run(small_run, get) -> None:
    seen = get(small_run)("runs/0/overview")
    total = seen["total"]
    assert (total["tasks"], seen["groups"], total["episodes"], total["steps"]) == (
        2,
        2,
        8,
        22,
    )
    assert seen["config"] == {"policy": "written by hand"}
    assert (total["aborted"], total["success"]) == (2, 4 / 6)
    assert total["valid"] == 16 / 18  # of the steps of rollouts that were not aborted
    assert total["intervals"]["mean_length"] is None, "two tasks are too few"
    low, high = total["intervals"]["success"]
    assert 0 < low < 4 / 6 < high < 1  # two tasks: wide
    assert high - low > 0.5
    assert [kind["task_type"] for kind in seen["task_types"]] == ["find", None]
    assert seen["outcomes"] == {"none": 0, "partly": 2, "all": 0}
    assert total["bounds"] == [4 / 8, 6 / 8], "two rollouts aborted: lost, or won"
    assert sum(row["aborted"] for row in seen["lengths"]) == 2
    assert total["admissible"] is None, "the table does not say"


def test_a_run_of_aborted_rollouts_alone_has_documents(tmp_path, get) -> None:
    step = {
        "task_id": "a",
        "step": 0,
        "state": "s",
        "action": "go",
        "reward": 0.0,
        "aborted": True,
        "error": "lost",
    }
    rows = [{**step, "trajectory": name} for name in "xy"]
    with StepWriter(tmp_path / "run") as writer:
        writer.add_group(rows)
    document = get(tmp_path / "run")
    assert document("runs/0/overview")["total"]["bounds"] == [0, 1]
    for query in ({}, {"chance": "1"}):
        (sentence,) = document("runs/0/levels", **query)["sentences"]
        assert (
            sentence == "Every rollout was aborted (2), so there is nothing to compare."
        )


def test_rollouts_are_columns(small_run, get) -> None:
    """Each task has w and y, which won, x, which lost with an invalid action, and z, which was aborted after two."""
    seen = get(small_run)("runs/0/rollouts")
    assert seen["total"] == 8
    assert [(task["task_id"], task["task_type"]) for task in seen["tasks"]] == [
        ("alpha", "find"),
        ("omega", None),
    ]
    columns = seen["columns"]
    assert columns["trajectory"] == [
        f"{task}/0/{name}" for task in ("alpha", "omega") for name in "wxyz"
    ]
    assert columns["task"] == columns["number"] == [0] * 4 + [1] * 4
    assert columns["length"] == [3, 3, 3, 2] * 2
    assert columns["episode_return"] == [1, 0, 1, 0] * 2
    assert columns["invalid"] == [0, 1, 0, 0] * 2
    assert columns["aborted"] == [False, False, False, True] * 2
    assert columns["row"] == [0, 3, 6, 9, 11, 14, 17, 20]


def test_results_of_a_selection_are_those_of_the_commands(six_tasks, get) -> None:
    """Of w and x of every task: w always wins, x wins in tasks 1, 3 and 5."""
    bits = base64.urlsafe_b64encode(bytes([0b00110011] * 3)).decode()
    seen = get(six_tasks)("runs/0/results", rows=bits)
    assert (seen["episodes"], seen["tasks"], seen["success"]) == (12, 6, 0.75)
    assert seen["intervals"]["success"] == pytest.approx(wilson_interval(0.75, 6))


def test_what_the_steps_of_a_rollout_give(trained_run, token_run, get) -> None:
    """Advantages of training are 0.25, 1.25, 2.25 in alpha of iterations 0 and 1, without z, which was aborted."""
    document = get(trained_run, token_run)
    spread = document("runs/0/estimates", estimator="trained")["spread"]
    assert spread == [2.0, 2.0, 2.0, *[None] * 5] * 2 + [None] * 8
    table = scan_steps(trained_run).collect()
    advantages = (
        compute(table, "grpo").collect().filter(trajectory="omega/0/w")["advantage"]
    )
    assert (
        document("runs/0/estimates", estimator="grpo")["spread"][4]
        == advantages.max() - advantages.min()
    )
    tokens = (
        scan_steps(token_run)
        .select(pl.col("response_token_ids").list.len())
        .collect()
        .to_series()
        .to_list()
    )
    assert document("runs/1/estimates")["tokens"] == tokens


def test_two_runs_on_their_common_tasks(small_run, six_tasks, tmp_path, get) -> None:
    """In the other run, x wins the task as well."""
    rows = [
        row | {"won": row["won"] or row["trajectory"][-1] == "x"}
        for row in small_rows("omega")
    ]
    with StepWriter(tmp_path / "other") as writer:
        writer.add_group(rows[:9])
    document = get(small_run, tmp_path / "other", six_tasks)
    seen = document("runs/0/against/1")
    assert seen["total"] == 1
    difference = seen["differences"]["success"]
    assert [difference["low"], difference["high"]] == pytest.approx(
        paired_interval([1 / 3])
    )
    assert difference["difference"] == pytest.approx(1 / 3)
    assert (difference["tasks"], difference["better"], difference["worse"]) == (1, 1, 0)
    ((ours, theirs),) = (task["sides"] for task in seen["tasks"])
    assert (ours["success"], theirs["success"], ours["number"], theirs["number"]) == (
        pytest.approx(2 / 3),
        1.0,
        1,
        0,
    )
    assert document("runs/0/against/2") == {"differences": {}, "total": 0, "tasks": []}
    same = document("runs/2/against/2")["differences"]["success"]
    assert (same["low"], same["high"]) == paired_interval([0.0] * 6)
    assert (same["difference"], same["tasks"], same["better"], same["worse"]) == (
        0,
        6,
        0,
        0,
    )


def test_a_group_is_its_rows(rich_run, get) -> None:
    """Every row of the table, decoded from the documents again."""
    document = get(rich_run)
    table = scan_steps(rich_run).collect()
    row = 0
    for number in range(document("runs/0/overview")["groups"]):
        seen = document(f"runs/0/groups/{number}")
        steps = seen["steps"]
        members = seen["trajectories"]
        rows = table.slice(row, seen["rows"])
        assert seen["row"] == row
        assert [members[place]["trajectory"] for place in steps["trajectory"]] == rows[
            "trajectory"
        ].to_list()
        assert [seen["states"][place] for place in steps["state"]] == rows[
            "state"
        ].to_list()
        assert [seen["actions"][place] for place in steps["action"]] == rows[
            "action"
        ].to_list()
        nexts = [
            None if place is None else seen["states"][place] for place in steps["next"]
        ]
        following = pl.coalesce(
            "next_state", pl.col("state").shift(-1).over("trajectory")
        )
        assert nexts == rows.select(next=following)["next"].to_list()
        for kind, stem in (("states", "history"), ("states_actions", "context")):
            for k, numbers in enumerate(seen["contexts"][kind]):
                hashes = rows[f"{stem}_hash_{k}"].to_list()
                assert [number is None for number in numbers] == [
                    one is None for one in hashes
                ]
                assert (
                    len(set(zip(numbers, hashes, strict=True)))
                    == len(set(numbers))
                    == len(set(hashes))
                )
        row += seen["rows"]
    assert row == table.height


@pytest.mark.parametrize(
    "env_id",
    ["HGPO/ALFWorld-v0", pytest.param("HGPO/WebShop-v0", marks=pytest.mark.slow)],
)
def test_a_step_is_its_row(rich_run, get, tmp_path: Path, env_id: str) -> None:
    run = rich_run if env_id == "HGPO/ALFWorld-v0" else tmp_path / "run"
    if run != rich_run:
        collect(env_id, "random", run, tasks=3)
    document = get(run)
    table = scan_steps(run).collect()
    documents = [
        step
        for row in range(0, table.height, 3)
        for step in document(f"runs/0/steps/{row}/{min(3, table.height - row)}")
    ]
    for seen, row in zip(documents, table.iter_rows(named=True), strict=True):
        for name in (
            "trajectory",
            "step",
            "state",
            "action",
            "prompt",
            "response",
            "admissible_actions",
        ):
            assert seen[name] == row[name]
        assert seen["tokens"] == row["response_token_ids"]
        assert seen["logprobs"] == pytest.approx(row["response_logprobs"])
        assert (seen["why_invalid"] is None) == row["action_valid"]
        # WebShop's list of actions has no searches
        assert seen["admissible"] == row["action_admissible"]


@pytest.mark.parametrize("estimator", names())
def test_advantages_are_those_of_the_library(rich_run, get, estimator: str) -> None:
    """Of one group by itself, also where the estimator needs all groups."""
    expected = compute(scan_steps(rich_run), estimator, gamma=0.5).collect()
    document = get(rich_run)
    for number in (0, 4):
        group = document(f"runs/0/groups/{number}")
        seen = document(
            f"runs/0/groups/{number}/estimates", estimator=estimator, set="gamma=0.5"
        )
        assert seen["parameters"]["gamma"] == 0.5
        rows = expected.slice(group["row"], group["rows"])
        assert_series_equal(
            pl.Series("advantage", seen["columns"]["advantage"]), rows["advantage"]
        )


def test_search_finds_texts(small_run, get) -> None:
    document = get(small_run)
    seen = document("runs/0/search", text="ROOM A")
    assert (seen["steps"], seen["rollouts"]) == (6, [0, 3, 9, 11, 14, 20])
    assert seen["hits"][0] == {"row": 0, "step": 0, "column": "state", "snippet": "room a",
                               "trajectory": "alpha/0/w"}  # fmt: skip
    assert document("runs/0/search", text="hung up")["hits"][0]["column"] == "error"
    assert document("runs/0/search", text=".*")["steps"] == 0


def test_curves_of_a_training_run(training_run, get) -> None:
    document = get(training_run)
    assert document("runs")["runs"][0]["training"]
    seen = document("runs/0/curves")
    assert [row["iteration"] for row in seen["results"]] == [0, 1, 2]
    assert [row["success"] for row in seen["results"]] == [2 / 3] * 3
    assert seen["metrics_iterations"] == [1, 2]  # the last line is being written
    assert seen["metrics"]["loss/policy"] == [1.0, 0.5]
    levels = document("runs/0/levels")
    assert levels["by_iteration"]["iterations"] == [0, 1, 2]
    assert levels["levels"][0]["shared"] == 1.0


def test_a_run_is_followed_while_it_is_written(tmp_path, get) -> None:
    with StepWriter(tmp_path / "live") as writer:
        writer.add_group(small_rows("alpha"))
        writer.commit()
        document = get(tmp_path / "live")
        assert document("runs")["runs"][0]["live"]
        assert document("runs/0/rollouts")["total"] == 4
        (before,) = document("versions")
        writer.add_group(small_rows("omega"))
        assert document("versions") == [before]
        writer.commit()
        assert document("versions") != [before]
        assert document("runs/0/rollouts")["total"] == 8
        assert document("runs/0/groups/1")["task_id"] == "omega"
    assert not document("runs")["runs"][0]["live"]


def test_an_evaluation_and_its_training_are_linked(training_run, get) -> None:
    """One of a checkpoint elsewhere; and those in and beside the folder, which begin when the page is open."""
    checkpoint = {
        "policy": {"name": f"transformers:{training_run}/checkpoints/000002"},
        "evaluation": True,
    }
    later = training_run.parent / "later"
    with StepWriter(later, config=checkpoint) as writer:
        writer.add_group(small_rows("omega"))
    document = get(training_run, later)
    before = document("versions")
    for name, config in (
        ("training/evaluation", {}),
        ("beside", checkpoint),
        ("other", {"evaluation": True}),
    ):
        with StepWriter(training_run.parent / name, config=config) as writer:
            writer.add_group(small_rows("omega"))
    assert document("versions")[:2] == before
    for runs in (document("runs")["runs"], get(training_run, later)("runs")["runs"]):
        trainers = {run["name"]: run["trainer"] for run in runs}
        assert trainers == {
            "training": None,
            "later": "training",
            "training/evaluation": "training",
            "beside": "training",
        }
    assert document("runs/2/overview")["total"]["episodes"] == 4


# ----------------------------------------------------------------------------------------------------------- notes


def save(client: TestClient, origin: str = "http://127.0.0.1:8000", **note: Any) -> Any:
    return client.post(
        f"/{TOKEN}/api/runs/0/notes", json=note, headers={"origin": origin}
    )


def test_a_note_is_kept_beside_the_run(small_run) -> None:
    client = client_of(small_run)
    (before,) = client.get(f"/{TOKEN}/api/versions").json()
    for name, score, text in (
        ("x", 1.5, "<b>loops</b>"),
        ("w", None, "fine"),
        ("x", 2.0, "loops\n\u202e"),
    ):
        save(
            client, trajectory=f"alpha/0/{name}", score=score, note=text
        ).raise_for_status()
    assert client.get(f"/{TOKEN}/api/versions").json() != [before]
    notes = client.get(f"/{TOKEN}/api/runs/0/notes").json()
    assert [(note["trajectory"], note["score"], note["note"]) for note in notes] == [
        ("alpha/0/w", None, "fine"),
        ("alpha/0/x", 2.0, "loops\n\u202e"),
    ]
    assert verify(small_run).ok
    joined = scan_steps(small_run).join(
        pl.scan_ndjson(small_run / "notes.jsonl"), on=["run", "trajectory"]
    )
    assert joined.select(pl.col("note").n_unique(), pl.len()).collect().row(0) == (2, 6)
    for name in "wx":
        save(client, trajectory=f"alpha/0/{name}").raise_for_status()
    assert (small_run / "notes.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("note", "line"),
    [
        ({"trajectory": "nobody"}, "no trajectory 'nobody'"),
        ({"note": "of nothing"}, "missing required field `trajectory`"),
        ({"trajectory": "alpha/0/w", "score": "much"}, "Expected `float | null`"),
        ({"trajectory": "alpha/0/w", "note": "x" * 10_001}, "length <= 10000"),
        ({"trajectory": "alpha/0/w", "note": "x" * 200_000}, "at most 131,072 bytes"),
        ({"trajectory": "alpha/0/w", "path": "/etc"}, "unknown field `path`"),
    ],
)
def test_what_is_no_note_is_refused(small_run, note: dict[str, Any], line: str) -> None:
    answer = save(client_of(small_run), **note)
    assert (answer.status_code, line in answer.json()["error"]) == (400, True), (
        answer.text
    )
    assert not (small_run / "notes.jsonl").exists()


@pytest.mark.parametrize(
    "origin",
    ["", "null", "http://evil.example", "http://127.0.0.1:8001", "http://127.0.0.1"],
)
def test_another_sites_page_saves_no_note(small_run, origin: str) -> None:
    assert (
        save(
            client_of(small_run), origin, trajectory="alpha/0/w", note="theirs"
        ).status_code
        == 403
    )
    assert not (small_run / "notes.jsonl").exists()


def test_damaged_notes_are_kept_and_say_so(small_run) -> None:
    client = client_of(small_run)
    (small_run / "notes.jsonl").write_text('{"trajectory": "alpha/0/w"}\n{"traj')
    for answer in (
        client.get(f"/{TOKEN}/api/runs/0/notes"),
        save(client, trajectory="alpha/0/x", note="new"),
    ):
        assert answer.status_code == 400
        assert "line 2 is no note" in answer.json()["error"]
    assert client.get(f"/{TOKEN}/api/runs/0/rollouts").status_code == 200


def test_long_texts_are_cut(hostile_run, get) -> None:
    document = get(hostile_run)
    large = HOSTILE["large"]
    states = document("runs/0/groups/0")["states"]
    assert {"cut": large[:20_000], "length": len(large)} in states
    row = 2 * list(HOSTILE).index("large") + 1
    assert document(f"runs/0/steps/{row}/1")[0]["prompt"]["length"] == len(large)


# ----------------------------------------------------------------------------------------------------------- rules


def test_every_answer_has_the_policy(small_run) -> None:
    client = client_of(small_run)
    for path in (
        f"/{TOKEN}/",
        f"/{TOKEN}/app.js",
        f"/{TOKEN}/api/runs",
        f"/{TOKEN}/nothing",
        "/wrong/",
        f"/{TOKEN}",
    ):
        answer = client.get(path, follow_redirects=False)
        assert HEADERS.items() <= dict(answer.headers).items(), path
        assert "unsafe" not in answer.headers["content-security-policy"]


def test_addresses_hosts_and_methods_without_an_answer(small_run) -> None:
    client = client_of(small_run)
    refused = (
        "/",
        "/api/runs",
        "/the-toke/api/runs",
        "/the-tokenn/",
        "/the-token%00/",
        "/the-token/../etc/passwd",
    )
    absent = [
        "%2e%2e/%2e%2e/etc/passwd",
        "static/index.html",
        "page.py",
        f"api/runs/{'9' * 5000}/overview",
    ]
    absent += [
        f"api/runs/0/{part}/{'9' * 5000}"
        for part in ("groups", "against", "steps", "steps/0")
    ]
    for path, status in (
        *((path, 403) for path in refused),
        *((f"/the-token/{path}", 404) for path in absent),
    ):
        assert client.get(path, follow_redirects=False).status_code == status, path
    for host in (
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil",
    ):
        answer = client.get(f"/{TOKEN}/api/runs", headers={"host": host})
        assert (answer.status_code, answer.text) == (400, "unknown host")
    for host in (
        "localhost",
        "LOCALHOST:9",
        "127.0.0.1",
        "[::1]:9",
        "10.1.2.3:9",
        "here:8",
    ):
        assert is_known_host(host, frozenset({"localhost", "here"}))
    assert (
        client.post(
            f"/{TOKEN}/api/runs", headers={"origin": "http://127.0.0.1:8000"}
        ).status_code
        == 405
    )
    for method in ("put", "delete", "patch", "options"):
        assert getattr(client, method)(f"/{TOKEN}/api/runs").status_code == 405


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("runs/1/overview", "run: expected a number below 1, received 1"),
        ("runs/0/groups/2", "group: expected a number from 0 to 1, received 2"),
        ("runs/0/steps/22/1", "row: expected a number from 0 to 21, received 22"),
        ("runs/0/steps/0/51", "steps: expected a number from 1 to 50, received 51"),
        (
            f"runs/0/groups/0/estimates?set=gamma={'9' * 5000}",
            "parameter gamma: expected float",
        ),
        ("runs/0/results?rows=", "expected at least one rollout"),
        ("runs/0/results?rows=é", "expected bits in base64"),
        (
            "runs/0/estimates?set=history_length=99",
            "expected at most 8, the depth of the stored contexts",
        ),
        (
            "runs/0/estimates?estimator=trained",
            "expected the advantages of a training run",
        ),
        ("runs/0/search?text=", "expected what to search for"),
        (
            "runs/0/groups/0/estimates?estimator=os:system",
            "unknown estimator 'os:system'",
        ),
        (
            "runs/0/groups/0/estimates?set=state_key=os:system",
            "unknown state key 'os:system'",
        ),
        (
            "runs/0/groups/0/estimates?set=alpha=much",
            "parameter alpha: expected float, received 'much'",
        ),
        (
            "runs/0/groups/0/estimates?set=history_length=99",
            "expected at most 8, the depth of the stored contexts",
        ),
        ("runs/0/groups/0/estimates?set=K", "expected name=value, received 'K'"),
    ],
)
def test_wrong_requests_are_one_line(small_run, path: str, line: str) -> None:
    answer = client_of(small_run).get(f"/{TOKEN}/api/{path}")
    assert answer.status_code == 400
    (said,) = answer.json().values()
    assert line in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "path",
    [
        "groups/0",
        "groups/0/estimates",
        "groups/0/estimates?estimator=reinforce_pp",
        "search?text=room",
    ],
)
def test_a_damaged_file_is_one_line_with_its_place(small_run, path: str) -> None:
    client = client_of(small_run)
    file = small_run / "steps/steps-000000.parquet"
    data = bytearray(file.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    file.write_bytes(data)
    answer = client.get(f"/{TOKEN}/api/runs/0/{path}")
    assert answer.status_code == 400
    assert re.match(rf"{small_run}/steps.* cannot be read: ", answer.json()["error"])


def test_a_run_that_is_deleted_is_missing_alone(small_run, six_tasks) -> None:
    """Before or after its rows were read; and as a single file."""
    file = six_tasks.parent / "table.parquet"
    scan_steps(six_tasks).collect().write_parquet(file)
    client = client_of(small_run, six_tasks, file)
    get = partial(client.get, follow_redirects=False)
    get(f"/{TOKEN}/api/runs/1/overview").raise_for_status()
    before = get(f"/{TOKEN}/api/versions").json()
    shutil.rmtree(six_tasks)
    file.unlink()
    assert [run["name"] for run in get(f"/{TOKEN}/api/runs").json()["runs"]] == [
        "small",
        "six",
        "table.parquet",
    ]
    after = get(f"/{TOKEN}/api/versions").json()
    # of the table, a copy
    assert [one == other for one, other in zip(before, after, strict=True)] == [
        True,
        False,
        True,
    ]
    for path, status in (
        ("0/overview", 200),
        ("1/overview", 400),
        ("1/rollouts", 400),
        ("0/against/1", 400),
    ):
        answer = get(f"/{TOKEN}/api/runs/{path}")
        assert (answer.status_code, "\n" in answer.text) == (status, False), answer.text


def test_hostile_texts_are_json(hostile_run) -> None:
    """Nothing of a run is ever sent as a page."""
    client = client_of(hostile_run)
    for path in ("rollouts", "groups/0", "steps/1/1", "overview", "search?text=script"):
        answer = client.get(f"/{TOKEN}/api/runs/0/{path}")
        assert answer.headers["content-type"] == "application/json"
        json.loads(answer.content)


HUGE = "9" * 30
HOSTILE_TRAINING: dict[str, str] = {
    "a list": "[1]",
    "a text": '"hgpo"',
    "an estimator that is a list": '{"advantage.estimator": ["hgpo"]}',
    "parameters that are a text": '{"advantage.estimator": "hgpo", "advantage.parameters": "alpha"}',
    "a huge parameter": f'{{"advantage.estimator": "hgpo", "advantage.parameters": {{"alpha": {HUGE}}}}}',
    "nested parameters": '{"advantage.estimator": "hgpo", "advantage.parameters": {"state_key": [{"a": 1}]}}',
    "deep": '{"a": ' * 300 + "1" + "}" * 300,
    "markup": '{"advantage.estimator": "<script>alert(1)</script>\\u0000\\u202e"}',
    "half a character": '{"advantage.estimator": "\\ud800"}',
}
HOSTILE_METRICS: dict[str, bytes] = {
    "no iteration": b'{"loss": 1}',
    "iterations of several types": b'{"iteration": null}\n{"iteration": "a"}\n{"iteration": 1}\n{"iteration": 1.5}',
    "huge": f'{{"iteration": 1, "x": {HUGE}}}\n{{"iteration": {HUGE}}}\n{{"iteration": 2, "x": 1e400}}'.encode(),
    "not numbers": b'{"iteration": 1, "loss": NaN}\n{"iteration": 1, "loss": {"a": []}}\n[]\nnull',
    "deep": b'{"iteration": ' + b"[" * 100_000,
    "not UTF-8": b'{"iteration": 1, "\xff": 1}\n\xff\xfe',
    "markup": b'{"iteration": 1, "<script>\\u0000": 1}',
}  # fmt: skip


def change_manifest(run: Path, name: str, value: str) -> None:
    """Write a value of the configuration into a manifest, with the checks of its lines, as its author could."""
    previous = ""
    lines = []
    for line in (run / "manifest.jsonl").read_bytes().splitlines():
        values = {
            name: item for name, item in json.loads(line).items() if name != "check"
        }
        if "config" in values:
            values["config"] = {name: "VALUE"}
        text = json.dumps(values, sort_keys=True, separators=(",", ":")).replace(
            '"VALUE"', value
        )
        check = xxhash.xxh3_64_hexdigest(previous.encode() + text.encode())
        lines.append(f'{{"check":"{check}",{text[1:]}')
        previous = check
    (run / "manifest.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.slow
@pytest.mark.parametrize("training", HOSTILE_TRAINING.values(), ids=HOSTILE_TRAINING)
def test_a_hostile_manifest_disables_no_list(
    small_run, six_tasks, training: str
) -> None:
    """The run is listed; what of it can be read is shown, and the rest is one line."""
    change_manifest(small_run, "training", training)
    client = client_of(small_run, six_tasks)
    answer = client.get(f"/{TOKEN}/api/runs")
    assert answer.status_code == 200
    first, second = answer.json()["runs"]
    assert (first["name"], second["name"], second["problem"]) == ("small", "six", None)
    for path in ("overview", "curves", "levels", "rollouts", "steps/0/1"):
        shown = client.get(f"/{TOKEN}/api/runs/0/{path}")
        assert shown.status_code == 200 or (
            shown.status_code == 400 and "\n" not in shown.json()["error"]
        )
        assert client.get(f"/{TOKEN}/api/runs/1/{path}").status_code == 200


@pytest.mark.parametrize(
    "damage", [b"", b"\xff\xfe\n", b"[" * 100_000, b'{"run": 1}\n', b"null\n", None]
)
def test_a_damaged_manifest_is_an_entry_that_says_so(
    small_run, training_run, damage: bytes | None
) -> None:
    """Also beside a training run, whose policy it may have played."""
    client = client_of(small_run, training_run)
    (small_run / "manifest.jsonl").unlink()
    if damage is None:
        os.mkfifo(small_run / "manifest.jsonl")
    else:
        (small_run / "manifest.jsonl").write_bytes(damage)
    first, second, *_ = client.get(f"/{TOKEN}/api/runs").json()["runs"]
    assert "manifest" in first["problem"] or "no committed rows" in first["problem"]
    assert second["problem"] is None


@pytest.mark.parametrize("metrics", HOSTILE_METRICS.values(), ids=HOSTILE_METRICS)
def test_damaged_lines_of_metrics_are_left_out(
    training_run, six_tasks, metrics: bytes
) -> None:
    good = b'{"iteration": 7, "loss": 0.5}\n'
    (training_run / "metrics.jsonl").write_bytes(metrics + b"\n" + good)
    client = client_of(training_run, six_tasks)
    assert client.get(f"/{TOKEN}/api/runs").status_code == 200
    curves = client.get(f"/{TOKEN}/api/runs/0/curves").json()
    assert curves["metrics_iterations"][-1] == 7
    assert curves["metrics"]["loss"][-1] == 0.5


def test_a_run_before_its_first_commit_is_waited_for(tmp_path) -> None:
    with StepWriter(tmp_path / "live") as writer:
        with pytest.raises(InputError, match="no committed rows"):
            open_sources([str(tmp_path / "live")])
        app = make_app(open_sources([str(tmp_path / "live")], wait=True), TOKEN)
        client = TestClient(app, base_url="http://127.0.0.1:8000")
        (before,) = client.get(f"/{TOKEN}/api/runs").json()["runs"]
        assert "no committed rows" in before["problem"]
        writer.add_group(small_rows("alpha"))
    (after,) = client.get(f"/{TOKEN}/api/runs").json()["runs"]
    assert after["problem"] is None
    assert client.get(f"/{TOKEN}/api/runs/0/overview").json()["groups"] == 1
