"""The core of a collection: from an open environment, a policy and a plan to committed shards."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gymnasium

import hgpo_envs
from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.task_sampling import TASK_SAMPLINGS
from hgpo_train.rollout.collector import Collector, Tally
from hgpo_train.rollout.failures import allowed_in_a_row
from hgpo_train.rollout.group_plan import plan_groups
from hgpo_train.rollout.group_scheduler import GroupScheduler, collected_groups
from hgpo_train.rollout.outcomes import OUTCOMES
from hgpo_train.rollout.slots import LocalSlots, Slots, ThreadSlots
from hgpo_train.rollout.trajectory import columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_datasets import StepWriter
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.trajectory import Row

gymnasium.register_envs(hgpo_envs)


@dataclass(frozen=True)
class RolloutSpec:
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

    tasks: int
    group_size: int = 1
    seed: int = 0
    order: str = "shuffled"
    iteration: int = 0
    skip: int = 0
    max_groups: int | None = None
    outcome: str = "reward"

    def __post_init__(self) -> None:
        for name, least in (("tasks", 1), ("group_size", 1), ("iteration", 0), ("skip", 0)):
            check_integer(name, getattr(self, name), least)
        check_integer("seed", self.seed)
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise InputError(f"seed: expected an integer of at most 64 bits, received {self.seed}")
        if self.order not in TASK_SAMPLINGS:
            raise InputError(unknown("task order", self.order, TASK_SAMPLINGS))
        if self.max_groups is not None:
            check_integer("max_groups", self.max_groups)
            if self.max_groups < self.tasks:
                raise InputError(
                    f"max_groups: expected at least the number of wanted groups ({self.tasks}), received "
                    f"{self.max_groups}"
                )
        if self.outcome not in OUTCOMES:
            raise InputError(f"outcome: expected one of {', '.join(OUTCOMES)}, received {self.outcome!r}")


def check_integer(name: str, value: object, least: int | None = None) -> None:
    """Check that a value is an integer of at least `least`.

    Raises:
        InputError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name}: expected an integer, received {one_line(repr(value))}")
    if least is not None and value < least:
        raise InputError(f"{name}: expected at least {least}, received {value}")


@dataclass(frozen=True)
class ExecutionOptions:
    """How a collection is executed. The values affect its duration, not its content.

    Attributes:
        slots: Number of environments that run concurrently.
        workers: Whether each environment runs in its own subprocess.
        worker_timeout_s: Maximum seconds for a command in a worker; a worker that takes longer is killed.
        policy_timeout_s: Maximum seconds for a reply of the policy; a request that takes longer fails.
        groups_per_shard: Number of finished groups at which they are committed, as a shard.
        shard_characters: Number of characters of their prompts and responses at which they are committed earlier. It
            bounds the memory of a collection.
        max_consecutive_failures: Number of rollouts that fail in a row, without a step in between, at which the run
            stops (`hgpo_train.rollout.collector.Collector`). None derives it from the number of all rollouts
            (`hgpo_train.rollout.failures.allowed_in_a_row`).

    Raises:
        InputError: A value is out of range.
    """

    slots: int = 256
    workers: bool = False
    worker_timeout_s: float = 300.0
    policy_timeout_s: float = 3600.0
    groups_per_shard: int = 64
    shard_characters: int = 8 << 20
    max_consecutive_failures: int | None = None

    def __post_init__(self) -> None:
        for name in ("slots", "groups_per_shard", "shard_characters", "max_consecutive_failures"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        for name in ("worker_timeout_s", "policy_timeout_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0:
                raise InputError(f"{name}: expected more than 0 seconds, received {one_line(repr(value))}")


def default_slots(*, workers: bool) -> int:
    """Return the default number of slots: one per processor if each environment is a process."""
    return max(2, os.cpu_count() or 1) if workers else ExecutionOptions.slots


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
        Exception: A bug in a user's own policy (`hgpo_train.policies.own`). Finished groups are committed.
    """
    execution, tally = execution or ExecutionOptions(), tally or Tally()
    outcome = None if spec.max_groups is None else spec.outcome
    done, failed = collected_groups(writer, outcome, retry_failed=retry_failed)

    def commit(new: list[Row], again: list[Row]) -> None:
        for rows, store in ((again, writer.replace), (new, writer.add_group)):
            if rows:
                store({"env_id": [handle.env_id] * len(rows), **columns_of(rows)})
        writer.commit()

    groups = GroupScheduler(
        plan_groups(
            handle.tasks,
            order=spec.order,
            seed=spec.seed,
            group_size=spec.group_size,
            iteration=spec.iteration,
            skip=spec.skip,
        ),
        spec.tasks,
        commit,
        max_groups=spec.max_groups,
        outcome=spec.outcome,
        together=execution.groups_per_shard,
        characters=execution.shard_characters,
        done=done,
        failed=failed,
    )
    rollouts = (spec.max_groups or spec.tasks) * spec.group_size
    count = min(execution.slots, rollouts)
    concurrent: int | None = getattr(handle.shared.source, "concurrent", None)
    slots: Slots
    if execution.workers:
        from hgpo_train.rollout.workers import WorkerSlots

        slots = WorkerSlots(handle.shared, count, timeout_s=execution.worker_timeout_s)
    elif concurrent is not None:  # engines that wait for other processes, of which the source allows so many
        slots = ThreadSlots([handle.shared.source.engine() for _ in range(min(count, concurrent))])
    else:
        slots = LocalSlots([handle.shared.source.engine() for _ in range(count)])
    collector = Collector(
        handle,
        slots,
        policy,
        groups,
        tally,
        seed=spec.seed,
        failures_allowed=execution.max_consecutive_failures or allowed_in_a_row(rollouts),
        policy_timeout_s=execution.policy_timeout_s,
    )
    try:
        collector.run(progress, should_stop)
    finally:
        slots.close()
    return tally


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed within the block. A second Ctrl-C interrupts.

    Finished groups can thus be committed. Only the main thread receives Ctrl-C.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop.is_set
        return

    def note(number: int, frame: object) -> None:
        del number, frame
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield stop.is_set
    finally:
        signal.signal(signal.SIGINT, before)
