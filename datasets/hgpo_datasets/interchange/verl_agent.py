"""Import verl-agent's rollouts: JSON lines, one record per step.

A record contains `traj_uid`, `uid` (the group), `anchor_obs` (the state) and `rewards`, and optionally `input` (the
prompt), `output` (the response), `is_action_valid` and `step` (the training iteration). verl-agent's
`trainer.rollout_data_dir` writes only `input`, `output`, `score` and `step`; docs/interchange.md shows how to add the
others. verl reorders a batch and pads it with copies before it writes the records. The import therefore sorts the steps
of a trajectory by the step numbers in their prompts, and drops the copies.

Rewards are divided by verl-agent's reward of success, which gives the benchmark's own scale. `action_valid` is
verl-agent's flag: the response has the required form. Source: verl-agent, `_dump_generations`, `_balance_batch`
(verl/trainer/ppo/ray_trainer.py) and `adjust_batch` (agent_system/multi_turn_rollout/utils.py).
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from hgpo_datasets.interchange.verl_prompts import ParsedPrompt, read_prompt, read_response
from hgpo_datasets.writer import StepWriter
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.untrusted_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SUCCESS_REWARD: Final = 10.0
"""Reward of a success in verl-agent's environments."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Record:
    """One line of a file.

    Attributes:
        name: File and line, for error messages.
        values: The JSON object.
        parsed: The parsed prompt; None if the prompt is absent, truncated, or of another template.
    """

    name: str
    values: dict[str, Any]
    parsed: ParsedPrompt | None


@dataclass(slots=True)
class ImportSummary:
    """Counts of an import.

    Attributes:
        steps: Rows written.
        trajectories: Trajectories written.
        groups: Groups of rollouts written.
        left_out: Records that were dropped: copies, and trajectories with a missing step.
    """

    steps: int = 0
    trajectories: int = 0
    groups: int = 0
    left_out: int = 0


def import_rollouts(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    success_reward: float = SUCCESS_REWARD,
    run: str | None = None,
) -> ImportSummary:
    """Write verl-agent's rollouts as a run. Hashes, returns and lengths are computed.

    Args:
        source: JSONL file, folder of JSONL files, or a list of these.
        out: Folder of the new run; it must be missing or empty. It is written atomically.
        success_reward: Reward of a success in the recorded environment; all rewards are divided by it.
        run: Name of the run; the folder's name by default.

    Raises:
        InputError: A line is not JSON, a record lacks an id, a state or a reward, or the prompts do not give the order
            of a trajectory's steps.
    """
    if not (math.isfinite(success_reward) and success_reward > 0):
        raise InputError(f"success_reward: expected a positive number, received {success_reward}")
    folder = Path(out).absolute()
    found = ImportSummary()
    config = {"imported_from": "verl-agent", "success_reward": success_reward}
    with new_folder(folder) as made, StepWriter(made, run=run or folder.name, config=config) as writer:
        for file in _files(source):
            _import_file(file, writer, success_reward, found)
    return found


def _import_file(file: Path, writer: StepWriter, success_reward: float, found: ImportSummary) -> None:
    groups = _scaled(_rows(file, found), success_reward)
    for group in groups.values():
        writer.add_group(group)
        found.steps += len(group)
        found.trajectories += len({row["trajectory"] for row in group})
    found.groups += len(groups)


