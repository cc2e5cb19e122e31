"""The groups of a collection: which begins next, whether they are informative, and their commits."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from hgpo_train.rollout.outcomes import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_train.rollout.plan import (
        ExecutionOptions,
        FailedGroup,
        Key,
        PlannedGroup,
        RolloutSpec,
    )
    from hgpo_train.rollout.row import Row
    from hgpo_train.rollout.trajectory import Trajectory


@dataclass
class _ActiveGroup:
    """A group that is being played.

    Attributes:
        missing: Number of members that have not finished.
        outcomes: The known outcomes of the others.
        is_retried: Whether they replace failed members of a committed group.
        rows: Their rows, which the writer sorts.
    """

    missing: int
    outcomes: list[float | bool]
    is_retried: bool = False
    rows: list[Row] = field(default_factory=list)


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
        self._plan = plan
        self._spec = spec
        self._execution = execution
        self._commit = commit
        self._outcome = OUTCOMES[spec.outcome]
        self._done = done
        self._failed = failed
        self._to_retry = sum(iteration == spec.iteration for iteration, _, _ in failed)
        self._active: dict[int, _ActiveGroup] = {}
        self._new: list[Row] = []
        self._again: list[Row] = []
        self._finished = 0
        self._characters = 0
        self._flushed_at = monotonic()
        self._thread = ThreadPoolExecutor(1, "hgpo-commit")
        self._committing: Future[None] | None = None
        self.begun = 0
        self.informative = 0

    def begin(self) -> tuple[PlannedGroup, Sequence[int]] | None:
        """Start the next group. Return it with the members to play, or None if no group may begin now."""
        dynamic = self._spec.dynamic is not None
        most = self._spec.dynamic or self._spec.tasks
        while self.begun < most:
            # Without dynamic sampling every group is wanted. With it, active groups count as informative until they
            # end: otherwise more groups would begin than are needed.
            wanted = (
                not dynamic or self.informative + len(self._active) < self._spec.tasks
            )
            # An earlier run may have played more groups than this one needs, because failures hid that groups were
            # informative. While groups are active, it is unknown whether the next one is wanted.
            if not wanted and (self._active or not self._to_retry):
                break
            group = next(self._plan)
            key = (group.iteration, group.task_id, group.group)
            self.begun += 1
            # 1. A committed group with failed rollouts: only those are played again, whether it is wanted or not.
            failed = self._failed.get(key)
            if failed is not None:
                self._to_retry -= 1
                members = [
                    n
                    for n in range(group.size)
                    if group.trajectory(n) in failed.trajectories
                ]
                self._active[group.position] = _ActiveGroup(
                    len(members), list(failed.outcomes), is_retried=True
                )
                return group, members
            # 2. A new group. 3. Otherwise it is committed or not wanted, and counts if it is known to be informative.
            if wanted and key not in self._done:
                self._active[group.position] = _ActiveGroup(group.size, [])
                return group, range(group.size)
            self.informative += self._done.get(key, False)
        return None

    def finish(self, trajectory: Trajectory) -> None:
        """Add a finished trajectory. Commit finished groups if there are enough of them."""
        group = trajectory.group
        active = self._active[group.position]
        active.rows += trajectory.rows
        active.missing -= 1
        if (
            not trajectory.aborted
            and (outcome := self._outcome(trajectory.rows)) is not None
        ):
            active.outcomes.append(outcome)
        if active.missing:
            return
        # The group is complete: its members are committed together.
        del self._active[group.position]
        self.informative += len(set(active.outcomes)) > 1
        rows = self._again if active.is_retried else self._new
        rows += active.rows
        self._characters += sum(
            len(row.prompt or "") + len(row.response or "") for row in active.rows
        )
        self._finished += 1
        limits = self._execution
        is_late = (
            limits.shard_s is not None
            and monotonic() - self._flushed_at >= limits.shard_s
        )
        if (
            is_late
            or self._finished >= limits.groups_per_shard
            or self._characters >= limits.shard_characters
        ):
            self.flush()

    def flush(self) -> None:
        """Commit every finished group, in a thread while others are played. Active groups are kept.

        Raises:
            Exception: The commit before has failed.
        """
        # Emptied before the commit: if it fails, the writer keeps the rows, and a second call must not add them again.
        new = self._new
        again = self._again
        self._new = []
        self._again = []
        self._finished = 0
        self._characters = 0
        self._flushed_at = monotonic()
        if not (new or again):
            return
        # One at a time, so that at most the rows of two are in memory. A failure ends the collection; the writer
        # receives these rows all the same, and commits them when it is closed.
        try:
            if self._committing is not None:
                self._committing.result()
        finally:
            self._committing = self._thread.submit(self._commit, new, again)

    def close(self) -> None:
        """Commit every finished group, and wait for it.

        Raises:
            Exception: A commit has failed.
        """
        with self._thread:
            try:
                self.flush()
            finally:
                if self._committing is not None:
                    self._committing.result()
