"""The groups of a collection: their plan, which begins next, whether they are informative, and their commits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_envs.task_sampling import task_stream
from hgpo_envs.unicode_text import clean_text
from hgpo_train.rollout.outcomes import OUTCOMES, group_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_datasets import StepWriter
    from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec
    from hgpo_train.rollout.trajectory import Row, Trajectory

Key = tuple[int, str, int]
"""The key of a group in a run: iteration, task id, group."""


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group of G rollouts of one task.

    Attributes:
        position: Position in the plan, from 0.
        iteration: Training iteration; 0 outside training.
        task_id: Id of the task.
        group: Number of the group among those of this task in this iteration, from 0.
        size: G, the number of rollouts.
    """

    position: int
    iteration: int
    task_id: str
    group: int
    size: int

    @property
    def key(self) -> Key:
        """The key of the group in a step table."""
        return self.iteration, self.task_id, self.group

    def trajectory(self, member: int) -> str:
        """Return the id of a member's trajectory. Ids are unique in a run and sort in the plan's order."""
        return f"{self.iteration:05d}-{self.position:07d}-{member:04d}"

    def seed(self, run_seed: int, member: int) -> int:
        """Return a member's seed in [0, 2⁶³). It does not depend on other groups or on timing."""
        return text_hash(f"{run_seed}/{self.iteration}/{self.task_id}/{self.group}/{member}") % (1 << 63)


def plan_groups(ids: Sequence[str], spec: RolloutSpec) -> Iterator[PlannedGroup]:
    """Yield groups of the tasks of a split without end, in the order of a collection.

    Raises:
        InputError: A task id is not text, or contains lone surrogates.
    """
    times: dict[str, int] = {}
    for position, task_id in enumerate(islice(task_stream(spec.order, ids, spec.seed), spec.skip, None)):
        value: object = task_id
        if not isinstance(value, str) or clean_text(value) != value:
            raise InputError(f"expected text without lone surrogates as a task id, received {task_id!r}")
        group = times.get(task_id, 0)
        times[task_id] = group + 1
        yield PlannedGroup(position, spec.iteration, task_id, group, spec.group_size)


class FailedGroup(NamedTuple):
    """A committed group with failed rollouts, which are to be retried: their ids, and the outcomes of the others."""

    trajectories: frozenset[str]
    outcomes: Sequence[float | bool]


def collected_groups(
    writer: StepWriter, outcome: str, *, retry_failed: bool
) -> tuple[dict[Key, bool], dict[Key, FailedGroup]]:
    """Return the groups of a run that are not played again, with whether each is informative, and those to retry."""
    done: dict[Key, bool] = {}
    failed: dict[Key, FailedGroup] = {}
    if not writer.committed:
        return done, failed
    groups = group_table(scan_steps(writer.folder), outcome).collect()
    for iteration, task_id, group, trajectories, ends in groups.iter_rows():
        if trajectories and retry_failed:
            failed[iteration, task_id, group] = FailedGroup(frozenset(trajectories), ends)
        else:
            done[iteration, task_id, group] = len(set(ends)) > 1
    return done, failed


@dataclass
class _ActiveGroup:
    missing: int
    outcomes: list[float | bool]
    characters: int = 0
    rows: dict[int, list[Row]] = field(default_factory=dict)


class GroupScheduler:
    """Starts groups in the order of the plan, and commits finished ones.

    What is played does not depend on the order in which rollouts end; only the order of the groups in the files does.

    With dynamic sampling, a group begins only while informative and active groups together are fewer than wanted. The
    choice of groups therefore does not depend on the order in which they finish.

    Args:
        plan: The groups, without end.
        spec: How many groups are wanted, and which are informative.
        execution: How many finished groups are committed together.
        commit: Commits the rows of new groups, and rows that replace failed rollouts.
        done: Groups that are committed already and not played again, and whether each is informative.
        failed: Committed groups whose failed rollouts are retried, even if no further group is wanted. They are not in
            `done`.
    """

    def __init__(
        self,
        plan: Iterator[PlannedGroup],
        spec: RolloutSpec,
        execution: ExecutionOptions,
        commit: Callable[[list[Row], list[Row]], None],
        done: Mapping[Key, bool],
        failed: Mapping[Key, FailedGroup],
    ) -> None:
        self._plan, self._spec, self._execution, self._commit = plan, spec, execution, commit
        self._outcome, self._done, self._failed = OUTCOMES[spec.outcome], done, failed
        self._to_retry = Counter(iteration for iteration, _, _ in failed)
        self._iteration = 0
        self._active: dict[int, _ActiveGroup] = {}
        self._new: list[Row] = []
        self._again: list[Row] = []
        self._finished = self._characters = 0
        self._flushed_at = monotonic()
        self.begun = self.informative = 0

    def begin(self) -> tuple[PlannedGroup, Sequence[int]] | None:
        """Start the next group. Return it with the members to play, or None if no group may begin now."""
        dynamic, most = self._spec.max_groups is not None, self._spec.max_groups or self._spec.tasks
        while self.begun < most:
            wanted = not dynamic or self.informative + len(self._active) < self._spec.tasks
            # An earlier run may have played more groups than this one needs, because failures hid that groups were
            # informative. While groups are active, it is unknown whether the next one is wanted.
            if not wanted and (self._active or not self._to_retry[self._iteration]):
                break
            group = next(self._plan)
            self.begun += 1
            self._iteration = group.iteration
            failed = self._failed.get(group.key)
            if failed is not None:
                self._to_retry[group.iteration] -= 1
                members = [n for n in range(group.size) if group.trajectory(n) in failed.trajectories]
                self._active[group.position] = _ActiveGroup(len(members), list(failed.outcomes))
                return group, members
            if wanted and group.key not in self._done:
                self._active[group.position] = _ActiveGroup(group.size, [])
                return group, range(group.size)
            self.informative += self._done.get(group.key, False)
        return None

    def finish(self, trajectory: Trajectory) -> None:
        """Add a finished trajectory. Commit finished groups if there are enough of them."""
        group = trajectory.group
        active = self._active[group.position]
        active.rows[trajectory.member] = trajectory.rows
        active.missing -= 1
        active.characters += trajectory.characters
        if not trajectory.aborted and (outcome := self._outcome(trajectory.rows)) is not None:
            active.outcomes.append(outcome)
        if active.missing:
            return
        del self._active[group.position]
        self.informative += len(set(active.outcomes)) > 1
        self._characters += active.characters
        rows = self._again if group.key in self._failed else self._new
        for _, member_rows in sorted(active.rows.items()):
            rows += member_rows
        self._finished += 1
        limits = self._execution
        is_late = limits.shard_s is not None and monotonic() - self._flushed_at >= limits.shard_s
        if is_late or self._finished >= limits.groups_per_shard or self._characters >= limits.shard_characters:
            self.flush()

    def flush(self) -> None:
        """Commit every finished group. Active groups are kept."""
        new, again = self._new, self._again
        self._new, self._again, self._finished, self._characters = [], [], 0, 0
        self._flushed_at = monotonic()
        if new or again:
            self._commit(new, again)
