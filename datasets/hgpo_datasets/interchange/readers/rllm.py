"""Episodes of rLLM, one JSON file each: of its `EpisodeLogger`, and of `rllm eval`.

The trajectories of one name and task are a group. The reward of a rollout is its trajectory's; it is given step by step
if that of the steps adds up to it.

Facts: rLLM at commit 9beb6e0f (rllm/types.py, rllm/utils/episode_logger.py, rllm/eval/episode_store.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets.interchange.readers.json_records import (
    json_file,
    objects,
    reward_of,
    text,
    without,
)
from hgpo_datasets.interchange.readers.messages import checked_messages, step_row
from hgpo_datasets.interchange.readers.rollout_rows import rollout_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NO_NAME: Final = ("default_traj_name", None, "")
_LIMITS: Final = (
    "max_prompt_length_exceeded",
    "max_response_length_exceeded",
    "max_turns_exceeded",
)
_FAILURES: Final = ("error", "timeout")
_TOKENS: Final = {
    "prompt_ids": "prompt_token_ids",
    "response_ids": "response_token_ids",
    "logprobs": "response_logprobs",
}
_COLUMNS: Final = (
    *_TOKENS,
    "chat_completions",
    "observation",
    "model_response",
    "action",
    "model_output",
)


def read_rllm(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the steps of each trajectory of an episode."""
    episode = json_file(path)
    name = text(episode.get("episode_id", episode.get("id"))) or path.stem
    reason = episode.get("termination_reason")
    for place, trajectory in enumerate(
        objects(episode.get("trajectories"), f"{path}, trajectories")
    ):
        steps = objects(trajectory.get("steps"), f"{path}, steps")
        role = trajectory.get("name")
        task_id = name.partition(":")[0]
        yield from rollout_rows(
            [_step(one, str(path)) for one in steps],
            str(path),
            reward=_reward(trajectory, steps, str(path)),
            extra={
                "episode": name,
                "metrics": episode.get("metrics"),
                "signals": trajectory.get("signals"),
            },
            truncated=reason in _LIMITS,
            error=reason if reason in _FAILURES else None,
            iteration=episode.get("training_step"),
            task_id=task_id if role in _NO_NAME else f"{task_id}/{role}",
            task=text(trajectory.get("task") or episode.get("task")),
            trajectory=text(trajectory.get("uid")) or f"{name}_{place}",
            won=episode.get("is_correct")
            if isinstance(episode.get("is_correct"), bool)
            else None,
        )


def _step(step: dict[str, Any], where: str) -> dict[str, Any]:
    *prompt, reply = checked_messages(step.get("chat_completions"), where) or [{}]
    if reply.get("role") != "assistant":
        prompt = [*prompt, reply]
        reply = {"role": "assistant", "content": text(step.get("model_response"))}
    row = step_row(prompt, reply)
    if step.get("observation") is not None:
        row["state"] = text(step["observation"])
    if step.get("action") is not None:
        row["action"] = text(step["action"])
    row |= {column: step[name] for name, column in _TOKENS.items() if step.get(name)}
    others = without(step, _COLUMNS)
    row["extra"] = {name: value for name, value in others.items() if value}
    return row


def _reward(
    trajectory: dict[str, Any], steps: list[dict[str, Any]], where: str
) -> float | list[float] | None:
    whole = reward_of(trajectory.get("reward"), where)
    each = [reward_of(step.get("reward"), where) or 0.0 for step in steps]
    if whole is None:
        return each if any(each) else None
    return each if math.isclose(sum(each), whole) else whole
