"""TRL's tables of completions: `log_completions=True` writes OUTPUT/completions/completions_00001.parquet, … .

A row is a rollout: `step`, `prompt` and `completion` (a text, or the messages of a conversation with its tools), one
column of floats a reward function, what these functions logged (`log_extra`), and `advantage`. The reward is the sum of
the columns of floats that follow `completion`; TRL's weights are not in the table.

Facts: TRL 1.16, `GRPOTrainer.log` (trl/trainer/grpo_trainer.py).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets.interchange.readers.json_records import numbers, without
from hgpo_datasets.interchange.readers.messages import (
    checked_messages,
    conversation_rows,
    step_row,
    task_of,
)
from hgpo_datasets.interchange.readers.rollout_rows import limited, rollout_rows
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NO_REWARD: Final = ("step", "advantage")


def read_trl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the steps of each row: one if the completion is a text, else one for each message of the assistant."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_regular(path, "Parquet file of TRL") as file:
        try:
            # Some damaged files end the process of Polars, and none that of pyarrow.
            table = pq.read_table(file)
            table.validate(full=True)
            records = table.to_pylist()
        except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
            raise InputError(
                f"{path}: expected a Parquet file of TRL ({one_line(error)})"
            ) from None
    types = dict(zip(table.column_names, table.schema.types, strict=True))
    for name in ("prompt", "completion"):
        if name not in types or "binary" in str(types[name]):
            raise InputError(
                f"{path}: expected texts or messages in the column {name}, received {types.get(name, 'none')}"
            )
    numeric = [
        name
        for name, kind in types.items()
        if (pa.types.is_integer(kind) or pa.types.is_floating(kind))
        and name not in _NO_REWARD
    ]
    # Columns of integers, and floats behind them, were logged beside the rewards.
    following = list(types)[list(types).index("completion") + 1 :]
    rewards = list(
        itertools.takewhile(
            lambda name: pa.types.is_floating(types[name]) and name in numeric,
            following,
        )
    )
    for place, record in enumerate(records):
        where = f"{path}, row {place}"
        prompt = _messages(record["prompt"], "user", where)
        completion = _messages(record["completion"], "assistant", where)
        # A prompt may have messages of an assistant too, which this policy did not write.
        rows = limited(conversation_rows([*prompt, *completion]), where)
        steps = list(rows)[_replies(prompt) :]
        values = numbers({name: record[name] for name in numeric})
        summed = [values[name] for name in rewards if name in values]
        step = record.get("step")
        task = step_row(prompt, {})
        yield from rollout_rows(
            steps,
            where,
            reward=sum(summed) if summed else None,
            named=values,
            summed=rewards,
            extra=without(record, ("step", "prompt", "completion")),
            iteration=step,
            task_id=task_of(task["prompt"]),
            task=task["state"],
            trajectory=f"{step}_{place}",
        )


def _messages(value: object, role: str, where: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return checked_messages(value, where)


def _replies(messages: list[dict[str, Any]]) -> int:
    return sum(message.get("role") == "assistant" for message in messages)
