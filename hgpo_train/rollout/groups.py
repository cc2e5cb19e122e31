"""Groups under way and done: which may begin, what was learnt from them, and the order in which they are committed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hgpo_train.rollout.outcomes import OF_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_train.rollout.failures import Failed
    from hgpo_train.rollout.plan import Group
    from hgpo_train.rollout.trajectory import Row, Trajectory

Key = tuple[int, str, int]
"""Names a group in a run: iteration, task id, group."""


@dataclass
class _Open:
    group: Group
    missing: int
    outcomes: list[float | bool]
    rows: dict[int, list[Row]] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    """Rows of a group that is to be committed.

    Attributes:
        rows: Of all its rollouts, or of those that were played again.
        again: Whether they take the place of failed rollouts that are committed.
    """

    rows: list[Row]
    again: bool = False


class Groups:
    """Hands out groups in the plan's order and gives their rows back in the plan's order, whatever finished first.

    So a run's files do not depend on how many environments played it.

    Args:
        plan: The groups, endlessly.
        wanted: How many groups are to be collected.
        most: With dynamic sampling, `wanted` counts only groups that say something, whose trajectories' outcomes are
            not all the same, and at most so many are played; None turns it off. A group begins only while those that
            said something and those under way are fewer than wanted: so which groups are played does not depend on the
            order in which they finish.
        outcome: The outcome that is looked at, a name of `hgpo_train.rollout.outcomes.OF_ROWS`.
        commit: Takes whole groups.
        together: How many groups are committed at once.
        done: Groups that were committed before, and whether each said something: they are not played again.
        failed: Groups of which only the failed rollouts are to be played again, also when nothing more is wanted; none
            of them is in `done`.
        lookahead: How far beyond the first unfinished group others may begin; bounds what waits to be committed.
    """

    def __init__(
        self,
        plan: Iterator[Group],
        wanted: int,
        commit: Callable[[Sequence[Whole]], None],
        *,
        most: int | None = None,
        outcome: str = "reward",
        together: int = 16,
        done: Mapping[Key, bool] | None = None,
        failed: Mapping[Key, Failed] | None = None,
        lookahead: int = 4096,
    ) -> None:
        self._plan, self._wanted, self._most, self._commit = plan, wanted, most, commit
        self._outcome = OF_ROWS[outcome]
        self._together, self._lookahead, self._done = together, lookahead, done or {}
        self._failed = failed or {}
        self._to_retry = Counter(iteration for iteration, _, _ in self._failed)
        self._iteration = 0
        self._open: dict[int, _Open] = {}
        self._waiting: dict[int, Whole] = {}
        self._first = 0  # the first position that is not yet committed or waiting in the batch
        self._batch: list[Whole] = []
        self.begun = self.skipped = self.informative = self.finished = self.committed = 0

    def begin(self) -> tuple[Group, Sequence[int]] | None:
        """The next group, and which of its members are to be played; None when none may begin now."""
        while (wanted := self._may_begin()) or self._must_retry():
            group = next(self._plan)
            self.begun += 1
            self._iteration = group.iteration
            if group.key in self._failed or (wanted and group.key not in self._done):
                members, outcomes = self._to_play(group)
                self._open[group.position] = _Open(group, len(members), outcomes)
                return group, members
            self.skipped += 1
            self.informative += self._done.get(group.key, False)
            self._waiting[group.position] = Whole([])
            self._advance()
        return None

    def plays_again(self, group: Group) -> bool:
        """Whether this group's rollouts had failed in an earlier run."""
        return group.key in self._failed

    def _to_play(self, group: Group) -> tuple[Sequence[int], list[float | bool]]:
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
        self._waiting[position] = Whole(rows, self.plays_again(opened.group))
        self._advance()

    def flush(self) -> None:
        """Commits every whole group, in order; what is under way is left out."""
        self._advance()
        self._batch += [whole for _, whole in sorted(self._waiting.items())]
        self._waiting.clear()
        self._give()

    def _may_begin(self) -> bool:
        if self.begun - self._first >= self._lookahead:
            return False
        if self._most is None:
            return self.begun < self._wanted
        return self.begun < self._most and self.informative + len(self._open) < self._wanted

    def _must_retry(self) -> bool:
        """Whether the plan is followed although no further group is wanted, because failed rollouts are still to come.

        An earlier run went further than this one, where failures hid that groups said something. While groups are under
        way, it is not known whether the next one is wanted.
        """
        most = self._wanted if self._most is None else self._most
        return not self._open and self._to_retry[self._iteration] > 0 and self.begun < most

    def _advance(self) -> None:
        while self._first in self._waiting:
            self._batch.append(self._waiting.pop(self._first))
            self._first += 1
            if len(self._batch) >= self._together:
                self._give()

    def _give(self) -> None:
        batch, self._batch = [whole for whole in self._batch if whole.rows], []
        if batch:
            self._commit(batch)
            self.committed += len(batch)
