"""verl's dumps of rollouts: `trainer.rollout_data_dir` and `trainer.validation_data_dir` write STEP.jsonl.

A line has `input`, `output`, `score`, `step` and what the reward function reported. It is one step: turns within the
output are not separated. The trainer of version 1 adds `uid`, SAMPLE_ROLLOUT_OUTPUT: then the outputs of one rollout
are its steps, and its score, which is in each of its lines, is the reward of the last one. Without it, rollouts with
equal inputs are a group.

Facts: verl 0.9.1, `_write_generations` (verl/trainer/ppo/ray_trainer.py, verl/trainer/ppo/v1/trainer_base.py).
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets.interchange.readers.json_records import json_lines, number, numbers, text
from hgpo_datasets.interchange.readers.messages import task_of
from hgpo_datasets.interchange.readers.rollout_rows import rollout_rows
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_UID: Final = re.compile(r"(.+)_(\d+)_(\d+)", re.DOTALL)
_OWN: Final = ("input", "output", "step")


def read_verl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the steps of each rollout."""
    lines = enumerate(json_lines(path))
    for name, members in groupby(lines, key=_rollout):
        records = [record for _, (_, record) in members]
        steps = [_step(record, path) for record in records]
        last = records[-1]
        parts = _UID.fullmatch(name)
        iteration = last.get("step")
        yield from rollout_rows(
            steps,
            reward=number(last.get("score")),
            named=numbers(last),
            iteration=iteration if isinstance(iteration, int) else 0,
            task_id=parts[1] if parts else task_of(steps[0]["prompt"]),
            trajectory=name if parts else f"{iteration}_{name}",
        )


def _rollout(line: tuple[int, tuple[str, dict[str, Any]]]) -> str:
    """Return the name of a line's rollout: the number of the line, if it has no `uid` with its output's number."""
    place, (_, record) = line
    parts = _UID.fullmatch(str(record.get("uid")))
    return f"{parts[1]}_{parts[2]}_0" if parts else str(place)


def _step(record: dict[str, Any], path: Path) -> dict[str, Any]:
    prompt = text(record.get("input"))
    if prompt is None:
        raise InputError(f"{path}: expected the field input in every line, received none")
    output = text(record.get("output"))
    extra = {name: value for name, value in record.items() if name not in _OWN}
    return {"state": prompt, "prompt": prompt, "response": output, "action": output, "extra": extra}
