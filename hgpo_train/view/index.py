"""The index of a run: one row per trajectory and one per group, with the place of their rows in the files.

It is built from a few columns of the whole table, without a text of a step, so that a million steps take about a
second. Texts are read later, one group at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import scan_steps
from hgpo_datasets.branches import IS_BRANCH, IS_FIRST
from hgpo_datasets.derived_columns import any_won
from hgpo_datasets.reader import errors
from hgpo_datasets.schema import stored_depth
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP: Final = ("run", "iteration", "env_id", "task_id", "group")
"""The columns that identify a group of rollouts."""

_FLAGS: Final = ("step", "branch_step", "action_valid", "won", "aborted", "truncated")
_ONCE: Final = (
    *GROUP,
    "split",
    "task_type",
    "task",
    "trajectory",
    "parent",
    "branch_step",
    "episode_return",
)
_AT_END: Final = ("score", "error")


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Where everything is in the files of a run.

    Attributes:
        files: Paths of the files, in the order of their rows.
        starts: The number of the first row of each file, and the number of all rows.
        episodes: One row per trajectory, in the order of the rows: the columns of `GROUP`, `split`, `task_type`,
            `task`, `trajectory`, `parent`, `branch_step`, `row` (its first row), `length` (its rows),
            `episode_return`, `score`, `won` (null if unknown), `aborted`, `truncated`, `invalid` (number of steps with
            an invalid action), `judged` and `admissible` (numbers of actions of which that is known, and of admissible
            ones), `error` and `number` (of its group).
        groups: One row per group, in the order of the rows: the columns of `GROUP`, `task_type`, `task`, `number` (its
            position), `first` (position of its first trajectory), `size`, `row`, `rows`, `aborted`, `invalid` (steps),
            `roots` (rollouts, which are no branches); and of those that were not aborted `rollouts`, `won` (numbers)
            and `success` (share; both null if the outcome of one is unknown), and `mean_return`.
        depth: Largest k of the stored contexts.
    """

    files: tuple[str, ...]
    starts: tuple[int, ...]
    episodes: pl.DataFrame
    groups: pl.DataFrame
    depth: int

    @property
    def rows(self) -> int:
        """The number of steps."""
        return self.starts[-1]

    @property
    def run(self) -> Path:
        """The folder of the run, if the files are of one."""
        return Path(self.files[0]).absolute().parents[1]

    @property
    def place(self) -> str:
        """What an error of reading names."""
        return _place(self.files)

    def group(self, number: int) -> dict[str, Any]:
        """Return a group's row of `groups`.

        Raises:
            InputError: There is no such group.
        """
        if not 0 <= number < self.groups.height:
            raise InputError(
                f"group: expected a number from 0 to {self.groups.height - 1}, received {number}"
            )
        return self.groups.row(number, named=True)

    def members(self, number: int) -> pl.DataFrame:
        """Return the rows of `episodes` of a group."""
        group = self.group(number)
        return self.episodes.slice(group["first"], group["size"])

    def read(self, row: int, rows: int, columns: Sequence[str]) -> pl.DataFrame:
        """Read neighbouring rows of one file, such as those of a group.

        Raises:
            InputError: There are no such rows, or they cannot be read.
        """
        steps = self.lazy(row, rows)
        with errors(self.files[self._file(row)]):
            return steps.select(columns).collect()

    def lazy(self, row: int, rows: int) -> pl.LazyFrame:
        """Return neighbouring rows of one file as a LazyFrame.

        Raises:
            InputError: There are no such rows.
        """
        if not 0 <= row < self.rows:
            raise InputError(
                f"row: expected a number from 0 to {self.rows - 1}, received {row}"
            )
        file = self._file(row)
        return _scan(self.files[file]).slice(row - self.starts[file], rows)

    def _file(self, row: int) -> int:
        return bisect_right(self.starts, row) - 1


def _place(files: Sequence[str]) -> str:
    """Return the file, or the folder of several."""
    return files[0] if len(files) == 1 else str(Path(files[0]).parent)


@lru_cache(1024)
def _scan(file: str) -> pl.LazyFrame:
    """Scan a committed file, which never changes, and check it once."""
    return scan_steps(file)


def read_index(files: Sequence[str]) -> Index:
    """Read the index of the files of one run (`hgpo_datasets.reader.step_files`).

    Raises:
        InputError: A file is damaged, or is not sorted as a step table is.
    """
    steps = scan_steps(files)
    with errors(_place(files)):
        lengths = [
            int(scan_steps(file).select(pl.len()).collect().item()) for file in files
        ]
        flags = steps.select(*_FLAGS, admissible="action_admissible").collect()
        once = steps.filter(IS_FIRST).select(_ONCE).collect()
        ends = (
            steps.filter(pl.col("step") == pl.col("episode_length") - 1)
            .select(_AT_END)
            .collect()
        )
    is_first = flags.select(IS_FIRST).to_series()
    if flags.is_empty() or not is_first[0] or ends.height != once.height:
        raise InputError(
            f"{files[0]}: expected the sorted rows of whole trajectories; `hgpo verify` finds what is wrong"
        )
    episodes = pl.concat(
        [once, ends, _flags_by_episode(flags, is_first)], how="horizontal"
    ).with_columns(pl.struct(GROUP).rle_id().cast(pl.Int64).alias("number"))
    return Index(
        tuple(files),
        (0, *accumulate(lengths)),
        episodes,
        _groups(episodes),
        stored_depth(steps.collect_schema().names()),
    )


def _flags_by_episode(flags: pl.DataFrame, is_first: pl.Series) -> pl.DataFrame:
    """Return one row per trajectory from the flags of all rows."""
    return (
        flags.with_row_index("row")
        .group_by(is_first.cum_sum().alias("episode"), maintain_order=True)
        .agg(
            pl.col("row").first().cast(pl.Int64),
            pl.len().cast(pl.Int64).alias("length"),
            (~pl.col("action_valid")).sum().cast(pl.Int64).alias("invalid"),
            pl.col("admissible").count().cast(pl.Int64).alias("judged"),
            pl.col("admissible").sum().cast(pl.Int64),
            pl.col("aborted", "truncated").any(),
            any_won(pl.col("won")),
        )
        .drop("episode")
    )


def _groups(episodes: pl.DataFrame) -> pl.DataFrame:
    whole = ~pl.col("aborted")
    rollouts = whole & ~IS_BRANCH  # a branch is no independent rollout
    won = pl.col("won").filter(rollouts)
    wins = won.sum().cast(pl.Int64)
    return (
        episodes.group_by("number", maintain_order=True)
        .agg(
            pl.col(*GROUP, "task_type", "task").first(),
            pl.len().cast(pl.Int64).alias("size"),
            pl.col("row").first(),
            pl.col("length").sum().alias("rows"),
            pl.col("aborted", "invalid").sum().cast(pl.Int64),
            (~IS_BRANCH).sum().cast(pl.Int64).alias("roots"),
            rollouts.sum().cast(pl.Int64).alias("rollouts"),
            # unknown if the outcome of one is
            pl.when(~won.has_nulls()).then(wins).alias("won"),
            pl.when(~won.has_nulls()).then(won.mean()).alias("success"),
            pl.col("episode_return").filter(rollouts).mean().alias("mean_return"),
        )
        .with_columns((pl.col("size").cum_sum() - pl.col("size")).alias("first"))
    )
