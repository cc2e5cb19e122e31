"""Export to OpenAI-style JSONL: one conversation a line, in `messages`, which `hgpo data import` reads back."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from hgpo_datasets.reader import scan_steps, source_files
from hgpo_datasets.schema import GROUP_KEY
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.untrusted_files import writing

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    Message = dict[str, Any]
    Row = dict[str, Any]

_ROLLOUT: Final = (
    *GROUP_KEY,
    "trajectory",
    "env_id",
    "env_version",
    "split",
    "task_type",
    "task",
)
_TEXTS: Final = ("prompt", "response", "message")
_STEP: Final = (
    *(
        "step",
        "state",
        "action",
        "action_valid",
        "action_admissible",
        "admissible_actions",
        "next_state",
    ),
    *("terminated", "truncated", "aborted", "error", "won", "score"),
)


def to_openai(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> int:
    """Write the conversations of a run as JSONL, and return their number.

    A line has the steps of a rollout whose prompts continue one another. So a rollout with a fresh prompt each step has
    one line a step, with its `trajectory` and the `step`. Besides `messages`, a line has the task's columns, `rewards`
    and, in `steps`, the columns of each step; and `tools`, the schemas that the model was given, if there were any.

    Args:
        source: Run folder, Parquet file, or glob pattern.
        out: The file.

    Raises:
        InputError: The run has no rows, was written without prompts, or the file cannot be written.
    """
    headers = {
        file.run or file.header.run: file.header
        for file in source_files(source)
        if file.header is not None
    }
    columns = (*_ROLLOUT, *_STEP, *_TEXTS, "reward", "run")
    key = ("run", *GROUP_KEY, "trajectory")
    steps = scan_steps(source).select(columns).sort(*key, "step").collect()
    if steps["prompt"].has_nulls():
        raise InputError(
            f"{source}: expected a prompt in every row; the run was written without them"
        )
    lines = []
    rows = steps.iter_rows(named=True)
    for _, members in itertools.groupby(
        rows, key=lambda row: [row[name] for name in key]
    ):
        rollout = list(members)
        header = headers.get(rollout[0]["run"])
        environment = header.section("env") if header else {}
        tools = header.config.get("tools") if header else None
        given = {"tools": tools} if tools else {}
        lines += [
            orjson.dumps(line | given) + b"\n"
            for line in _conversations(rollout, environment)
        ]
    path = Path(out)
    with writing(path):
        write_file(path, b"".join(lines))
    return len(lines)


def _conversations(
    rows: list[Row], environment: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the conversations of a rollout: each has the steps whose prompts begin with the messages before."""
    told = environment.get("system_prompt")
    system = [{"role": "system", "content": told}] if told else []
    is_chat = environment.get("prompt_style") == "chat"
    talk: list[Message] = []
    members: list[Row] = []
    for row in rows:
        prompt = [*system, *_messages(row["prompt"])]
        if is_chat:
            prompt = [*(talk or system), *_shown(row["prompt"], talk)]
        if members and prompt[: len(talk)] != talk:
            yield _line(talk, members)
            members = []
        talk = [*prompt, _reply(row)]
        members.append(row)
    yield _line(talk, members)


def _line(talk: list[Message], rows: list[Row]) -> dict[str, Any]:
    steps = [
        {name: row[name] for name in _STEP if row[name] is not None} for row in rows
    ]
    about = {name: rows[0][name] for name in _ROLLOUT if rows[0][name] is not None}
    return {
        "messages": talk,
        **about,
        "rewards": [row["reward"] for row in rows],
        "steps": steps,
    }


def _messages(prompt: str) -> list[Message]:
    """Return the messages of a prompt: those of its JSON, or one of the user."""
    if prompt.startswith("[{"):
        try:
            found: list[Message] = orjson.loads(prompt)
        except orjson.JSONDecodeError:
            found = []
        if found and all("role" in message for message in found):
            return found
    return [{"role": "user", "content": prompt}]


def _shown(text: str, talk: list[Message]) -> list[Message]:
    """Return what the environment shows: the result of each call before it, or a message of the user."""
    calls = (talk[-1].get("tool_calls") or []) if talk else []
    results = [
        {"role": "tool", "tool_call_id": call.get("id"), "content": text}
        for call in calls
    ]
    return results or [{"role": "user", "content": text}]


def _reply(row: Row) -> Message:
    if row["message"]:
        return {"role": "assistant", **orjson.loads(row["message"])}
    return {"role": "assistant", "content": row["response"] or row["action"] or ""}
