"""verifiers' own client evaluates HGPO's environments, in the Python of HGPO_VERIFIERS_PYTHON (.ci/verifiers)."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import polars as pl
import pytest
from chat_server import Api, completion

from hgpo_datasets import scan_steps, verify
from hgpo_envs.environment_spec import environment_spec, make_player
from hgpo_envs.episode import Episode
from hgpo_envs.task_sampling import task_stream
from hgpo_train.advantages import compute
from hgpo_train.rollout.env_handle import open_env

ROOT = Path(__file__).parents[3]
PLAYER = Path(__file__).parent / "verifiers_player.py"
WRONG = {"HGPO/ALFWorld-v0": "look", "HGPO/WebShop-v0": "search[nothing]"}

VARIABLES = {
    **os.environ,
    "KEY_OF_TEST": "x",
    "NO_PROXY": "127.0.0.1",
    "PYTHONPATH": os.pathsep.join(
        map(str, [ROOT / "integrations/verifiers", ROOT, ROOT / "datasets", Path(__file__).parent])
    ),
}


@pytest.fixture(scope="module")
def verifiers() -> str:
    """Return a Python that has verifiers 0.1 and this package."""
    python = os.environ.get("HGPO_VERIFIERS_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import verifiers; verifiers.MultiTurnEnv"], capture_output=True).returncode:
        pytest.skip("needs verifiers 0.1, or HGPO_VERIFIERS_PYTHON set to a Python that has it and hgpo")
    return python


def play(handle, task: str, name: str, *, well: bool) -> list[dict]:
    """Play a task here, as the expert or with one wrong action in each step: its rows."""
    episode = Episode(handle.shared, handle.settings)
    rows = []
    episode.start(task)
    spec = environment_spec(name)
    player = make_player("expert", spec.name)
    player.reset(episode.task, episode.state, episode.engine)
    while not episode.done:
        action = player.act(episode.state) if well else WRONG[name]
        row = {
            "state": episode.state.text,
            "prompt": episode.prompt(),
            "admissible_actions": list(episode.state.actions),
        }
        row["response"] = f"<think>so</think><{spec.action_tag}>{action}</{spec.action_tag}>"
        episode.act(row["response"])
        row |= {"action": episode.action, "action_valid": episode.action_valid, "reward": episode.state.reward}
        row |= {"score": episode.state.score, "won": episode.state.won}
        rows.append({**row, "terminated": episode.terminated, "truncated": episode.truncated})
    rows[-1]["next_state"] = episode.state.text
    return rows


def evaluate(python, name, answer, tasks, rollouts, run, **options):
    """Evaluate with a server's answers, and return the results."""
    with Api() as api:
        api.answer = answer
        done = subprocess.run(
            [python, str(PLAYER), api.url, name, str(tasks), str(rollouts), str(run), json.dumps(options)],
            capture_output=True,
            text=True,
            timeout=300,
            env=VARIABLES,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_an_evaluation_is_what_is_played_here(verifiers, name, tmp_path) -> None:
    handle = open_env(name, split="train", action_format="response")
    ids = list(islice(task_stream("shuffled", handle.tasks, 0), 3))
    good = {task: play(handle, task, name, well=True) for task in ids}
    bad = {task: play(handle, task, name, well=False) for task in ids}
    replies = {row["prompt"]: row["response"] for games in (bad, good) for rows in games.values() for row in rows}
    first = {rows[0]["prompt"]: rows[0]["response"] for rows in bad.values()}
    broken = good[ids[2]][0]["prompt"]

    def answer(body, attempt):
        system, asked = body["messages"]  # a fresh prompt each step, not a conversation
        assert system["content"] == "You are a player."
        prompt = asked["content"]
        if prompt == broken and asked_so_far.append(prompt) is None and len(asked_so_far) == 2:
            return 400, {"error": {"message": "no more tokens", "type": "invalid_request_error"}}, {}
        times[prompt] = times.get(prompt, 0) + 1
        return completion(first[prompt] if prompt in first and times[prompt] % 2 == 0 else replies[prompt])

    asked_so_far = []
    times = {}
    results = evaluate(verifiers, name, answer, 3, 2, tmp_path / "run")
    assert len(results) == 6
    for example, task in enumerate(ids):
        expected = sorted([good[task], bad[task]], key=len)
        members = sorted(
            (one for one in results if one["example_id"] == example and not one["failed"]),
            key=lambda one: len(one["steps"]),
        )
        if example == 2:
            assert len(members) == 1
            expected = (
                [good[task]] if members[0]["hgpo_steps"][0]["response"] == good[task][0]["response"] else [bad[task]]
            )
        for member, rows in zip(members, expected, strict=True):
            seen = [
                {column: row.get(column) for column in expected_row}
                for row, expected_row in zip(member["hgpo_steps"], rows, strict=True)
            ]
            assert seen == rows
            assert [step["reward"] for step in member["steps"]] == [row["reward"] for row in rows]
            assert member["reward"] == sum(row["reward"] for row in rows)
            assert member["metrics"]["won"] == float(rows[-1]["won"])
            assert member["stop_condition"] == "episode_ended"
    assert sum(one["failed"] for one in results) == 1
    _check_table(tmp_path / "run", results, name)


def _check_table(run, results, name) -> None:
    """The table is sound, and its advantages are those that verifiers' trainers see."""
    assert verify(run).ok
    steps = scan_steps(run).collect()
    assert set(steps["env_id"]) == {name}
    assert steps.height == sum(len(one["hgpo_steps"]) for one in results)
    assert steps.group_by("task_id", "group").agg(pl.col("trajectory").n_unique())["trajectory"].to_list() == [2, 2, 2]
    assert steps.filter(pl.col("aborted"))["error"].str.starts_with("PolicyFailed").all()
    assert steps["aborted"].sum() >= 1
    table = compute(steps, "hgpo").collect()
    stored = sorted(round(value, 9) for value in table["advantage"].fill_null(0.0))
    seen = [round(step["advantage"], 9) for one in results for step in one["steps"]]
    seen += [0.0] * (len(stored) - len(seen))  # rows of aborted rollouts without a step
    assert stored == pytest.approx(sorted(seen), abs=1e-8)
    assert any(abs(value) > 0.1 for value in seen)


def message(content: str | None, **parts: object) -> tuple[int, dict, dict]:
    """Return a server's reply with parts that it has separated from the text."""
    status, body = completion(content)
    body["choices"][0]["message"] |= parts
    return status, body, {}


def call(name: str, arguments: str) -> dict:
    return {"id": "one", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.slow
def test_a_conversation_has_the_earlier_messages_as_they_were_sent(verifiers, tmp_path) -> None:
    """Reasoning that a server separates is part of the response, and goes back apart, as with `openai:`."""
    asked = []

    def answer(body, attempt):
        asked.append([(one["role"], one["content"], one.get("reasoning_content")) for one in body["messages"]])
        return message("<action>look</action>", reasoning_content="Where am I?")

    options = {"prompt_style": "chat", "max_steps": 3}
    (result,) = evaluate(verifiers, "HGPO/ALFWorld-v0", answer, 1, 1, tmp_path / "run", **options)
    rows = result["hgpo_steps"]
    response = "<think>\nWhere am I?\n</think>\n\n<action>look</action>"
    assert [(row["response"], row["action"], row["action_valid"]) for row in rows] == [(response, "look", True)] * 3
    turns = []
    for row in rows:
        turns.append(("user", row["prompt"], None))
        turns.append(("assistant", "<action>look</action>", "Where am I?"))
    system = ("system", "You are a player.", None)
    assert asked == [[system, *turns[: 2 * step + 1]] for step in range(3)]
    assert len(rows[1]["prompt"]) < len(rows[0]["prompt"])


@pytest.mark.slow
def test_tools_are_sent_and_their_calls_are_the_actions(verifiers, tmp_path) -> None:
    bodies = []

    def answer(body, attempt):
        bodies.append(body)
        return message(None, tool_calls=[call("walk", "{}")])

    (result,) = evaluate(verifiers, "counter:COUNTER", answer, 1, 1, tmp_path / "run", prompt_style="chat")
    assert not result["failed"]
    walk = '<tool_call>\n{"name": "walk", "arguments": {}}\n</tool_call>'
    assert [(row["response"], row["action"]) for row in result["hgpo_steps"]] == [(walk, walk)] * 3
    assert [body["tools"][0]["function"]["name"] for body in bodies] == ["walk"] * 3
    assert [one["role"] for one in bodies[2]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


@pytest.mark.slow
def test_the_hash_of_a_step_is_that_of_its_states_key(verifiers, tmp_path) -> None:
    (result,) = evaluate(verifiers, "counter:COUNTER", lambda *_: message("Hello!"), 1, 1, tmp_path / "run")
    keys = [step["extras"]["state_hash"] for step in result["steps"]]
    assert keys == [row["state_hash"] for row in result["hgpo_steps"]]
    assert len(keys) == 3
    assert len(set(keys)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments"), [("HGPO/ALFWorld-v0", "{}"), ("counter:COUNTER", "[1]")])
def test_calls_that_cannot_be_carried_out_are_invalid_actions(verifiers, tmp_path, name, arguments) -> None:
    reply = message(None, tool_calls=[call("walk", arguments)])
    (result,) = evaluate(verifiers, name, lambda *_: reply, 1, 1, tmp_path / "run")
    assert not result["failed"]
    assert not any(row["action_valid"] for row in result["hgpo_steps"])


@pytest.mark.slow
def test_the_command_plays_in_its_environment_server(verifiers, tmp_path) -> None:
    """`vf-eval` loads the environment again in a process of its own."""
    arguments = '{"environment": "HGPO/WebShop-v0", "split": "test", "max_steps": 4}'
    with Api() as api:
        api.answer = lambda body, attempt: completion("<think>so</think><action>search[red shoes]</action>")
        command = [Path(verifiers).with_name("vf-eval"), "hgpo-verifiers", "-a", arguments, "-n", "2", "-r", "2"]
        command += ["-m", "tiny", "-b", api.url, "-k", "KEY_OF_TEST", "--disable-tui", "--save-results"]
        done = subprocess.run(
            [*command, "--state-columns", "hgpo_steps"],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env=VARIABLES,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    (results,) = tmp_path.rglob("results.jsonl")
    write = [verifiers, "-m", "hgpo_verifiers", results, tmp_path / "run", "HGPO/WebShop-v0"]
    written = subprocess.run(write, capture_output=True, text=True, env=VARIABLES)
    assert written.stdout.startswith("16 steps are in "), written.stderr
    steps = scan_steps(tmp_path / "run").collect()
    assert verify(tmp_path / "run").ok
    assert (steps.height, steps["task_id"].n_unique(), steps["trajectory"].n_unique()) == (16, 2, 4)
    missing = subprocess.run([*write[:3], "none.jsonl", "x", "y"], capture_output=True, text=True, env=VARIABLES)
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: none.jsonl: expected results.jsonl of verifiers")
