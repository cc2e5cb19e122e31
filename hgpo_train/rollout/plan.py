"""The plan of a collection: what is played, how it is executed, and the groups in their order."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from msgspec import Meta

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.hashing import text_hash
from hgpo_envs.task_sampling import TASK_SAMPLINGS
from hgpo_envs.unicode_text import clean_text
from hgpo_train.rollout import branch_rules
from hgpo_train.rollout.branch_rules import WIDTH, Width
from hgpo_train.rollout.failures import MAX_FAILED
from hgpo_train.rollout.outcomes import OUTCOMES
from hgpo_train.settings import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
    check,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.branch_points import BranchPoint

_SLOTS: Final = 256


def independent_rollouts(group_size: int, branch: str | None) -> int:
    """Return how many rollouts of a group begin with the task: all, or half of them where they branch by a rule."""
    return group_size if branch is None else (group_size + 1) // 2


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
        dynamic: Maximum number of groups to play with dynamic sampling, until `tasks` of them are informative. None
            turns dynamic sampling off.
        outcome: The outcome that must differ within an informative group (`hgpo_train.rollout.outcomes`).
        branch: The rule at which rollouts branch (`hgpo_train.rollout.branch_rules`). Half of a group are then rollouts
            of their own, and their branches take as many steps as the other half would. None plays no branches.
        width: Number of branches at each point.

    Raises:
        InputError: A value is out of range, or the rule cannot be used during a collection.
    """

    tasks: PositiveInt
    group_size: PositiveInt = 1
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    order: str = "shuffled"
    iteration: NonNegativeInt = 0
    skip: NonNegativeInt = 0
    dynamic: PositiveInt | None = None
    outcome: str = "reward"
    branch: str | None = None
    width: Width = WIDTH

    def __post_init__(self) -> None:
        check(self)
        if self.order not in TASK_SAMPLINGS:
            raise InputError(unknown("task order", self.order, TASK_SAMPLINGS))
        if self.outcome not in OUTCOMES:
            raise InputError(unknown("outcome", self.outcome, OUTCOMES))
        if self.dynamic is not None and self.dynamic < self.tasks:
            raise InputError(
                f"dynamic: expected at least {self.tasks} wanted groups, received {self.dynamic}"
            )
        if self.branch is not None:
            branch_rules.check_in_rollouts(self.branch, self.group_size)

    @property
    def rollouts(self) -> int:
        """The largest number of rollouts, without branches."""
        size = independent_rollouts(self.group_size, self.branch)
        return (self.dynamic or self.tasks) * size


@dataclass(frozen=True)
class ExecutionOptions(Settings):
    """How a collection is executed. The values affect its duration, not its content.

    Attributes:
        slots: Number of environments that run concurrently; None for the default (`slots_for`).
        workers: Whether each environment runs in its own subprocess.
        worker_timeout_s: Maximum seconds for a command in a worker; a worker that takes longer is killed.
        policy_timeout_s: Maximum seconds for a reply of the policy; a request that takes longer fails.
        groups_per_shard: Number of finished groups at which they are committed, as a shard.
        shard_s: Seconds since the last commit after which finished groups are committed earlier, so that little is lost
            if the process is killed, and a viewer sees them. None waits for the other limits.
        shard_characters: Number of characters of their prompts and responses at which they are committed earlier. It
            bounds the memory of a collection.
        max_failed: The largest share of failed rollouts that are branched.
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
    max_failed: float = MAX_FAILED
    max_consecutive_failures: PositiveInt | None = None

    def slots_for(self, policy: Policy) -> int:
        """Return the number of concurrent environments: by default one per processor with `workers`, else 256."""
        if self.slots is not None:
            return self.slots
        if self.workers:
            return max(2, os.cpu_count() or 1)
        return getattr(policy, "slots", None) or _SLOTS


Key = tuple[int, str, int]
"""The key of a group in a run: iteration, task id, group."""


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group of G rollouts of one task, or the branches of a stored group that are to be played.

    Attributes:
        position: Position in the plan, from 0.
        iteration: Training iteration; 0 outside training.
        task_id: Id of the task.
        group: Number of the group among those of this task in this iteration, from 0.
        size: G, the number of rollouts.
        branches: The name of each branch, and the point at which it starts; empty if the rollouts start the task.
    """

    position: int
    iteration: int
    task_id: str
    group: int
    size: int

    branches: Sequence[tuple[str, BranchPoint]] = ()

    def trajectory(self, member: int) -> str:
        """Return the id of a member's trajectory. Ids are unique in a run and sort in the plan's order."""
        if self.branches:
            return self.branches[member][0]
        return f"{self.iteration:05d}-{self.position:07d}-{member:04d}"

    def seed(self, run_seed: int, member: int) -> int:
        """Return a member's seed in [0, 2⁶³). It does not depend on other groups or on timing.

        That of a branch depends on the branch alone, so that further points change no other branch.
        """
        name = f"{self.iteration}/{self.task_id}/{self.group}/{member}"
        if self.branches:
            name, _ = self.branches[member]
        return text_hash(f"{run_seed}/{name}") % (1 << 63)


def plan_groups(ids: Sequence[str], spec: RolloutSpec) -> Iterator[PlannedGroup]:
    """Yield groups of the tasks of a split without end, in the order of a collection.

    Raises:
        InputError: A task id is not text, or contains lone surrogates.
    """
    # Orders with replacement draw a task several times: each time it is another group.
    times: dict[str, int] = {}
    stream = TASK_SAMPLINGS[spec.order](ids, spec.seed)
    size = independent_rollouts(spec.group_size, spec.branch)
    for position, task_id in enumerate(islice(stream, spec.skip, None)):
        value: object = task_id
        if not isinstance(value, str) or clean_text(value) != value:
            raise InputError(
                f"expected text without lone surrogates as a task id, received {task_id!r}"
            )
        group = times.get(task_id, 0)
        times[task_id] = group + 1
        yield PlannedGroup(position, spec.iteration, task_id, group, size)


class FailedGroup(NamedTuple):
    """A committed group with failed rollouts, which are to be retried: their ids, and the outcomes of the others."""

    trajectories: frozenset[str]
    outcomes: Sequence[float | bool]
