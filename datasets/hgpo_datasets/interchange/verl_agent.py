"""Import of verl-agent's rollouts: JSON lines, one record a step.

Two kinds of records are read:

- *With ids*, as people dump a batch's non-tensor fields: `traj_uid`, `uid` (the group), `anchor_obs` (the state),
  `rewards`, `is_action_valid`, beside `input` and `output`. Within a trajectory, lines are in step order.
- *Without*, as `trainer.rollout_data_dir` gives them, one file an iteration: `input` (the prompt), `output` (the
  response), `score` (the episode's, less a penalty for an invalid action), `step` (the iteration). Balancing has mixed
  their order and padding has copied some or taken some away, so that trajectories are found again from the prompts.

Rewards are divided by the reward of success, so that they are the benchmark's own. `action_valid` is verl-agent's: the
response keeps the form. Source: verl-agent, `_dump_generations`, `_balance_batch` (verl/trainer/ppo/ray_trainer.py) and
`adjust_batch` (agent_system/multi_turn_rollout/utils.py).
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

from hgpo_datasets.interchange.verl_chains import Record, chains
from hgpo_datasets.interchange.verl_prompts import read_prompt, read_response
from hgpo_datasets.writer import StepWriter
from hgpo_envs.atomic import new_folder
from hgpo_envs.errors import InputError
from hgpo_envs.files import open_regular
from hgpo_envs.hashing import text_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hgpo_datasets.interchange.verl_prompts import Shown

SUCCESS_REWARD: Final = 10.0
"""What verl-agent's environments pay for success."""

Row = dict[str, Any]
Line = tuple[str, dict[str, Any]]


@dataclass(slots=True)
class Imported:
    """What an import found.

    Attributes:
        steps: Rows written.
        trajectories: Trajectories written.
        groups: Groups of rollouts written.
        left_out: Records without a whole trajectory around them, and copies.
        ambiguous: Records that could have followed more than one other.
    """

    steps: int = 0
    trajectories: int = 0
    groups: int = 0
    left_out: int = 0
    ambiguous: int = 0


def import_rollouts(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    success_reward: float = SUCCESS_REWARD,
    run: str | None = None,
) -> Imported:
    """Writes verl-agent's rollouts as a run; hashes, returns and lengths are computed.

    Args:
        source: A JSONL file, a folder of them, or several.
        out: The run's folder, which must not exist or be empty; it appears complete or not at all.
        success_reward: What the environment paid for success; rewards are divided by it.
        run: The run's name.

    Raises:
        InputError: A line is no JSON, or its record holds neither ids nor a prompt that can be read.
    """
    if not (math.isfinite(success_reward) and success_reward > 0):
        raise InputError(f"success_reward: expected a positive number, got {success_reward}")
    folder = Path(out).absolute()
    found = Imported()
    config = {"imported_from": "verl-agent", "success_reward": success_reward}
    with new_folder(folder) as made, StepWriter(made, run=run or folder.name, config=config) as writer:
        for file in _files(source):
            _import_file(file, writer, success_reward, found)
    return found


def _import_file(file: Path, writer: StepWriter, success_reward: float, found: Imported) -> None:
    lines = list(_lines(file))
    with_ids = bool(lines) and "traj_uid" in lines[0][1]
    rows = _with_ids(lines, file) if with_ids else _without_ids(lines, file, found)
    groups = _scaled(rows, success_reward)
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


def _lines(file: Path) -> Iterator[Line]:
    """The records, each with the name that a message gives it."""
    with open_regular(file, "JSONL file") as opened:
        for number, line in enumerate(opened, 1):
            name = f"{file}, line {number}"
            if not line.strip():
                continue
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise InputError(f"{name}: not JSON ({error})") from error
            if not isinstance(record, dict):
                raise InputError(f"{name}: expected an object, got {type(record).__name__}")
            yield name, record


