"""A whole collection: environment and policy by name, from a plan to committed shards."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import gymnasium

import hgpo_envs
from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.secrets import redact_json
from hgpo_train.rollout.collector import Collector, Tally
from hgpo_train.rollout.commits import GroupCommitter
from hgpo_train.rollout.fingerprints import fingerprint_model, fingerprint_tasks
from hgpo_train.rollout.group_plan import plan_groups
from hgpo_train.rollout.group_scheduler import GroupScheduler, Key
from hgpo_train.rollout.outcomes import OUTCOMES, failed_groups, groups_with_mixed_outcomes
from hgpo_train.rollout.slots import LocalSlots, Slots
from hgpo_train.rollout.workers import WorkerSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hgpo_datasets import StepWriter
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.failures import FailedGroup

gymnasium.register_envs(hgpo_envs)


@dataclass(frozen=True)
class RolloutSpec:
    """What is to be collected; the same values give the same table.

    Attributes:
        tasks: How many groups.
        group_size: G, rollouts of each task.
        seed: Seeds the order of tasks and every rollout.
        order: How tasks are ordered: a name of `hgpo_envs.task_sampling`.
        iteration: Training iteration, written into every row.
        skip: Tasks of the order to pass over.
        max_groups: With dynamic sampling, the most groups to play until `tasks` of them are informative; None turns it
            off.
        outcome: What must differ within a group for it to be informative (`hgpo_train.rollout.outcomes`).
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
            value = getattr(self, name)
            if value < least:
                raise InputError(f"{name}: expected at least {least}, got {value}")
        if self.max_groups is not None and self.max_groups < self.tasks:
            raise InputError(
                f"max_groups: expected at least as many groups as are wanted ({self.tasks}), got {self.max_groups}"
            )
        if self.outcome not in OUTCOMES:
            raise InputError(f"outcome: expected one of {', '.join(OUTCOMES)}, got {self.outcome!r}")


@dataclass(frozen=True)
class ExecutionOptions:
    """How the collection is run; changes how long it takes, never what it gives.

    Attributes:
        slots: Environments at once.
        workers: Run each environment in a subprocess of its own.
        worker_timeout_s: A command that takes longer ends its worker.
        policy_timeout_s: A request that the policy does not answer within this many seconds fails.
        groups_per_shard: Groups that make a shard.
        max_consecutive_failures: Rollouts that may fail one after the other before the run stops.
    """

    slots: int = 256
    workers: bool = False
    worker_timeout_s: float = 300.0
    policy_timeout_s: float = 3600.0
    groups_per_shard: int = 64
    max_consecutive_failures: int = 64

    def __post_init__(self) -> None:
        for name in ("slots", "groups_per_shard", "max_consecutive_failures"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("worker_timeout_s", "policy_timeout_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}: expected more than 0 seconds, got {getattr(self, name)}")


def collect(
    handle: EnvHandle,
    policy: Policy,
    writer: StepWriter,
    spec: RolloutSpec,
    execution: ExecutionOptions | None = None,
    *,
    retry_failed: bool = False,
    progress: Callable[[Tally], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Tally:
    """Collects groups into a run; groups that the run already has are not played again.

    Args:
        handle: What is played.
        policy: What acts.
        writer: The run.
        spec: What is to be collected.
        execution: How it is run.
        retry_failed: Play the rollouts again that the run holds as aborted. Each takes the place of the aborted one;
            the other rollouts of its group stay as they are.
        progress: Called now and then.
        should_stop: Asked now and then; when it says so, whole groups are committed and the rest is left for later.

    Raises:
        RolloutError: Rollouts fail one after the other; whole groups are committed.
    """
    execution = execution or ExecutionOptions()
    tally = Tally()
    done, failed = already_collected(
        writer, None if spec.max_groups is None else spec.outcome, retry_failed=retry_failed
    )
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
        GroupCommitter(writer, handle.env_id, tally),
        max_groups=spec.max_groups,
        outcome=spec.outcome,
        together=execution.groups_per_shard,
        done=done,
        failed=failed,
        lookahead=8 * max(execution.slots, execution.groups_per_shard),
    )
    count = min(execution.slots, (spec.max_groups or spec.tasks) * spec.group_size)
    slots: Slots = (
        WorkerSlots(handle.shared, count, timeout_s=execution.worker_timeout_s)
        if execution.workers
        else LocalSlots(handle.shared, count)
    )
    try:
        return Collector(
            handle.shared,
            handle.settings,
            slots,
            policy,
            groups,
            seed=spec.seed,
            max_consecutive_failures=execution.max_consecutive_failures,
            policy_timeout_s=execution.policy_timeout_s,
            progress=progress,
            should_stop=should_stop,
            tally=tally,
        ).run()
    finally:
        slots.close()


def already_collected(
    writer: StepWriter, outcome: str | None, *, retry_failed: bool
) -> tuple[Mapping[Key, bool], Mapping[Key, FailedGroup]]:
    """What a run holds already.

    Args:
        writer: The run.
        outcome: The outcome that makes a group informative; None counts every group as informative.
        retry_failed: Whether failed rollouts are to be played again.

    Returns:
        The groups that are not played again, and whether each was informative; the failed groups that are.
    """
    done: dict[Key, bool] = dict.fromkeys(writer.committed, True)
    if not done:
        return done, {}
    steps = scan_steps(writer.folder)
    if outcome is not None:
        mixed = groups_with_mixed_outcomes(steps, outcome).collect()
        done = {**dict.fromkeys(done, False), **dict.fromkeys(mixed.rows(), True)}
    failed = failed_groups(steps, outcome) if retry_failed else {}
    return {key: says for key, says in done.items() if key not in failed}, failed


@dataclass
class StopRequest:
    """Ctrl-C as a wish: the first one is noted, the second one interrupts."""

    requested: bool = field(default=False)

    def __call__(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self.requested


@contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Within the block, the first Ctrl-C is noted only, so that what is whole can be committed."""
    interruption = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def note(number: int, frame: object) -> None:
        del number, frame
        if interruption.requested:
            raise KeyboardInterrupt
        interruption.requested = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)


_LOCAL_MODELS: Final = ("transformers", "vllm")


def run_config(
    handle: EnvHandle, env_options: Mapping[str, Any], policy: str, policy_options: Mapping[str, Any], spec: RolloutSpec
) -> dict[str, Any]:
    """What a run's rows depend on, stored with the run: not `ExecutionOptions`, nor how many groups are wanted.

    Paths name data and models that may change: their fingerprints are part of it. Secrets are replaced
    (`hgpo_envs.secrets`): another password does not make another run.
    """
    kind, _, model = policy.partition(":")
    weights = {"weights": fingerprint_model(model)} if kind in _LOCAL_MODELS else {}
    config: dict[str, Any] = {
        "env": {"id": handle.env_id, **env_options},
        "tasks": fingerprint_tasks(handle, env_options),
        "prompt_template": handle.settings.template.fingerprint,
        "policy": {"name": policy, **policy_options, **weights},
        "group_size": spec.group_size,
        "seed": spec.seed,
        "order": spec.order,
        "dynamic": spec.max_groups is not None,
    }
    return dict(redact_json(config))
