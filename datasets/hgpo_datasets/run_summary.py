"""Summarize a run: environments and tasks, results, and storage."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_datasets import schema
from hgpo_datasets.reader import errors, scan_files, shared_depth, source_files
from hgpo_envs.errors import InputError
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from hgpo_datasets.reader import StepFile

_RUN_GROUP = ("run", *schema.GROUP_KEY)
_RUN_TRAJECTORY = (*_RUN_GROUP, "trajectory")


@dataclass(frozen=True, slots=True)
class TaskTypeSummary:
    """Results of the episodes of one task type.

    Attributes:
        task_type: The benchmark's name of the task type; None if unknown.
        tasks: Number of distinct tasks.
        episodes: Number of trajectories.
        success: Fraction of trajectories that were won, without aborted ones and those for which it is unknown; None
            if it is unknown for all.
        success_low: The fraction if aborted and unknown ones count as lost.
        success_high: The fraction if they count as won.
        score: Mean score after the last step; None if the benchmark has no scores. This and the following values are of
            the trajectories that were not aborted, and None if all were.
        mean_return: Mean undiscounted sum of rewards.
        mean_length: Mean number of steps.
        valid: Fraction of steps with a valid action.
        aborted: Number of aborted trajectories.
    """

    task_type: str | None
    tasks: int
    episodes: int
    success: float | None
    success_low: float | None
    success_high: float | None
    score: float | None
    mean_return: float | None
    mean_length: float | None
    valid: float | None
    aborted: int


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of one or several runs.

    Attributes:
        source: The summarized path or pattern.
        runs: Names of the runs.
        env_ids: Gymnasium ids of the environments.
        splits: Splits of the tasks.
        iterations: First and last training iteration.
        groups: Number of groups of rollouts.
        group_sizes: Number of groups by group size.
        steps: Number of steps (rows).
        shortest: Length of the shortest episode in steps.
        median: Median length of the episodes in steps.
        longest: Length of the longest episode in steps.
        depth: Largest k of the stored history and context hashes.
        total: Results of all episodes.
        kinds: Results by task type.
        files: Number of files.
        bytes: Total size of the files.
        family_bytes: Compressed size in bytes by family of columns.
        config: Configuration of the run; None for several runs or a single file.
    """

    source: str
    runs: list[str]
    env_ids: list[str]
    splits: list[str]
    iterations: tuple[int, int]
    groups: int
    group_sizes: dict[int, int]
    steps: int
    shortest: int
    median: float
    longest: int
    depth: int
    total: TaskTypeSummary
    kinds: list[TaskTypeSummary]
    files: int
    bytes: int
    family_bytes: dict[str, int]
    config: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)


def summarize_run(source: str | os.PathLike[str]) -> RunSummary:
    """Summarize local runs or files, as in `scan_steps`. No texts are read, so large runs take seconds.

    If a writer is open, the summary covers the files that are committed at the time of the call.

    Raises:
        InputError: The source has no rows, is not local, or a file is damaged.
    """
    if "://" in str(source):
        raise InputError(f"expected a local run or local files, received the URL {source}; copy it to this machine")
    files = source_files(source, {})
    header = files[0].header if len({Path(file.path).parent for file in files}) == 1 else None
    with errors(source):
        steps = scan_files(files, shared_depth(files, {}), {})
        depth = schema.stored_depth(steps.collect_schema().names())
        ends = _ends(steps).collect(engine="streaming")
    if ends.is_empty():
        raise InputError(f"no rows in {source}")
    names = ends.select(pl.col("run", "env_id", "split").unique().sort().drop_nulls().implode()).row(0, named=True)
    sizes = ends.group_by(_RUN_GROUP).len()["len"].value_counts(sort=False).sort("len")
    lengths = ends["episode_length"]
    return RunSummary(
        source=clean_text(str(source)),
        runs=names["run"],
        env_ids=names["env_id"],
        splits=names["split"],
        iterations=(int(ends["iteration"].min() or 0), int(ends["iteration"].max() or 0)),  # type: ignore[arg-type]
        groups=ends.select(_RUN_GROUP).n_unique(),
        group_sizes=dict(sizes.iter_rows()),
        steps=int(lengths.sum()),
        shortest=int(lengths.min() or 0),  # type: ignore[arg-type]
        median=float(lengths.median() or 0),  # type: ignore[arg-type]
        longest=int(lengths.max() or 0),  # type: ignore[arg-type]
        depth=depth,
        total=_task_types(ends.with_columns(task_type=pl.lit(None, pl.String)))[0],
        kinds=_task_types(ends),
        files=len(files),
        bytes=sum(Path(file.path).stat().st_size for file in files),
        family_bytes=_family_bytes(files, depth),
        config=None if header is None else dict(header.config),
    )


def _ends(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Aggregate the steps to one row per trajectory."""
    return steps.group_by(_RUN_TRAJECTORY).agg(
        pl.col("env_id", "split", "task_type", "episode_return", "episode_length").first(),
        pl.col("score").sort_by("step").last(),
        pl.col("episode_won").first().alias("won"),
        pl.col("aborted").any(),
        pl.col("action_valid").sum().alias("valid"),
    )


def _task_types(ends: pl.DataFrame) -> list[TaskTypeSummary]:
    whole = ~pl.col("aborted")
    won = pl.col("won").filter(whole)
    length = pl.col("episode_length").filter(whole)
    table = (
        ends.group_by("task_type")
        .agg(
            pl.col("task_id").n_unique().alias("tasks"),
            pl.len().alias("episodes"),
            won.mean().alias("success"),
            pl.when(won.count() > 0).then(won.sum() / pl.len()).alias("success_low"),
            pl.when(won.count() > 0).then(1 - (~won).sum() / pl.len()).alias("success_high"),
            pl.col("score").filter(whole).mean(),
            pl.col("episode_return").filter(whole).mean().alias("mean_return"),
            length.mean().alias("mean_length"),
            (pl.col("valid").filter(whole).sum() / length.sum()).fill_nan(None).alias("valid"),
            pl.col("aborted").sum(),
        )
        .sort("task_type", nulls_last=True)
    )
    return [TaskTypeSummary(**row) for row in table.iter_rows(named=True)]


def _family_bytes(files: Sequence[StepFile], depth: int) -> dict[str, int]:
    import pyarrow.parquet as pq

    families = {column.name: column.family for column in schema.columns(depth)}
    totals = dict.fromkeys(schema.FAMILIES, 0)
    for file in files:
        with errors(file.path):
            footer = pq.read_metadata(file.path)
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for chunk in map(group.column, range(group.num_columns)):
                family = families.get(chunk.path_in_schema.partition(".")[0], "other")
                totals[family] = totals.get(family, 0) + chunk.total_compressed_size
    return totals
