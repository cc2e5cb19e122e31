"""The commits of a collection's groups. Those that are going to branch are kept in memory first, and written once.

Written alone, a group would be read and written again with its branches. What is kept is written alone, too, when it
is many or old, and when the collection ends before its branches are played: nothing that was finished is lost then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final

from hgpo_datasets.schema import GROUP_KEY
from hgpo_train.rollout.row import columns_of

if TYPE_CHECKING:
    import polars as pl

    from hgpo_datasets import StepWriter
    from hgpo_train.rollout.row import Row

_MOST_BYTES: Final = 256 << 20
"""The size in memory at which kept groups are written."""


@dataclass
class KeptGroups:
    """Commits finished groups, or keeps them for their branches.

    Attributes:
        writer: The writer of the run.
        env_id: The environment's id, which is written to every row.
        keeps: Whether new groups are kept.
        longest_s: Seconds after which they are written; None for no limit.
        frames: The steps of the kept groups, as they are stored.
    """

    writer: StepWriter
    env_id: str
    keeps: bool
    longest_s: float | None
    frames: list[pl.DataFrame] = field(default_factory=list)
    _written_at: float = field(default_factory=monotonic, init=False)

    def commit(self, new: list[Row], again: list[Row]) -> None:
        """Commit the rows that replace failed rollouts, and commit or keep those of new groups."""
        # The values were checked when they arrived (`hgpo_train.policies.validation`).
        if again:
            self.writer.replace(columns_of(again, self.env_id), checked=True)
        if not self.keeps:
            if new:
                self.writer.add_group(columns_of(new, self.env_id), checked=True)
            self.writer.commit()
            return
        if new:
            columns = columns_of(new, self.env_id)
            self.frames.append(self.writer.completed(columns, checked=True))
        size = sum(frame.estimated_size() for frame in self.frames)
        seconds = monotonic() - self._written_at
        is_late = self.longest_s is not None and seconds >= self.longest_s
        if is_late or size >= _MOST_BYTES:
            self.write()

    def write(self) -> None:
        """Commit what is kept, but for the groups that were written with their branches since."""
        self._written_at = monotonic()
        while self.frames:
            frame = self.frames[0]
            keys = frame.select(GROUP_KEY).unique()
            accepted = self.writer.accepted
            left = keys.filter([key not in accepted for key in keys.iter_rows()])
            self.writer.add_group(
                frame.join(left, on=GROUP_KEY, how="semi"), checked=True
            )
            del self.frames[0]
            self.writer.commit()
