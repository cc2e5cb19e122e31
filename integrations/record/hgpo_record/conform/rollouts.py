"""Small step tables for the checks, written as rewards: tasks, their rollouts, and the rewards of their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA: Final = {
    "run": pl.String,
    "iteration": pl.Int64,
    "task_id": pl.String,
    "group": pl.Int64,
    "trajectory": pl.String,
    "step": pl.Int64,
    "task": pl.String,
    "state": pl.String,
    "next_state": pl.String,
    "action": pl.String,
    "action_valid": pl.Boolean,
    "reward": pl.Float64,
    "won": pl.Boolean,
    "terminated": pl.Boolean,
    "truncated": pl.Boolean,
    "aborted": pl.Boolean,
    "tokens": pl.Int64,
}
"""The columns of a table: those of a step table that estimators read, and the number of response tokens."""

PLAIN: Final = {
    "won": [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]],
    "rare": [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]],
}
"""Two tasks with four rollouts of two steps."""

ONE_STEP: Final = {
    "won": [[1.0], [0.0], [0.0], [0.5]],
    "rare": [[0.0], [0.0], [0.25], [1.0]],
}
"""Two tasks with four rollouts of one step."""

KEYS: Final = ("task_id", "trajectory", "step")
"""The columns that identify a row."""


def table(tasks: Mapping[str, Sequence[Sequence[float]]]) -> pl.DataFrame:
    """Return a step table, its rows in the order of tasks, rollouts and steps.

    All rollouts of a task begin in one state. Later states are named by the task, the rollout and the step, so that no
    two rollouts meet again; the lengths of responses differ.

    Args:
        tasks: For each task its rollouts, each as the rewards of its steps.

    >>> table({"a": [[0.0, 1.0], [0.0]]})["state"].to_list()
    ['a starts', 'a/0 at 1', 'a starts']
    """
    rows = []
    for task, rollouts in tasks.items():
        for member, rewards in enumerate(rollouts):
            states = [f"{task} starts"]
            states += [
                f"{task}/{member} at {step}" for step in range(1, len(rewards) + 1)
            ]
            for step, reward in enumerate(rewards):
                last = step == len(rewards) - 1
                rows.append(
                    {
                        "run": "conform",
                        "iteration": 0,
                        "task_id": task,
                        "group": 0,
                        "trajectory": f"{task}/{member}",
                        "step": step,
                        "task": f"the task {task}",
                        "state": states[step],
                        "next_state": states[step + 1],
                        "action": f"act {member}",
                        "action_valid": True,
                        "reward": reward,
                        "won": sum(rewards) > 0,
                        "terminated": last,
                        "truncated": False,
                        "aborted": False,
                        # Lengths that differ between the steps of a rollout show whose mask was used.
                        "tokens": 1 + (2 * step + member) % 4,
                    }
                )
    return pl.DataFrame(rows, schema=SCHEMA)


def returns(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the sum of each rollout's rewards, in the order of the rollouts' first rows."""
    return steps.group_by("task_id", "trajectory", maintain_order=True).agg(
        pl.col("reward").sum()
    )
