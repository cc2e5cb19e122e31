"""Evaluations against a server that fails: what is printed, what is recorded, and how they are repaired."""

import dataclasses
import json
import re

import pytest
from chat_server import Api, by_seed
from command import finished

from hgpo_datasets import scan_steps, verify
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.evaluation.summary import NAME as SUMMARY
from hgpo_train.rollout.sessions import NAME as SESSIONS
from hgpo_train.rollout.sessions import read_sessions

ENVIRONMENT = [
    "--env",
    "doors_env:HGPO-Test/Doors-v0",
    "--env-option",
    "count=400",
    "--max-steps",
    "20",
]
DOWN = (500, {"error": {"message": "the GPU is gone"}}, {})


def counted(body, attempt=0):
    """Reply as `by_seed`, with the number of tokens: 10 for every prompt, 4 for every response."""
    status, reply = by_seed(body)
    return status, {
        **reply,
        "usage": {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14},
    }


def run(url, out, *more, model="tiny", options=()):
    given = [f"base_url={url}", "retries=0", "timeout_s=20", *options]
    words = [word for option in given for word in ("--policy-option", option)]
    policy = ["--policy", f"openai:{model}", *words]
    return finished(
        "eval",
        *ENVIRONMENT,
        "--split",
        "test",
        "--seeds",
        "1,2",
        *policy,
        "--out",
        out,
        *more,
    )


def rows(out):
    assert verify(out).ok
    return (
        scan_steps(out)
        .drop("run", "policy_s", "environment_s")
        .sort("trajectory", "step")
        .collect()
    )


def summary(out):
    return json.loads((out / SUMMARY).read_text())


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    out = tmp_path_factory.mktemp("sound") / "run"
    with Api() as api:
        api.answer = counted
        code, printed, errors = run(api.url, out)
    assert code == 0, errors
    assert "Wilson" in printed
    return out


@pytest.mark.slow
def test_an_evaluation_that_failed_is_repaired_on_another_port_with_another_key(
    sound, tmp_path, monkeypatch
):
    """The server dies half-way and comes back elsewhere; the rows are those of an evaluation that was never broken."""
    out = tmp_path / "run"
    with Api() as api:
        asked = iter(range(10**9))
        api.answer = lambda body, _: counted(body) if next(asked) < 12 else DOWN
        code, _, errors = run(api.url, out, "--slots", "2")
        first = api.url
    assert code == 1
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert "× PolicyFailed: HTTP 500: the GPU is gone" in line
    # at the end, or after failures in a row
    assert re.search("[Rr]un (it|the same command) again", line)
    broken = summary(out)
    assert not broken["complete"]
    assert broken["episodes"]["failed"] >= 3
    assert broken["failures"][0]["reason"] == "PolicyFailed: HTTP 500: the GPU is gone"
    assert read_sessions(out)[0].ended == "failed"

    monkeypatch.setenv("OPENAI_API_KEY", "sk-another-key-of-the-test")
    with Api() as api:
        api.answer = counted
        assert api.url != first
        options = ("retries=3", "timeout_s=30", "concurrency=2")
        code, printed, errors = run(api.url, out, options=options)
        assert code == 0, errors
        assert f"was played with {first} and is now resumed with {api.url}" in errors
        before = len(api.bodies)
        assert run(api.url, out)[0] == 0  # nothing is left to play
        assert len(api.bodies) == before
        assert [one.endpoint for one in read_sessions(out)] == [first, api.url, api.url]
    assert rows(out).equals(rows(sound))
    assert episode_table(scan_steps(out)).equals(episode_table(scan_steps(sound)))
    for key in ("results", "episodes", "complete", "policy"):
        assert summary(out)[key] == summary(sound)[key]
    for file in (SUMMARY, SESSIONS):
        assert "sk-another-key" not in (out / file).read_text()
    assert "Wilson" in printed


@pytest.mark.slow
def test_the_summary_contains_what_was_printed_and_its_tokens(sound):
    told = summary(sound)
    steps = scan_steps(sound).collect()
    (everything, *_) = evaluation_reports(episode_table(steps.lazy()))
    assert told["format"] == "hgpo summary 2"
    assert told["results"][0] == json.loads(json.dumps(dataclasses.asdict(everything)))
    assert told["episodes"] == {
        "played": 8,
        "solved": int(steps["won"].sum()),
        "failed": 0,
    }
    assert told["tokens"] == {"prompt": 10 * len(steps), "response": 4 * len(steps)}
    assert told["wall_s"] > 0
    assert (told["complete"], told["seeds"], told["failures"]) == (True, [1, 2], [])
    assert told["policy"] == {"name": "openai:tiny", "temperature": 0.4}
    assert {"hgpo", "python"} <= told["versions"].keys()


@pytest.mark.slow
def test_a_small_evaluation_stops_after_few_failures(tmp_path):
    """8 episodes: the second seed, and most of the first, are not tried."""
    for number, reply in enumerate([DOWN, "cut", (200, b"<html>")]):
        with Api() as api:
            api.answer = lambda *_, reply=reply: reply
            code, printed, errors = run(api.url, tmp_path / f"{number}", "--slots", "1")
            asked = len(api.bodies)
        assert (code, asked, printed) == (1, 3, "")
        assert errors.startswith(
            "error: stopped after 3 failures in a row: 3 of 3 rollouts failed (100%): 3 × PolicyF"
        )
        assert errors.count("\n") == 1
        assert summary(tmp_path / f"{number}")["results"] == []


@pytest.mark.slow
def test_the_tokens_of_replies_without_counts_are_unknown(tmp_path):
    with Api() as api:
        api.answer = by_seed
        assert run(api.url, tmp_path / "run")[0] == 0
    assert summary(tmp_path / "run")["tokens"] == {"prompt": None, "response": None}
