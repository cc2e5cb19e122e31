"""What the viewer's server refuses, and runs that are hostile, damaged or deleted while it shows them."""

import json
import os
import re
import shutil
from functools import partial

import pytest
import xxhash
from viewed_app import TOKEN, client_of

from hgpo_datasets import scan_steps
from hgpo_train.local_server import is_known_host
from hgpo_train.view.app import HEADERS


def test_every_answer_has_the_policy(small_run):
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


def test_addresses_hosts_and_methods_without_an_answer(small_run):
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
def test_wrong_requests_are_one_line(small_run, path, line):
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
def test_a_damaged_file_is_one_line_with_its_place(small_run, path):
    client = client_of(small_run)
    file = small_run / "steps/steps-000000.parquet"
    data = bytearray(file.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    file.write_bytes(data)
    answer = client.get(f"/{TOKEN}/api/runs/0/{path}")
    assert answer.status_code == 400
    assert re.match(rf"{small_run}/steps.* cannot be read: ", answer.json()["error"])


def test_a_run_that_is_deleted_is_missing_alone(small_run, six_tasks):
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


def test_hostile_texts_are_json(hostile_run):
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


def change_manifest(run, name, value):
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
def test_a_hostile_manifest_disables_no_list(small_run, six_tasks, training):
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
def test_a_damaged_manifest_is_an_entry_that_says_so(small_run, training_run, damage):
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
def test_damaged_lines_of_metrics_are_left_out(training_run, six_tasks, metrics):
    good = b'{"iteration": 7, "loss": 0.5}\n'
    (training_run / "metrics.jsonl").write_bytes(metrics + b"\n" + good)
    client = client_of(training_run, six_tasks)
    assert client.get(f"/{TOKEN}/api/runs").status_code == 200
    curves = client.get(f"/{TOKEN}/api/runs/0/curves").json()
    assert curves["metrics_iterations"][-1] == 7
    assert curves["metrics"]["loss"][-1] == 0.5