def _files(source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    found: list[Path] = []
    for path in map(Path, given):
        inside = sorted(path.glob("*.jsonl"), key=lambda file: (len(file.stem), file.stem)) if path.is_dir() else [path]
        if not inside or not inside[0].exists():
            raise InputError(f"{path}: expected a JSONL file, or a folder of them")
        found += inside
    return found


def _records(file: Path) -> Iterator[_Record]:
    with open_regular(file, "JSONL file") as opened:
        for number, line in enumerate(opened, 1):
            name = f"{file}, line {number}"
            if not line.strip():
                continue
            try:
                values = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise InputError(f"{name}: not JSON ({error})") from error
            if not isinstance(values, dict):
                raise InputError(f"{name}: expected an object, received {type(values).__name__}")
            prompt = _first(values, "input", "prompt")
            yield _Record(name, values, read_prompt(prompt) if prompt else None)


def _rows(file: Path, found: ImportSummary) -> list[Row]:
    """Return the rows of a file, grouped by trajectory."""
    trajectories: dict[str, list[_Record]] = defaultdict(list)
    for record in _records(file):
        trajectories[_trajectory(record)].append(record)
    rows = []
    for trajectory, records in trajectories.items():
        members = _in_order(records)
        found.left_out += len(records) - len(members)
        iteration = _iteration([record.values for record in members], file)
        rows += [_row(record, trajectory, iteration, step) for step, record in enumerate(members)]
    return rows


def _trajectory(record: _Record) -> str:
    if "traj_uid" not in record.values:
        raise InputError(
            f"{record.name}: expected 'traj_uid'; the record contains {_names(record.values)}. Add it to the "
            "reward_extra_infos_dict of verl-agent's _dump_generations (docs/interchange.md)"
        )
    return str(record.values["traj_uid"])


def _in_order(records: list[_Record]) -> list[_Record]:
    """Return a trajectory's records sorted by the step numbers in their prompts, without duplicates.

    If no prompt has a step number, the order is unchanged. If a number is missing, the result is empty.
    """
    numbers = [record.parsed.step if record.parsed else None for record in records]
    known = [number for number in numbers if number is not None]
    if not any(known) or (len(known) < len(records) and known == sorted(set(known))):
        return records
    if len(known) < len(records):
        name = records[numbers.index(None)].name
        raise InputError(f"{name}: expected a complete prompt, because the steps of its trajectory are out of order")
    by_step = dict(zip(reversed(known), reversed(records), strict=True))  # reversed: the first duplicate is kept
    return [by_step[number] for number in sorted(by_step)] if max(by_step) < len(by_step) else []


def _row(record: _Record, trajectory: str, iteration: int, step: int) -> Row:
    values, parsed = record.values, record.parsed
    response = _first(values, "output", "response")
    action, form = read_response(response or "", parsed.benchmark if parsed else None)
    valid = values.get("is_action_valid")
    return {
        "iteration": iteration,
        "task_id": str(_needed(record, "uid")),
        "trajectory": trajectory,
        "step": step,
        "task": parsed.task if parsed else None,
        "state": str(_needed(record, "anchor_obs", "obs", "state")),
        "prompt": _first(values, "input", "prompt"),
        "response": response,
        "action": values.get("action", action if response is not None else None),
        "admissible_actions": list(parsed.actions) if parsed else None,
        "action_valid": form if valid is None else bool(valid),
        "reward": _number(record, "rewards", "reward"),
    }


def _scaled(rows: list[Row], success_reward: float) -> dict[str, list[Row]]:
    """Return the rows by group, with rewards in the benchmark's scale and the flags of last rows."""
    ends = {row["trajectory"]: row["step"] for row in rows}
    limit = max(ends.values(), default=0)
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        reward = max(0.0, row["reward"] / success_reward)
        last = row["step"] == ends[row["trajectory"]]
        won = last and reward >= 1.0
        truncated = last and not won and row["step"] == limit
        marks = {"won": won, "terminated": last and not truncated, "truncated": truncated}
        groups[row["task_id"]].append({**row, "reward": reward, **marks})
    return groups


def _iteration(records: list[dict[str, Any]], file: Path) -> int:
    """Return the training iteration: the records' common `step`, else the number in the file's name, else 0."""
    steps = [record.get("step") for record in records]
    first = steps[0] if steps else None
    if type(first) is int and 0 <= first < 1 << 31 and all(step == first for step in steps):
        return first
    return int(file.stem) if re.fullmatch("[0-9]{1,9}", file.stem) else 0


def _first(record: dict[str, Any], *names: str) -> str | None:
    return next((record[name] for name in names if isinstance(record.get(name), str)), None)


def _needed(record: _Record, *names: str) -> Any:  # noqa: ANN401 (whatever the record holds)
    for name in names:
        if record.values.get(name) is not None:
            return record.values[name]
    expected = " or ".join(map(repr, names))
    raise InputError(f"{record.name}: expected {expected}; the record contains {_names(record.values)}")


def _names(values: dict[str, Any]) -> str:
    return ", ".join(repr(name)[:40] for name in sorted(values)[:20]) or "nothing"


def _number(record: _Record, *names: str) -> float:
    value = _needed(record, *names)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{record.name}: expected a finite number as {names[0]!r}, received {value!r:.80}")
    return number
