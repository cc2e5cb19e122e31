"""The core of a collection: from an open environment, a policy and a plan to committed shards."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import gymnasium
from msgspec import Meta

import hgpo_envs
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.task_sampling import TASK_SAMPLINGS
from hgpo_train.rollout.collector import Collector, Tally
from hgpo_train.rollout.groups import GroupScheduler, collected_groups, plan_groups
from hgpo_train.rollout.outcomes import OUTCOMES
from hgpo_train.rollout.slots import Slots, ThreadSlots
from hgpo_train.rollout.trajectory import columns_of
from hgpo_train.settings import NonNegativeInt, PositiveFloat, PositiveInt, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_datasets import StepWriter
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.trajectory import Row

gymnasium.register_envs(hgpo_envs)


@dataclass(frozen=True)
class RolloutSpec(Settings):
    """The content of a collection. The same values give the same step table.

    Attributes:
        tasks: Number of groups.
        group_size: G, the number of rollouts per group.
        seed: Seed of the task order and of every rollout.
        order: The task order, one of `hgpo_envs.task_sampling`.
        iteration: Training iteration, written to every row.
        skip: Number of tasks to skip at the start of the order.
        max_groups: Maximum number of groups to play with dynamic sampling, until `tasks` of them are informative. None
            turns dynamic sampling off.
        outcome: The outcome that must differ within an informative group (`hgpo_train.rollout.outcomes`).

    Raises:
        InputError: A value is out of range.
    """

    tasks: PositiveInt
    group_size: PositiveInt = 1
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    order: str = "shuffled"
    iteration: NonNegativeInt = 0
    skip: NonNegativeInt = 0
    max_groups: PositiveInt | None = None
    outcome: str = "reward"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in TASK_SAMPLINGS:
            raise InputError(unknown("task order", self.order, TASK_SAMPLINGS))
        if self.outcome not in OUTCOMES:
            raise InputError(unknown("outcome", self.outcome, OUTCOMES))
        if self.max_groups is not None and self.max_groups < self.tasks:
            raise InputError(f"max_groups: expected at least {self.tasks} wanted groups, received {self.max_groups}")

    @property
    def rollouts(self) -> int:
        """The largest number of rollouts."""
        return (self.max_groups or self.tasks) * self.group_size


@dataclass(frozen=True)
class ExecutionOptions(Settings):
    """How a collection is executed. The values affect its duration, not its content.

    Attributes:
        slots: Number of environments that run concurrently. Default: 256, or one per processor with `workers`.
        workers: Whether each environment runs in its own subprocess.
        worker_timeout_s: Maximum seconds for a command in a worker; a worker that takes longer is killed.
        policy_timeout_s: Maximum seconds for a reply of the policy; a request that takes longer fails.
        groups_per_shard: Number of finished groups at which they are committed, as a shard.
        shard_s: Seconds since the last commit after which finished groups are committed earlier, so that little is lost
            if the process is killed, and a viewer sees them. None waits for the other limits.
        shard_characters: Number of characters of their prompts and responses at which they are committed earlier. It
            bounds the memory of a collection.
        max_consecutive_failures: Number of rollouts that fail in a row, without a step in between, at which the run
            stops (`hgpo_train.rollout.collector.Collector`). None derives it from the number of all rollouts
            (`hgpo_train.rollout.failures.allowed_in_a_row`).

    Raises:
        InputError: A value is out of range.
    """

    slots: PositiveInt | None = None
    workers: bool = False
    worker_timeout_s: PositiveFloat = 300.0
    policy_timeout_s: PositiveFloat = 3600.0
    groups_per_shard: PositiveInt = 64
    shard_s: PositiveFloat | None = 60.0
    shard_characters: PositiveInt = 8 << 20
    max_consecutive_failures: PositiveInt | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slots is None:
            object.__setattr__(self, "slots", max(2, os.cpu_count() or 1) if self.workers else 256)


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
            other rollouts of its group are unchanged.
        progress: Called regularly with the tally.
        should_stop: Called regularly; True stops early. Finished groups are committed.
        tally: The counts to update, for several calls that belong together; new ones if None.

    Returns:
        The updated counts.

    Raises:
        RolloutError: Too many rollouts failed in a row. Finished groups are committed.
        Exception: A bug in a user's own policy (`hgpo_train.policies.registry`). Finished groups are committed.
    """
    execution, tally = execution or ExecutionOptions(), tally or Tally()
    done, failed = collected_groups(writer, spec.outcome, retry_failed=retry_failed)

    def commit(new: list[Row], again: list[Row]) -> None:
        for rows, store in ((again, writer.replace), (new, writer.add_group)):
            if rows:
                store({"env_id": [handle.env_id] * len(rows), **columns_of(rows)})
        writer.commit()

    groups = GroupScheduler(plan_groups(handle.tasks, spec), spec, execution, commit, done, failed)
    count = min(execution.slots or 1, spec.rollouts)
    concurrent: int | None = getattr(handle.shared.source, "concurrent", None)
    slots: Slots
    if execution.workers:
        from hgpo_train.rollout.workers import WorkerSlots

        slots = WorkerSlots(handle.shared, count, timeout_s=execution.worker_timeout_s)
    elif concurrent is not None:  # engines that wait for other processes, of which the source allows so many
        slots = ThreadSlots([handle.shared.source.engine() for _ in range(min(count, concurrent))])
    else:
        slots = Slots([handle.shared.source.engine() for _ in range(count)])
    collector = Collector(handle, slots, policy, groups, spec, execution, tally)
    try:
        collector.run(progress, should_stop)
    finally:
        slots.close()
        collector.release()
    return tally


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed within the block. A second Ctrl-C interrupts.

    Finished groups can thus be committed. Only the main thread receives Ctrl-C.
    """
    stops: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, _: object) -> None:
        if stops:
            raise KeyboardInterrupt
        stops.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(stops)
    finally:
        signal.signal(signal.SIGINT, before)
