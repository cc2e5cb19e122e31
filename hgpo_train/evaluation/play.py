"""Playing of every task of a split, once per seed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError
from hgpo_train.rollout.collector import Tally
from hgpo_train.rollout.failures import allowed_in_a_row
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, collect_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_datasets import StepWriter
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.env_handle import EnvHandle


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
    tally: Tally | None = None,
) -> bool:
    """Play every task of the split once per seed. Episodes that the run contains already are not played again.

    Args:
        handle: The environment.
        policy: The policy.
        writer: The writer of the run.
        seeds: Distinct integers of at least 0.
        execution: How the evaluation is executed; defaults if None.
        retry_failed: Whether to play the run's aborted episodes again.
        progress: Called regularly with the tally of all seeds so far.
        should_stop: Called regularly; True stops early.
        tally: The counts to update; new ones if None.

    Returns:
        Whether all episodes were played.

    Raises:
        InputError: The seeds are not distinct integers of at least 0.
        RolloutError: Too many episodes failed in a row. Finished episodes are committed.
    """
    check_seeds(seeds)
    execution = execution or ExecutionOptions()
    if execution.max_consecutive_failures is None:
        execution = replace(execution, max_consecutive_failures=allowed_in_a_row(len(handle.tasks) * len(seeds)))
    tally = tally or Tally()
    for seed in seeds:
        spec = RolloutSpec(tasks=len(handle.tasks), group_size=1, seed=seed, order="sweep", iteration=seed)
        collect_groups(
            handle,
            policy,
            writer,
            spec,
            execution,
            retry_failed=retry_failed,
            progress=progress,
            should_stop=should_stop,
            tally=tally,
        )
        if should_stop():
            return False
    return True


def check_seeds(seeds: Sequence[int]) -> None:
    """Check the seeds of an evaluation.

    Raises:
        InputError: They are not distinct integers in [0, 2³¹).
    """
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0 or max(seeds) >= 1 << 31:
        raise InputError(f"seeds: expected distinct integers from 0 to {(1 << 31) - 1}, received {list(seeds)}")
