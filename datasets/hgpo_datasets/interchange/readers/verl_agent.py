"""Import verl-agent's rollouts: JSON lines, one record per step.

verl-agent's `trainer.rollout_data_dir` writes only `input`, `output`, `score` and `step`;
docs/bring_your_own_rollouts.md shows how to add the fields of `Record`. verl reorders a batch and pads it with copies
before it writes the records. The import therefore sorts the steps of a trajectory by the step numbers in their prompts,
and drops the copies.

Rewards are divided by verl-agent's reward of success, which gives the benchmark's own scale. `action_valid` is
verl-agent's flag: the response has the required form. Source: verl-agent, `_dump_generations`, `_balance_batch`
(verl/trainer/ppo/ray_trainer.py), `adjust_batch` (agent_system/multi_turn_rollout/utils.py), the templates of
agent_system/environments/prompts/{alfworld,webshop}.py, and the projections that `hgpo_envs.responses` follows.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from hgpo_datasets.interchange.readers.json_records import json_lines, reward_of
from hgpo_datasets.interchange.readers.rollout_rows import PLACE
from hgpo_datasets.reader import StepTableWarning
from hgpo_envs.environment_spec import spec_named
from hgpo_envs.errors import InputError
from hgpo_envs.responses import parse
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_BENCHMARKS: Final = {
    "ALFWorld": "You are an expert agent operating in the ALFRED Embodied Environment.",
    "WebShop": "You are an expert autonomous agent operating in the WebShop",
}
_TAKEN: Final = re.compile(r"you have already taken (\d+) step\(s\)")
_STATE: Final = re.compile(
    r"our current observation is: (.*?)\nYour admissible actions of the current",
    re.DOTALL,
)
_ACTIONS: Final = re.compile(
    r"actions of the current situation are:\s*\[\n?(.*?)\n?\]\.\n\nNow it's your turn",
    re.DOTALL,
)
_TASK: Final = re.compile(r"Your task is to: (.*?)\n")


class Record(msgspec.Struct):
    """One line of a file. docs/bring_your_own_rollouts.md describes the fields."""

    traj_uid: str | int
    uid: str | int
    """The group."""
    anchor_obs: str
    """The state."""
    rewards: float
    input: str | None = None
    output: str | None = None
    action: str | None = None
    """Parsed from the response by default."""
    is_action_valid: bool | float | None = None
    """verl-agent's flag; whether the response has the required form by default."""
    step: int | None = None
    """The training iteration; the number in the file's name by default."""


class ParsedPrompt(NamedTuple):
    """Contents of a prompt; the task is None if the prompt does not contain it, the step counts earlier steps."""

    benchmark: str
    task: str | None
    step: int
    state: str
    actions: tuple[str, ...]


_Step = tuple[Record, ParsedPrompt | None]


def read_verl_agent(
    path: Path, success_reward: float = 10.0
) -> Iterator[dict[str, Any]]:
    """Yield the steps of the complete trajectories of a file.

    Args:
        path: JSONL file.
        success_reward: Reward of a success in the recorded environment; all rewards are divided by it.

    Raises:
        InputError: A line is no `Record`, or the prompts do not give the order of a trajectory's steps.

    Warns:
        StepTableWarning: Records were left out: copies, and trajectories with a missing step.
    """
    if not (math.isfinite(success_reward) and success_reward > 0):
        raise InputError(
            f"success_reward: expected a positive number, received {success_reward}"
        )
    trajectories, left_out = _trajectories(path)
    if left_out:
        reason = "duplicates, or steps of incomplete trajectories"
        warnings.warn(
            f"{path}: {counted(left_out, 'record')} skipped ({reason})",
            StepTableWarning,
            stacklevel=2,
        )
    limit = max(map(len, trajectories.values()), default=0)
    for where, steps in trajectories.items():
        first, *others = _rows(steps, path, success_reward, limit)
        yield {**first, PLACE: where}
        yield from others


