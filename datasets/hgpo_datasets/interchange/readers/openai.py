"""OpenAI-style JSONL: one conversation a line, in the field `messages`, as fine-tuning and `hgpo data export` write it.

Fields that are columns of the step table are taken as such, for all steps of the conversation: `task_id`, `trajectory`,
`group`, `iteration`, … The reward is `reward`, `score`, or a list `rewards` with one a step. The objects of a list
`steps` have columns of each step. Lines with the same `trajectory`, and `step` in `steps`, are parts of one rollout.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets.interchange.readers.json_records import (
    integer,
    json_lines,
    numbers,
    objects,
    reward_of,
    text,
)
from hgpo_datasets.interchange.readers.messages import (
    checked_messages,
    conversation_rows,
    task_of,
)
from hgpo_datasets.interchange.readers.rollout_rows import (
    add_columns,
    limited,
    rollout_rows,
)
from hgpo_datasets.reader import StepTableWarning
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAMES: Final = ("env_id", "env_version", "split", "task_type", "task", "won")
_NUMBERS: Final = ("iteration", "policy_version", "group")


def read_openai(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the steps of each conversation: one for each message of the assistant."""
    empty = 0
    for place, (where, record) in enumerate(json_lines(path)):
        messages = checked_messages(record.pop("messages", None), where)
        steps = list(limited(conversation_rows(messages), where))
        if not steps:
            empty += 1
            continue
        given = objects(record.pop("steps", None), f"{where}, steps")
        add_columns(steps, given, f"{where}, steps")
        of_steps = [reward_of(row.pop("reward", None), where) for row in steps]
        columns = {
            name: record.pop(name) for name in _NAMES if record.get(name) is not None
        }
        for name in _NUMBERS:
            if (value := integer(record.get(name))) is not None:
                columns[name] = value
                del record[name]
        task = columns.setdefault("task", steps[0]["state"])
        task_id = text(record.pop("task_id", None)) or task_of(steps[0]["prompt"])
        trajectory = text(record.pop("trajectory", record.get("id"))) or str(place)
        rewards = record.pop("rewards", None)
        name = "score" if record.get("reward") is None else "reward"
        reward: float | list[float | None] | None
        reward = record[name] = reward_of(record.get(name), where)
        if isinstance(rewards, list):
            reward = [reward_of(value, where) for value in rewards]
        elif rewards is not None:
            raise InputError(
                f"{where}: expected a list as rewards, one a step, received {one_line(repr(rewards), 60)}; "
                "the reward of the whole rollout is `reward`"
            )
        elif reward is None and any(value is not None for value in of_steps):
            reward = of_steps
        named = numbers(record)
        yield from rollout_rows(
            steps,
            where,
            reward=reward,
            named=named,
            extra=record,
            truncated=record.pop("truncated", None) is True,
            error=text(record.pop("error", None)),
            **{
                **columns,
                "task": text(task),
                "task_id": task_id,
                "trajectory": trajectory,
            },
        )
    if empty:
        warnings.warn(
            f"{path}: {counted(empty, 'conversation')} skipped (no message of the assistant)",
            StepTableWarning,
            stacklevel=2,
        )
