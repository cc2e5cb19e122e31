"""Traces of verifiers 0.4: `vf-eval` writes RUN/traces.jsonl, one episode with the traces of its agents a line.

A trace is a graph of messages, each with the message before it. Messages that the model wrote (`sampled`) are steps, in
the order in which they were added; the prompt of a step is the path to it. Prompts that do not continue one another (a
fresh prompt each step, compaction, sub-agents) are branches, and still steps of one trajectory. The traces of one task
and agent are a group. The reward of a rollout is the weighted sum of the trace's rewards.

What an environment knows of each step (state, reward, validity, …) it can leave in the trace's `info["hgpo_steps"]`, as
`hgpo_verifiers` does: a list of columns, one for each step.

Facts: verifiers 0.4.0 (verifiers/v1/trace.py, graph.py, episode.py).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets.interchange.readers.json_records import (
    fields,
    json_lines,
    objects,
    reward_of,
    text,
    without,
)
from hgpo_datasets.interchange.readers.messages import checked_messages, step_row
from hgpo_datasets.interchange.readers.rollout_rows import (
    add_columns,
    limited,
    rollout_rows,
)
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.responses import finish_reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS: Final = "hgpo_steps"
"""The key in a trace's `info` of the columns that its environment knows."""
_LIMITS: Final = (
    "max_turns",
    "max_input_tokens",
    "max_output_tokens",
    "max_total_tokens",
    "compaction_failed",
)
_NO_EXTRA: Final = (
    "nodes",
    "calls",
    "tools",
    "task",
    "rewards",
    "agent",
    "id",
    "info",
    "timing",
)


def read_verifiers(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the steps of each trace."""
    for where, episode in json_lines(path):
        for trace in objects(episode.get("traces"), f"{where}, traces"):
            yield from _rows(trace, episode, where)


def _rows(
    trace: dict[str, Any], episode: dict[str, Any], where: str
) -> list[dict[str, Any]]:
    task = fields(trace.get("task") or episode.get("task"))
    data = fields(task.get("data"))
    info = dict(fields(trace.get("info")))
    known = objects(info.pop(STEPS, None), f"{where}, info")
    steps = list(limited(_steps(trace, where), where))
    add_columns(steps, known, f"{where}, {STEPS}")
    rewards = _rewards(trace, where)
    whole = sum(rewards.values()) if rewards else None
    of_steps = [reward_of(row.pop("reward", None), where) for row in steps]
    failures = objects(trace.get("errors"), f"{where}, errors")
    error = (
        one_line(failures[-1].get("message"), 300)
        if failures
        else trace.get("stop_condition")
    )
    agent = fields(trace.get("agent")).get("name")
    prompt = data.get("prompt")
    key = text(data.get("id") or task.get("key") or data.get("idx")) or "task"
    iteration = fields(fields(episode.get("run")).get("work")).get("step")
    return rollout_rows(
        steps,
        where,
        reward=of_steps if known else whole,
        named=rewards,
        extra=without(trace, _NO_EXTRA) | info,
        truncated=trace.get("stop_condition") in _LIMITS,
        error=None if trace.get("ok") else text(error or "the rollout failed"),
        iteration=iteration,
        task_id=key if agent in (None, "agent") else f"{key}/{agent}",
        task=prompt if isinstance(prompt, str) else steps and steps[0]["state"],
        trajectory=text(trace.get("id")) or where,
    )


def _steps(trace: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each message that the model wrote."""
    nodes = objects(trace.get("nodes"), f"{where}, nodes")
    calls = objects(trace.get("calls"), f"{where}, calls")
    reasons = {text(call.get("node")): call.get("finish_reason") for call in calls}
    for index, node in enumerate(nodes):
        if not node.get("sampled"):
            continue
        path = _path(nodes, index, where)
        *prompt, reply = checked_messages(
            [nodes[at].get("message") for at in path], where
        )
        row = step_row(prompt, reply)
        row |= _tokens([nodes[at] for at in path])
        row["finish_reason"] = finish_reason(reasons.get(text(index)))
        row["extra"] = {
            "node": index,
            "parent": node.get("parent"),
            "advantages": node.get("advantages"),
        }
        yield row


def _path(nodes: list[dict[str, Any]], index: int, where: str) -> list[int]:
    """Return the indices of the messages from the first to this one."""
    path = [index]
    parent = nodes[index].get("parent")
    while parent is not None:
        # A parent is an earlier message, so that the way ends.
        if not isinstance(parent, int) or not 0 <= parent < path[-1]:
            raise InputError(
                f"{where}: expected an earlier message as parent of message {path[-1]}, received {parent!r}"
            )
        path.append(parent)
        parent = nodes[parent].get("parent")
    return path[::-1]


def _tokens(path: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tokens of a prompt and its response; none if the server did not report them."""
    spans = [node.get("token_ids") or [] for node in path]
    mask = path[-1].get("mask")
    sampled = mask.count(True) if isinstance(mask, list) else 0
    if not sampled or not all(isinstance(span, list) for span in spans):
        return {}
    tokens = list(itertools.chain.from_iterable(spans))
    logprobs = path[-1].get("logprobs")
    return {
        "prompt_token_ids": tokens[:-sampled],
        "response_token_ids": tokens[-sampled:],
        "response_logprobs": logprobs or None,
    }


def _rewards(trace: dict[str, Any], where: str) -> dict[str, float]:
    """Return the rewards by name, with their weights."""
    rewards = trace.get("rewards") or {}
    is_known = isinstance(rewards, dict)
    if not is_known or not all(isinstance(one, dict) for one in rewards.values()):
        raise InputError(
            f"{where}: expected an object with a score for each name as rewards, "
            f"received {one_line(repr(rewards), 60)}"
        )
    found = {}
    for name, reward in rewards.items():
        score = reward_of(reward.get("score"), where)
        weight = reward_of(reward.get("weight", 1.0), f"{where}, weight of {name}")
        if score is not None and weight is not None:
            found[name] = score * weight
    return found
