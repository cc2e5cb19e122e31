"""Finished groups into the step table, so that one trajectory's bad rows cost no other."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from hgpo_datasets.derived_columns import complete
from hgpo_datasets.rows import frame
from hgpo_train.policies.base import Failure, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hgpo_datasets import StepWriter
    from hgpo_train.rollout.collector import Tally
    from hgpo_train.rollout.finished import FinishedGroup
    from hgpo_train.rollout.trajectory import Row

_IDENTITY = ("env_id", "iteration", "task_id", "group", "trajectory")


class GroupCommitter:
    """Commits finished groups to a run.

    Values are validated where they arrive, so the writer refuses nothing. Should it do so all the same, the trajectory
    whose rows it refuses is kept as an aborted one, and everything else is committed.

    Args:
        writer: The run.
        env_id: Written into every row.
        tally: Counts the trajectories that the writer refuses.
    """

    def __init__(self, writer: StepWriter, env_id: str, tally: Tally) -> None:
        self._writer, self._env_id, self._tally = writer, env_id, tally

    def __call__(self, groups: Sequence[FinishedGroup]) -> None:
        """Commits groups. Those that were played again take the place of what the run holds of them."""
        if rows := self._rows(group for group in groups if group.again):
            self._take(self._writer.replace, rows)
        if rows := self._rows(group for group in groups if not group.again):
            self._take(self._writer.add_group, rows)
        self._writer.commit()

    def _rows(self, groups: Iterable[FinishedGroup]) -> list[Row]:
        return [{"env_id": self._env_id, **row} for group in groups for row in group.rows]

    def _take(self, take: Callable[[Sequence[Row]], object], rows: list[Row]) -> None:
        try:
            take(rows)
        except OSError:
            raise  # the disk's fault, not a trajectory's
        except Exception:
            sound = self._without_refused(rows)
            if sound is None:
                raise
            take(sound)

    def _without_refused(self, rows: list[Row]) -> list[Row] | None:
        """The rows with an aborted row in place of each trajectory that is refused; None where none is."""
        sound: list[Row] = []
        failed = False
        for _, steps in groupby(rows, key=lambda row: row["trajectory"]):
            trajectory = list(steps)
            found = attempt("RowsRefused", self._check, trajectory)
            if isinstance(found, Failure):
                failed = True
                self._tally.refused(found)
                identity = {name: trajectory[0][name] for name in _IDENTITY}
                trajectory = [{**identity, "step": 0, "state": "", "reward": 0.0, "aborted": True, "error": str(found)}]
            sound += trajectory
        return sound if failed else None

    def _check(self, trajectory: list[Row]) -> None:
        header = self._writer.header
        complete(frame(trajectory, header.depth, {"run": header.run}), header.depth)
