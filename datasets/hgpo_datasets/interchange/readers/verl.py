"""verl's dumps of rollouts: `trainer.rollout_data_dir` and `trainer.validation_data_dir` write STEP.jsonl.

A line has `input`, `output`, `score`, `step` and what the reward function reported. It is one step: turns within the
output are not separated. The trainer of version 1 adds `uid`, SAMPLE_ROLLOUT_OUTPUT: then the outputs of one rollout
are its steps, and its score, which is in each of its lines, is the reward of the last one. Without it, rollouts with
equal inputs are a group.

Facts: verl 0.9.1, `_write_generations` (verl/trainer/ppo/ray_trainer.py, verl/trainer/ppo/v1/trainer_base.py).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets.interchange.readers.json_records import (
    json_lines,
    numbers,
    reward_of,
    text,
    without,
)
from hgpo_datasets.interchange.readers.messages import task_of
from hgpo_datasets.interchange.readers.rollout_rows import rollout_rows
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_UID: Final = re.compile(r"(.+)_(\d+)_(\d{1,9})", re.DOTALL)
_OWN: Final = ("input", "output", "step")


def read_verl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the steps of each rollout."""
    # The trainer may write the outputs of a rollout in any order, between those of others.
    rollouts: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    places: dict[str, str] = {}
    for place, (where, record) in enumerate(json_lines(path)):
        record["score"] = reward_of(record.get("score"), where)
        name, output = _rollout(place, record)
        places.setdefault(name, where)
        if rollouts[name].setdefault(output, record) is not record:
            raise InputError(
                f"{where}: expected each uid once, received {record['uid']!r} again"
            )
    for name, outputs in rollouts.items():
        records = [outputs[number] for number in sorted(outputs)]
        where = places[name]
        steps = [_step(record, where) for record in records]
        last = records[-1]
        parts = _UID.fullmatch(name)
        iteration = last.get("step")
        yield from rollout_rows(
            steps,
            where,
            reward=last["score"],
            named=numbers(last),
            iteration=iteration,
            task_id=parts[1] if parts else task_of(steps[0]["prompt"]),
            trajectory=name if parts else f"{iteration}_{name}",
        )


def _rollout(place: int, record: dict[str, Any]) -> tuple[str, int]:
    """Return the name of a line's rollout, and the number of its output.

    The name is that of the rollout's first output, or the number of the line if `uid` has no number of an output.
    """
    parts = _UID.fullmatch(str(record.get("uid")))
    return (f"{parts[1]}_{parts[2]}_0", int(parts[3])) if parts else (str(place), 0)


def _step(record: dict[str, Any], where: str) -> dict[str, Any]:
    prompt = text(record.get("input"))
    if prompt is None:
        raise InputError(
            f"{where}: expected the field input in every line, received none"
        )
    output = text(record.get("output"))
    return {
        "state": prompt,
        "prompt": prompt,
        "response": output,
        "action": output,
        "extra": without(record, _OWN),
    }
