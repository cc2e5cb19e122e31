"""Groups under way and done: which may begin, what was learnt from them, and the order in which they are committed."""

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
"""Names a group in a run: iteration, task id, group."""

MOST_WAITING: Final = 256 << 20
"""Bytes of finished groups that may wait for an earlier one (`FinishedGroup.bytes`); beyond that no further group
begins."""

BATCH_SIZE: Final = 128 << 20
"""Estimated bytes of a table (`FinishedGroup.size`) at which groups are committed, even where they are few."""


@dataclass
class _ActiveGroup:
    group: PlannedGroup
    missing: int
    outcomes: list[float | bool]
    rows: dict[int, list[Row]] = field(default_factory=dict)


class GroupScheduler:
    """Hands out groups in the plan's order and gives their rows back in the plan's order, whatever finished first.

    So a run's files do not depend on how many environments played it. Groups that wait far from their turn are packed,
    so that hundreds may wait while one hangs.

    Args:
        plan: The groups, endlessly.
        wanted: How many groups are to be collected.
        max_groups: With dynamic sampling, `wanted` counts only informative groups, those whose trajectories' outcomes
            are not all the same, and at most so many are played; None turns it off. A group begins only while the
            informative groups and those under way are fewer than wanted, so that which groups are played does not
            depend on the order in which they finish.
        outcome: The outcome that is looked at, a name of `hgpo_train.rollout.outcomes.OUTCOMES`.
        commit: Takes whole groups.
        together: How many groups are committed at once; those that wait further from their turn are packed.
        done: Groups that were committed before, and whether each was informative: they are not played again.
        failed: Groups of which only the failed rollouts are to be played again, also when nothing more is wanted; none
            of them is in `done`.
        lookahead: How far beyond the first unfinished group others may begin. It bounds how many finished groups a
            killed process loses.
        most_waiting: Bytes of finished groups that may wait for an earlier one. Beyond that no further group begins
            until the earlier one is finished; those under way still add theirs.
        batch_size: Estimated bytes of a table at which groups are committed, even where they are fewer than `together`.
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
        self._first = 0  # the first position that is not yet committed or waiting in the batch
        self._batch: list[FinishedGroup] = []
        self._waiting_bytes = self._size = 0  # of what waits, in memory, and of the batch, in a table
        self.begun = self.skipped = self.informative = self.finished = self.committed = 0

    def begin(self) -> tuple[PlannedGroup, Sequence[int]] | None:
        """The next group, and which of its members are to be played; None when none may begin now."""
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
        """Whether this group's rollouts had failed in an earlier run."""
        return group.key in self._failed

    def _to_play(self, group: PlannedGroup) -> tuple[Sequence[int], list[float | bool]]:
        failed = self._failed.get(group.key)
        if failed is None:
            return range(group.size), []
        self._to_retry[group.iteration] -= 1
        members = [member for member in range(group.size) if group.trajectory(member) in failed.trajectories]
        return members, list(failed.outcomes)

    def finish(self, trajectory: Trajectory) -> None:
        """Takes a trajectory that has ended; commits what can be."""
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
        """Commits every finished group, in order; what is under way is left out."""
        waiting = [group for _, group in sorted(self._waiting.items())]
        self._waiting.clear()
        self._waiting_bytes = 0
        batches = [full for group in waiting if (full := self._batched(group))]
        batches.append(self._batch)
        self._batch, self._size = [], 0
        with ExitStack() as all_of_them:  # if the disk refuses one batch, the writer still takes the others
            for batch in reversed(batches):
                all_of_them.callback(self._give, batch)

    def _may_begin(self) -> bool:
        if self.begun - self._first >= self._lookahead or self._waiting_bytes >= self._most_waiting:
            return False
        if self._max_groups is None:
            return self.begun < self._wanted
        return self.begun < self._max_groups and self.informative + len(self._open) < self._wanted

    def _must_retry(self) -> bool:
        """Whether the plan is followed although no further group is wanted, because failed rollouts are still to come.

        An earlier run went further than this one, where failures hid that groups were informative. While groups are
        under way, it is not known whether the next one is wanted.
        """
        max_groups = self._wanted if self._max_groups is None else self._max_groups
        return not self._open and self._to_retry[self._iteration] > 0 and self.begun < max_groups

    def _wait(self, position: int, group: FinishedGroup) -> None:
        """Keeps a finished group until all groups before it are finished, then commits all whose turn has come."""
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
        """Adds a group to the batch. Returns the batch, and begins another, where it is full; else nothing.

        What makes it full are the groups' values alone, so that a run's files do not depend on how it was played.
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