def _with_ids(lines: list[Line], file: Path) -> list[Row]:
    trajectories: dict[str, list[Line]] = defaultdict(list)
    for name, record in lines:
        if "traj_uid" not in record:
            raise InputError(f"{name}: expected 'traj_uid' as in the lines before")
        trajectories[str(record["traj_uid"])].append((name, record))
    rows = []
    for trajectory, members in trajectories.items():
        iteration = _iteration([record for _, record in members], file)
        for step, (name, record) in enumerate(members):
            prompt, response = _first(record, "input", "prompt"), _first(record, "output", "response")
            shown = read_prompt(prompt) if prompt else None
            action, form = read_response(response or "", shown.benchmark if shown else None)
            valid = record.get("is_action_valid")
            rows.append(
                {
                    "iteration": iteration,
                    "task_id": str(_needed(record, name, "uid")),
                    "trajectory": trajectory,
                    "step": step,
                    "task": shown.task if shown else None,
                    "state": str(_needed(record, name, "anchor_obs", "obs", "state")),
                    "prompt": prompt,
                    "response": response,
                    "action": record.get("action", action if response is not None else None),
                    "admissible_actions": list(shown.actions) if shown else None,
                    "action_valid": form if valid is None else bool(valid),
                    "reward": _number(record, name, "rewards", "reward"),
                }
            )
    return rows


def _without_ids(lines: list[Line], file: Path, found: Imported) -> list[Row]:
    records = []
    for name, line in lines:
        prompt, response = _text(line, name, "input"), _text(line, name, "output")
        score = _number(line, name, "score")
        shown = read_prompt(prompt)
        if shown is None:
            raise InputError(f"{name}: expected a whole ALFWorld or WebShop prompt of verl-agent, or 'traj_uid'")
        action, valid = read_response(response, shown.benchmark)
        records.append(Record(shown, prompt, response, action, valid, score))
    trajectories, ambiguous = chains(records)
    found.ambiguous += ambiguous
    found.left_out += len(records) - sum(map(len, trajectories))
    iteration = _iteration([record for _, record in lines], file)
    rows = []
    for number, members in enumerate(trajectories):
        task_id = _task_id(members[0].shown)
        rows += [
            {
                "iteration": iteration,
                "task_id": task_id,
                "trajectory": f"{iteration}/{task_id}/{number}",
                "step": step,
                "task": next((one.shown.task for one in members if one.shown.task), None),
                "state": one.shown.state,
                "prompt": one.prompt,
                "response": one.response,
                "action": one.action,
                "admissible_actions": list(one.shown.actions),
                "action_valid": one.valid,
                "reward": max(record.score for record in members) if one is members[-1] else 0.0,
            }
            for step, one in enumerate(members)
        ]
    return rows


def _task_id(first: Shown) -> str:
    """A name for a task whose identifier is lost: the same wherever the first prompt shows the same."""
    return f"{text_hash(f'{first.benchmark}: {first.task}, {first.state}') & (1 << 64) - 1:016x}"


def _scaled(rows: list[Row], success_reward: float) -> dict[str, list[Row]]:
    """The rows by group, their rewards in the benchmark's scale, their last rows marked."""
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
    """The training iteration: the records' `step` if all have the same, else the file's number, else 0."""
    steps = [record.get("step") for record in records]
    first = steps[0] if steps else None
    if type(first) is int and 0 <= first < 1 << 31 and all(step == first for step in steps):
        return first
    return int(file.stem) if re.fullmatch("[0-9]{1,9}", file.stem) else 0


def _first(record: dict[str, Any], *names: str) -> str | None:
    return next((record[name] for name in names if isinstance(record.get(name), str)), None)


def _needed(record: dict[str, Any], line: str, *names: str) -> Any:  # noqa: ANN401 (whatever the record holds)
    for name in names:
        if record.get(name) is not None:
            return record[name]
    held = ", ".join(repr(name)[:40] for name in sorted(record)[:20])
    raise InputError(f"{line}: expected {' or '.join(map(repr, names))}; the record has {held}")


def _text(record: dict[str, Any], line: str, name: str) -> str:
    value = _needed(record, line, name)
    if not isinstance(value, str):
        raise InputError(f"{line}: expected a text as {name!r}, got {value!r:.80}")
    return value


def _number(record: dict[str, Any], line: str, *names: str) -> float:
    value = _needed(record, line, *names)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{line}: expected a finite number as {names[0]!r}, got {value!r:.80}")
    return number
