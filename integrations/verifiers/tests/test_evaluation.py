"""verifiers 0.4 evaluates HGPO's environments, in the Python of HGPO_VERIFIERS_PYTHON (.ci/verifiers)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from chat_server import Api, completion

from hgpo_datasets import scan_steps, verify
from hgpo_datasets.interchange.rollouts import import_rollouts
from hgpo_envs.environment_spec import environment_spec, make_player
from hgpo_envs.episode import Episode
from hgpo_train.advantages import compute
from hgpo_train.rollout.env_handle import open_env

ROOT = Path(__file__).parents[3]
WRONG = {"HGPO/ALFWorld-v0": "look", "HGPO/WebShop-v0": "search[nothing]"}
PARTS = [
    ROOT / "integrations/verifiers",
    ROOT,
    ROOT / "datasets",
    Path(__file__).parent,
]
VARIABLES = {
    **os.environ,
    "KEY_OF_TEST": "x",
    "NO_PROXY": "127.0.0.1",
    "PYTHONPATH": os.pathsep.join(map(str, PARTS)),
}


@pytest.fixture(scope="module")
def python() -> str:
    """Return a Python that has verifiers 0.4 and this package."""
    python = os.environ.get("HGPO_VERIFIERS_PYTHON", sys.executable)
    if subprocess.run(
        [python, "-c", "import verifiers.v1"], capture_output=True
    ).returncode:
        pytest.skip(
            "needs verifiers 0.4, or HGPO_VERIFIERS_PYTHON set to a Python that has it and hgpo"
        )
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
        row["response"] = (
            f"<think>so</think><{spec.action_tag}>{action}</{spec.action_tag}>"
        )
        episode.act(row["response"])
        row |= {
            "action": episode.action,
            "action_valid": episode.action_valid,
            "reward": episode.state.reward,
        }
        row |= {"score": episode.state.score, "won": episode.state.won}
        rows.append(
            {**row, "terminated": episode.terminated, "truncated": episode.truncated}
        )
    rows[-1]["next_state"] = episode.state.text
    return rows


def evaluate(python, name, answer, tasks, rollouts, folder, **options) -> pl.DataFrame:
    """Evaluate with a server's answers, import what `vf-eval` left, and return the steps."""
    settings = {"environment": name, "options": options}
    (folder / "eval.toml").write_text(
        f'[env.taskset]\nid = "hgpo-verifiers"\nenvironment = "{name}"\n[env.taskset.options]\n'
        + "".join(
            f"{key} = {json.dumps(value)}\n"
            for key, value in settings["options"].items()
        )
    )
    with Api() as api:
        api.answer = answer
        command = [
            Path(python).with_name("vf-eval"),
            "@",
            folder / "eval.toml",
            "-n",
            str(tasks),
            "-r",
            str(rollouts),
        ]
        command += [
            "-m",
            "tiny",
            "--client.base-url",
            api.url,
            "--client.api-key-var",
            "KEY_OF_TEST",
        ]
        command += [
            "--env.agent.runtime.type",
            "subprocess",
            "--no-rich",
            "--no-push",
            "--run.name",
            "toy",
        ]
        done = subprocess.run(
            [*command, "-o", folder],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=folder,
            env=VARIABLES,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    import_rollouts(folder / "toy", folder / "run")
    assert verify(folder / "run").ok
    return scan_steps(folder / "run").collect()


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_an_evaluation_is_what_is_played_here(python, name, tmp_path) -> None:
    handle = open_env(name, split="train", action_format="response", max_steps=12)
    ids = list(handle.tasks[:2])
    good = {task: play(handle, task, name, well=True) for task in ids}
    bad = {task: play(handle, task, name, well=False) for task in ids}
    replies = {
        row["prompt"]: row["response"]
        for games in (bad, good)
        for rows in games.values()
        for row in rows
    }
    first = {rows[0]["prompt"]: rows[0]["response"] for rows in bad.values()}
    refused = good[ids[1]][1]["prompt"]
    times = {}

    def answer(body, attempt):
        (asked,) = body["messages"]  # a fresh prompt each step, not a conversation
        prompt = asked["content"]
        if prompt == refused:
            return (
                400,
                {
                    "error": {
                        "message": "no more tokens",
                        "type": "invalid_request_error",
                    }
                },
                {},
            )
        times[prompt] = times.get(prompt, 0) + 1
        return completion(
            first[prompt]
            if prompt in first and times[prompt] % 2 == 0
            else replies[prompt]
        )

    steps = evaluate(python, name, answer, 2, 2, tmp_path, max_steps=12)
    assert steps.group_by("task_id").agg(pl.col("trajectory").n_unique())[
        "trajectory"
    ].to_list() == [2, 2]
    failed = steps.filter(pl.col("aborted").any().over("trajectory"))
    assert set(failed["task_id"]) == {ids[1]}
    assert "no more tokens" in failed["error"].drop_nulls().item()
    for task, expected in ((ids[0], [good, bad]), (ids[1], [bad])):
        rows = steps.filter(~pl.col("aborted").any().over("trajectory"), task_id=task)
        played = [
            one.to_dicts()
            for one in rows.partition_by("trajectory", maintain_order=True)
        ]
        seen = [
            [{key: row[key] for key in good[task][0]} for row in one] for one in played
        ]
        wanted = [
            [{key: row[key] for key in good[task][0]} for row in games[task]]
            for games in expected
        ]
        for one, other in zip(
            sorted(seen, key=str), sorted(wanted, key=str), strict=True
        ):
            assert one == other
        assert played[0][-1]["next_state"] in {
            games[task][-1]["next_state"] for games in expected
        }
    _check_branches(python, steps, tmp_path)


def _check_branches(python, steps, folder) -> None:
    """Each step is a branch, whose sampled tokens have the advantage of its step."""
    command = [
        python,
        Path(__file__).parent / "verifiers_advantages.py",
        folder / "toy/traces.jsonl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=VARIABLES)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    table = compute(steps, "hgpo").collect()
    for (trajectory,), rows in table.group_by("trajectory", maintain_order=True):
        expected = [[0.0, value, value] for value in rows["advantage"]]
        if rows["aborted"].any():
            expected = [None] * rows.height
        assert found[trajectory] == expected
    assert table["advantage"].abs().max() > 0.1


def message(content: str | None, **parts: object) -> tuple[int, dict, dict]:
    """Return a server's reply with parts that it has separated from the text."""
    status, body = completion(content)
    body["choices"][0]["message"] |= parts
    return status, body, {}


@pytest.mark.slow
def test_a_conversation_has_the_earlier_messages_as_they_were_sent(
    python, tmp_path
) -> None:
    """Reasoning that a server separates is part of the response, and goes back apart, as with `openai:`."""
    asked = []

    def answer(body, attempt):
        asked.append(
            [
                (one["role"], one["content"], one.get("reasoning_content"))
                for one in body["messages"]
            ]
        )
        return message("<action>look</action>", reasoning_content="Where am I?")

    steps = evaluate(
        python,
        "HGPO/ALFWorld-v0",
        answer,
        1,
        1,
        tmp_path,
        prompt_style="chat",
        max_steps=3,
    )
    response = "<think>\nWhere am I?\n</think>\n\n<action>look</action>"
    assert (
        steps.select("response", "action", "action_valid").rows()
        == [(response, "look", True)] * 3
    )
    turns = []
    for prompt in (asked[step][-1] for step in range(3)):
        turns += [prompt, ("assistant", "<action>look</action>", "Where am I?")]
    assert asked == [turns[: 2 * step + 1] for step in range(3)]
    trace = json.loads((tmp_path / "toy/traces.jsonl").read_text())["traces"][0]
    assert [node.get("parent") for node in trace["nodes"]] == [None, 0, 1, 2, 3, 4]


@pytest.mark.slow
def test_tools_are_sent_and_their_calls_are_the_actions(python, tmp_path) -> None:
    bodies = []

    def answer(body, attempt):
        bodies.append(body)
        call = {
            "id": "one",
            "type": "function",
            "function": {"name": "walk", "arguments": "{}"},
        }
        return message(None, tool_calls=[call])

    steps = evaluate(
        python, "counter:COUNTER", answer, 1, 1, tmp_path, prompt_style="chat"
    )
    walk = '<tool_call>\n{"name": "walk", "arguments": {}}\n</tool_call>'
    assert steps.select("response", "action").rows() == [(walk, walk)] * 3
    assert [body["tools"][0]["function"]["name"] for body in bodies] == ["walk"] * 3
    assert [one["role"] for one in bodies[2]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    # of the state's key, in which numbers are masked
    assert steps["state_hash"].n_unique() == 1
