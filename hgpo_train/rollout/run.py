"""The core of a collection: from an open environment, a policy and a plan to committed shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium
import polars as pl

import hgpo_envs
from hgpo_datasets.branches import has_branches
from hgpo_train.rollout.branch_groups import branch_rollouts
from hgpo_train.rollout.collector import play_groups
from hgpo_train.rollout.groups import GroupScheduler
from hgpo_train.rollout.kept_groups import KeptGroups
from hgpo_train.rollout.outcomes import group_table
from hgpo_train.rollout.plan import ExecutionOptions, FailedGroup, plan_groups
from hgpo_train.rollout.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_datasets import StepWriter
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.plan import Key, RolloutSpec

gymnasium.register_envs(hgpo_envs)


def collect_groups(
    handle: EnvHandle,
    policy: Policy,
    writer: StepWriter,
    spec: RolloutSpec,
    execution: ExecutionOptions | None = None,
    *,
    retry_failed: bool = False,
    progress: Callable[[Tally], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    tally: Tally | None = None,
) -> Tally:
    """Collect groups into a run. Groups that the run contains already are not played again.

    Args:
        handle: The environment.
        policy: The policy.
        writer: The writer of the run.
        spec: The content of the collection.
        execution: How it is executed; defaults if None.
        retry_failed: Whether to play the run's aborted rollouts again. A retried rollout replaces the aborted one; the
            other rollouts of its group are unchanged. Rollouts that have branches stay as they are.
        progress: Called regularly with the tally.
        should_stop: Called regularly; True stops early. Finished groups are committed.
        tally: The counts to update, for several calls that belong together; new ones if None.

    Returns:
        The updated counts.

    Raises:
        RolloutError: Too many rollouts failed in a row, or to branch the others. Finished groups are committed.
        Exception: A bug in a user's own policy (`hgpo_train.policies.registry`). Finished groups are committed.
    """
    execution = execution or ExecutionOptions()
    tally = tally or Tally()
    replayed = retry_failed
    if spec.branch is not None:
        # Points were chosen among the rollouts as they were: others would have other branches.
        here = pl.col("iteration") == spec.iteration
        replayed &= not has_branches(writer.scan().filter(here))
    # Groups of the run are not played again, but for failed rollouts; it counts whether they are informative.
    done: dict[Key, bool] = {}
    failed: dict[Key, FailedGroup] = {}
    if writer.committed:
        stored = group_table(writer.scan(), spec.outcome).collect()
        for iteration, task_id, group, trajectories, ends in stored.iter_rows():
            if trajectories and replayed:
                failed[iteration, task_id, group] = FailedGroup(
                    frozenset(trajectories), ends
                )
            else:
                done[iteration, task_id, group] = len(set(ends)) > 1

    kept = KeptGroups(
        writer,
        handle.env_id,
        keeps=spec.branch is not None,
        longest_s=execution.shard_s,
    )
    plan = plan_groups(handle.tasks, spec)
    groups = GroupScheduler(plan, spec, execution, kept.commit, done, failed)
    try:
        play_groups(
            handle,
            policy,
            groups,
            spec,
            execution,
            tally,
            progress=progress,
            should_stop=should_stop,
        )
        if spec.branch is not None and not should_stop():
            branch_rollouts(
                handle,
                policy,
                writer,
                spec,
                execution,
                tally,
                kept.frames,
                retry_failed=retry_failed,
                progress=progress,
                should_stop=should_stop,
            )
    finally:
        if spec.branch is not None:  # what ended without its branches
            kept.write()
    return tally
