"""Commits of finished groups to the step table. Invalid rows of one trajectory do not affect any other."""

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

    The collector validates values, so the writer should not reject rows. If it does, the trajectory is stored as
    aborted, and all others are committed.

    Args:
        writer: The writer of the run.
        env_id: The environment id for every row.
        tally: Counts the trajectories that the writer rejects.
    """

    def __init__(self, writer: StepWriter, env_id: str, tally: Tally) -> None:
        self._writer, self._env_id, self._tally = writer, env_id, tally

    def __call__(self, groups: Sequence[FinishedGroup]) -> None:
        """Commit groups. The rows of retried rollouts replace the aborted ones in the run."""
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
            raise  # caused by the disk, not by a trajectory
        except Exception:
            sound = self._without_refused(rows)
            if sound is None:
                raise
            take(sound)

    def _without_refused(self, rows: list[Row]) -> list[Row] | None:
        """Return the rows with one aborted row in place of each rejected trajectory; None if none is rejected."""
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