def _trajectories(file: Path) -> tuple[dict[str, list[_Step]], int]:
    """Return the complete trajectories of a file by their first lines, and the number of records that are left out."""
    found: dict[str, dict[str, _Step]] = defaultdict(dict)
    for where, fields in json_lines(file):
        try:
            record = msgspec.convert(fields, Record)
        except msgspec.ValidationError as error:
            raise InputError(
                f"{where}: {error} (docs/bring_your_own_rollouts.md)"
            ) from error
        reward_of(record.rewards, where)
        parsed = read_prompt(record.input) if record.input else None
        found[str(record.traj_uid)][where] = (record, parsed)
    trajectories = {next(iter(steps)): _in_order(steps) for steps in found.values()}
    left_out = sum(map(len, found.values())) - sum(map(len, trajectories.values()))
    return {where: steps for where, steps in trajectories.items() if steps}, left_out


def _in_order(found: dict[str, _Step]) -> list[_Step]:
    """Return a trajectory's steps, which have their lines as keys, by the numbers in their prompts, without copies.

    If no prompt has a step number, the order is unchanged. If a number is missing, the result is empty.
    """
    # 1. Without step numbers, or with gaps in an order that is right, the file's order is all there is.
    steps = list(found.values())
    known = [parsed.step for _, parsed in steps if parsed is not None]
    if not any(known) or (len(known) < len(steps) and known == sorted(set(known))):
        return steps
    if len(known) < len(steps):
        line = next(where for where, (_, parsed) in found.items() if parsed is None)
        raise InputError(
            f"{line}: expected a complete prompt, because the steps of its trajectory are out of order"
        )
    # 2. Otherwise the numbers are the order. A number that is missing makes the trajectory incomplete.
    # reversed: the first copy is kept
    by_step = dict(zip(reversed(known), reversed(steps), strict=True))
    return (
        [by_step[number] for number in sorted(by_step)]
        if max(by_step) < len(by_step)
        else []
    )


def _rows(
    steps: Sequence[_Step], file: Path, success_reward: float, limit: int
) -> list[dict[str, Any]]:
    """Return the rows of a trajectory. Of those that are not won, the longest of the file reached the step limit."""
    iterations = {record.step for record, _ in steps}
    named = int(file.stem) if re.fullmatch("[0-9]{1,9}", file.stem) else 0
    iteration = (
        iterations.pop() if iterations != {None} and len(iterations) == 1 else named
    )
    rows = []
    for number, (record, parsed) in enumerate(steps):
        spec = spec_named(parsed.benchmark) if parsed else None
        response = (spec.parser if spec else partial(parse, lowercase=True))(
            record.output or ""
        )
        reward = record.rewards / success_reward
        last = number == len(steps) - 1
        won = last and reward >= 1.0
        truncated = last and not won and len(steps) == limit
        rows.append(
            {
                "iteration": iteration,
                "task_id": str(record.uid),
                "trajectory": str(record.traj_uid),
                "step": number,
                "task": parsed.task if parsed else None,
                "state": record.anchor_obs,
                "prompt": record.input,
                "response": record.output,
                "action": record.action
                or (None if record.output is None else response.action),
                "admissible_actions": parsed.actions if parsed else None,
                "action_valid": response.valid
                if record.is_action_valid is None
                else bool(record.is_action_valid),
                "reward": reward,
                "won": won,
                "terminated": last and not truncated,
                "truncated": truncated,
            }
        )
    return rows


def read_prompt(prompt: str) -> ParsedPrompt | None:
    """Parse a prompt, with or without a chat template around it.

    Returns:
        The contents; None if the prompt is truncated or of another template.
    """
    benchmark = next(
        (name for name, opening in _BENCHMARKS.items() if opening in prompt), None
    )
    state = _STATE.search(prompt)
    actions = _ACTIONS.search(prompt)
    taken = _TAKEN.search(prompt)
    if benchmark is None or state is None or actions is None:
        return None
    # its template adds one after the task and the observation
    dot = "." if benchmark == "WebShop" else ""
    task = _TASK.search(prompt)
    return ParsedPrompt(
        benchmark=benchmark,
        task=task[1].strip().removesuffix(dot) if task else None,
        step=int(taken[1]) if taken else 0,
        state=state[1].removesuffix(dot),
        actions=tuple(
            re.split(r"',?\n\s?'", actions[1].strip().removesuffix(",")[1:-1])
        )
        if actions[1]
        else (),
    )
