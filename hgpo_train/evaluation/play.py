"""Plays every task of a split exactly once a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError
from hgpo_train.rollout.run import RolloutSpec, collect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_datasets import StepWriter
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.collector import Tally
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.run import ExecutionOptions


SEEDS: Final = (123, 456, 789)
"""The seeds of the published evaluations."""


TEMPERATURE: Final = 0.4
"""The sampling temperature of the published evaluations."""


def evaluate(
    handle: EnvHandle,
    policy: Policy,
    writer: StepWriter,
    seeds: Sequence[int] = SEEDS,
    execution: ExecutionOptions | None = None,
    *,
    retry_failed: bool = False,
    progress: Callable[[Tally], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Plays every task of the split once for each seed; episodes that the run has are not played again.

    Args:
        handle: What is played.
        policy: What acts.
        writer: The run.
        seeds: Different integers, at least 0.
        execution: How it is run.
        retry_failed: Play the episodes again that the run holds as aborted.
        progress: Called now and then with the tally of the seed that is under way.
        should_stop: Asked now and then whether to stop early.

    Returns:
        Whether all of it is done.
    """
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise InputError(f"seeds: expected different integers of at least 0, got {list(seeds)}")
    for seed in seeds:
        spec = RolloutSpec(tasks=len(handle.tasks), group_size=1, seed=seed, order="sweep", iteration=seed)
        collect(
            handle,
            policy,
            writer,
            spec,
            execution,
            retry_failed=retry_failed,
            progress=progress,
            should_stop=should_stop,
        )
        if should_stop():
            return False
    return True
