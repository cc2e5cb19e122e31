"""The scheduler of groups: which group begins next, whether groups are informative, and the order of commits."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hgpo_train.rollout.finished import FinishedGroup
from hgpo_train.rollout.outcomes import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_train.rollout.failures import FailedGroup
    from hgpo_train.rollout.group_plan import PlannedGroup
    from hgpo_train.rollout.trajectory import Row, Trajectory

Key = tuple[int, str, int]
"""The key of a group in a run: iteration, task id, group."""

MOST_WAITING: Final = 256 << 20
"""Maximum bytes of finished groups that wait for an earlier one (`FinishedGroup.bytes`); beyond it no group begins."""

BATCH_SIZE: Final = 128 << 20
"""Estimated bytes of a table (`FinishedGroup.size`) at which a batch of groups is committed."""


@dataclass
class _ActiveGroup:
    group: PlannedGroup
    missing: int
    outcomes: list[float | bool]
    rows: dict[int, list[Row]] = field(default_factory=dict)


class GroupScheduler:
    """Starts groups and commits their rows in the plan's order, whatever the order in which they finish.

    A run's files therefore do not depend on the number of environments. Groups that are far from their turn are packed,
    so hundreds can wait for one slow group.

    Args:
        plan: The groups, without end.
        wanted: Number of groups to collect.
        commit: Commits a batch of finished groups.
        max_groups: Maximum number of groups to play with dynamic sampling, where `wanted` counts only informative
            groups, those whose trajectories' outcomes are not all equal. A group begins only while informative groups
            and active groups together are fewer than `wanted`, so the choice of groups does not depend on the order in
            which they finish. None turns dynamic sampling off.
        outcome: The outcome that makes a group informative, a key of `hgpo_train.rollout.outcomes.OUTCOMES`.
        together: Number of groups in a batch; groups that wait further from their turn are packed.
        done: Groups that are committed already and not played again, and whether each is informative.
        failed: Committed groups whose failed rollouts are retried, even if no further group is wanted. They are not in
            `done`.
        lookahead: Maximum distance of a new group from the first unfinished one. It bounds the number of finished
            groups that are lost if the process is killed.
        most_waiting: Maximum bytes of finished groups that wait for an earlier one. Beyond it no group begins until the
            earlier one has finished; active groups are still added.
        batch_size: Estimated bytes of a table at which a batch is committed, even with fewer groups than `together`.
    """

    def __init__(
        self,
        plan: Iterator[PlannedGroup],
        wanted: int,
        commit: Callable[[Sequence[FinishedGroup]], None],
        *,
        max_groups: int | None = None,
        outcome: str = "reward",
        together: int = 16,
        done: Mapping[Key, bool] | None = None,
        failed: Mapping[Key, FailedGroup] | None = None,
        lookahead: int = 4096,
        most_waiting: int = MOST_WAITING,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        self._plan, self._wanted, self._max_groups, self._commit = plan, wanted, max_groups, commit
        self._outcome = OUTCOMES[outcome]
        self._together, self._batch_size = together, batch_size
        self._lookahead, self._most_waiting = lookahead, most_waiting
        self._done = done or {}
        self._failed = failed or {}
        self._to_retry = Counter(iteration for iteration, _, _ in self._failed)
        self._iteration = 0
        self._open: dict[int, _ActiveGroup] = {}
        self._waiting: dict[int, FinishedGroup] = {}
        self._first = 0  # the first position that is neither committed nor in the batch
        self._batch: list[FinishedGroup] = []
        self._waiting_bytes = self._size = 0  # bytes of waiting groups in memory, and of the batch in a table
        self.begun = self.skipped = self.informative = self.finished = self.committed = 0

    def begin(self) -> tuple[PlannedGroup, Sequence[int]] | None:
        """Start the next group. Return it with the members to play, or None if no group may begin now."""
        while (wanted := self._may_begin()) or self._must_retry():
            group = next(self._plan)
            self.begun += 1
            self._iteration = group.iteration
            if group.key in self._failed or (wanted and group.key not in self._done):
                members, outcomes = self._to_play(group)
                self._open[group.position] = _ActiveGroup(group, len(members), outcomes)
                return group, members
            self.skipped += 1
            self.informative += self._done.get(group.key, False)
            self._wait(group.position, FinishedGroup.of([]))
        return None

    def is_retry(self, group: PlannedGroup) -> bool:
        """Return whether a group's rollouts are retries of rollouts that failed in an earlier run."""
        return group.key in self._failed

    def _to_play(self, group: PlannedGroup) -> tuple[Sequence[int], list[float | bool]]:
        failed = self._failed.get(group.key)
        if failed is None:
            return range(group.size), []
        self._to_retry[group.iteration] -= 1
        members = [member for member in range(group.size) if group.trajectory(member) in failed.trajectories]
        return members, list(failed.outcomes)

    def finish(self, trajectory: Trajectory) -> None:
        """Add a finished trajectory. Commit groups that are complete and whose turn it is."""
        position = trajectory.group.position
        opened = self._open[position]
        opened.rows[trajectory.member] = trajectory.rows
        opened.missing -= 1
        if not trajectory.aborted:
            opened.outcomes.append(self._outcome(trajectory.rows))
        if opened.missing:
            return
        del self._open[position]
        self.finished += 1
        self.informative += len(set(opened.outcomes)) > 1
        rows = [row for member in sorted(opened.rows) for row in opened.rows[member]]
        self._wait(position, FinishedGroup.of(rows, again=self.is_retry(opened.group)))

    def flush(self) -> None:
        """Commit every finished group, in the plan's order. Active groups are dropped."""
        waiting = [group for _, group in sorted(self._waiting.items())]
        self._waiting.clear()
        self._waiting_bytes = 0
        batches = [full for group in waiting if (full := self._batched(group))]
        batches.append(self._batch)
        self._batch, self._size = [], 0
        with ExitStack() as all_of_them:  # if the commit of one batch fails, the others are still committed
            for batch in reversed(batches):
                all_of_them.callback(self._give, batch)

    def _may_begin(self) -> bool:
        if self.begun - self._first >= self._lookahead or self._waiting_bytes >= self._most_waiting:
            return False
        if self._max_groups is None:
            return self.begun < self._wanted
        return self.begun < self._max_groups and self.informative + len(self._open) < self._wanted

    def _must_retry(self) -> bool:
        """Return whether to continue the plan only to retry failed rollouts, although no further group is wanted.

        An earlier run may have played more groups than this one needs, because failures hid that groups were
        informative. While groups are active, it is unknown whether the next one is wanted.
        """
        max_groups = self._wanted if self._max_groups is None else self._max_groups
        return not self._open and self._to_retry[self._iteration] > 0 and self.begun < max_groups

    def _wait(self, position: int, group: FinishedGroup) -> None:
        """Store a finished group until all earlier ones have finished. Then add it and its successors to the batch."""
        if position - self._first >= self._together or self._waiting_bytes + group.bytes > self._most_waiting:
            group = group.packed()
        self._waiting[position] = group
        self._waiting_bytes += group.bytes
        while self._first in self._waiting:
            group = self._waiting.pop(self._first)
            self._waiting_bytes -= group.bytes
            self._first += 1
            if full := self._batched(group):
                self._give(full)

    def _batched(self, group: FinishedGroup) -> list[FinishedGroup]:
        """Add a group to the batch. If the batch is full, start a new one and return it; otherwise return nothing.

        Whether it is full depends only on the groups' values, so a run's files do not depend on timing.
        """
        self._batch.append(group)
        self._size += group.size
        if len(self._batch) < self._together and self._size < self._batch_size:
            return []
        full, self._batch, self._size = self._batch, [], 0
        return full

    def _give(self, batch: Sequence[FinishedGroup]) -> None:
        batch = [group for group in batch if group.size]
        if batch:
            self._commit(batch)
            self.committed += len(batch)
