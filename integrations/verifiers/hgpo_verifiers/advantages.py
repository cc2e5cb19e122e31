"""Advantages of steps in verifiers' traces, for trainers that compare the rollouts of a task, such as prime-rl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute
from hgpo_verifiers.taskset import STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import verifiers.v1 as vf


def assign_advantages(
    episodes: Sequence[vf.Episode], estimator: str = "hgpo", **parameters: Any
) -> None:
    """Give the sampled tokens of each step the advantage of that step, in ``node.advantages``.

    Traces that failed or are not trained keep None. A step is a branch of its trace, so each has an advantage of its
    own.

    Args:
        episodes: The rollouts of one task.
        estimator: The estimator: one that compares rollouts of one task, such as ``hgpo``, ``gigpo`` or ``grpo``.
        parameters: Its parameters.

    Raises:
        InputError: The estimator or a parameter is unknown, or a trace is not of `StepHarness`.
    """
    traces = [
        trace
        for episode in episodes
        for trace in episode.traces
        if trace.ok and trace.agent.trainable
    ]
    rows = []
    nodes = []
    for number, trace in enumerate(traces):
        replies = [node for node in trace.nodes if node.sampled]
        steps = trace.info.get(STEPS, ())
        if len(steps) != len(replies):
            raise InputError(
                f"trace {trace.id}: expected one step a reply, received {len(steps)} of {len(replies)}"
            )
        nodes += replies
        for step, columns in enumerate(steps):
            rows.append(
                {**columns, "task_id": "task", "trajectory": str(number), "step": step}
            )
    if not rows:
        return
    table = compute(
        pl.DataFrame(rows, infer_schema_length=None), estimator, **parameters
    )
    found = table.select("advantage").collect(engine="in-memory")["advantage"]
    for node, value in zip(nodes, found, strict=True):
        node.advantages = [value] * sum(node.mask)
