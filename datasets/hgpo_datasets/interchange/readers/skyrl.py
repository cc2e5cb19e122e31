"""SkyRL's dumps of evaluations: `trainer.dump_eval_results` writes dumped_evals/global_step_5_evals/DATA.jsonl.

A line has `input_prompt`, `output_response`, `score` (a number, or one a token) and `stop_reason`, without ids. A line
whose prompt is the prompt and response of the line before it, and more, is the next step of the same rollout, as
step-wise generation writes it. Rollouts with equal first prompts are a group.

Facts: SkyRL 0.4.0, `dump_per_dataset_eval_results` (skyrl/train/utils/trainer_utils.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets.interchange.readers.json_records import (
    json_lines,
    reward_of,
    text,
    without,
)
from hgpo_datasets.interchange.readers.messages import task_of
from hgpo_datasets.interchange.readers.rollout_rows import rollout_rows
from hgpo_envs.responses import finish_reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OWN: Final = ("input_prompt", "output_response", "stop_reason")
_STEP: Final = re.compile(r"global_step_(\d{1,9})_evals")


def read_skyrl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the steps of each rollout."""
    steps: list[dict[str, Any]] = []
    begun = ""
    place = 0
    first = str(path)
    for where, record in json_lines(path):
        prompt = text(record.get("input_prompt")) or ""
        if steps and not (len(prompt) > len(begun) and prompt.startswith(begun)):
            yield from _rows(steps, place, path, first)
            place += 1
            steps = []
        if not steps:
            first = where
        # The state is what the environment has added since the response.
        state = prompt.removeprefix(begun) if steps else prompt
        response = text(record.get("output_response")) or ""
        begun = prompt + response
        step = _step(record, state, prompt, response)
        steps.append({**step, "reward": _total(record.get("score"), where)})
    yield from _rows(steps, place, path, first)


def _step(
    record: dict[str, Any], state: str, prompt: str, response: str
) -> dict[str, Any]:
    finish = finish_reason(record.get("stop_reason"))
    columns = {
        "state": state,
        "prompt": prompt,
        "response": response,
        "action": response,
    }
    extra = without(record, _OWN)
    return {**columns, "finish_reason": finish, "extra": extra}


def _rows(
    steps: list[dict[str, Any]], place: int, path: Path, where: str
) -> list[dict[str, Any]]:
    if not steps:
        return []
    rewards = [step.pop("reward") for step in steps]
    step = _STEP.fullmatch(path.parent.name)
    return rollout_rows(
        steps,
        where,
        reward=rewards,
        iteration=int(step[1]) if step else 0,
        env_id=text(steps[0]["extra"].get("env_class")),
        task_id=task_of(steps[0]["prompt"]),
        trajectory=f"{path.stem}_{place}",
    )


def _total(score: object, where: str) -> float | None:
    """Return a score, or the sum of those of the tokens."""
    if not isinstance(score, list):
        return reward_of(score, where)
    values = [reward_of(value, where) for value in score]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
