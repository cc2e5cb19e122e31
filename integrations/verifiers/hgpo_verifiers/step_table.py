"""Results of verifiers as a step table, for `hgpo stats`, `hgpo advantages` and `hgpo view`.

    python -m hgpo_verifiers RESULTS.jsonl RUN HGPO/ALFWorld-v0

The results must have the column ``hgpo_steps``: `vf-eval … --save-results --state-columns hgpo_steps`, or
``state_columns=["hgpo_steps"]`` of `evaluate` and `generate`.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets import StepWriter
from hgpo_envs.errors import InputError
from hgpo_train.rollout.plan import PlannedGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

STEPS: Final = "hgpo_steps"
"""The field of a rollout's state that contains its rows. Name it in `state_columns` to keep it in results."""


def group_rows(
    rollouts: Sequence[Sequence[Mapping[str, Any]]], position: int, group: int = 0
) -> list[list[dict[str, Any]]]:
    """Return the rows of a group with the names of its members.

    Args:
        rollouts: The rows of each rollout of one task.
        position: The position of the task in the data set.
        group: Number of the group among those of this task.
    """
    named = []
    for member, rows in enumerate(rollouts):
        name = PlannedGroup(position, 0, "", group, len(rollouts)).trajectory(member)
        named.append([{**row, "trajectory": name, "group": group} for row in rows])
    return named


def write_steps(
    outputs: Iterable[Mapping[str, Any]],
    folder: str | Path,
    *,
    environment: str,
    config: Mapping[str, Any] | None = None,
) -> int:
    """Write the rollouts of an evaluation as a run.

    Args:
        outputs: ``results["outputs"]`` of `generate` or `evaluate`, or the lines of its ``results.jsonl``. The rollouts
            of one example are a group.
        folder: The run's folder.
        environment: The Gymnasium id, as the step table's ``env_id``.
        config: Stored with the run.

    Returns:
        The number of rows.

    Raises:
        InputError: A result has no rows.
    """
    ordered = sorted(outputs, key=lambda output: output["example_id"])
    count = 0
    groups_of_task = dict[str, int]()
    stored = {"env": {"id": environment}, **(config or {})}
    with StepWriter(folder, config=stored, defaults={"env_id": environment}) as writer:
        for example, members in groupby(ordered, key=lambda output: output["example_id"]):
            rollouts = [_rows(output) for output in members]
            task = rollouts[0][0]["task_id"]
            group = groups_of_task.get(task, 0)
            groups_of_task[task] = group + 1
            rows = [row for rollout in group_rows(rollouts, int(example), group) for row in rollout]
            writer.add_group(rows)
            count += len(rows)
    return count


def _rows(output: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = output.get(STEPS)
    if not rows:
        raise InputError(
            f"example {output.get('example_id')}: expected the column {STEPS}, received none; "
            f"evaluate with --state-columns {STEPS}"
        )
    return list(rows)
