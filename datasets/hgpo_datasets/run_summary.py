"""A run at a glance: what was played, how it went, how much room it takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_datasets import footer, manifest, reading, schema
from hgpo_datasets.reader import scan_steps, step_files
from hgpo_envs.errors import InputError
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    import os

_RUN_GROUP = ("run", *schema.GROUP_KEY)
_RUN_TRAJECTORY = (*_RUN_GROUP, "trajectory")


@dataclass(frozen=True, slots=True)
class TaskTypeSummary:
    """How the episodes of one kind of task went.

    Attributes:
        task_type: The benchmark's name for it; None where it is unknown.
        tasks: Distinct tasks.
        episodes: Trajectories.
        success: Share of them that were won.
        score: Mean of their last scores; None where the benchmark gives none.
        mean_return: Mean undiscounted sum of rewards.
        mean_length: Mean number of steps.
        valid: Share of steps whose action was valid.
        aborted: Trajectories that were aborted.
    """

    task_type: str | None
    tasks: int
    episodes: int
    success: float
    score: float | None
    mean_return: float
    mean_length: float
    valid: float
    aborted: int


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run, or several, at a glance.

    Attributes:
        source: What was looked at.
        runs: Names of the runs.
        env_ids: Environments played.
        splits: Splits that the tasks come from.
        iterations: First and last iteration.
        groups: Groups of rollouts.
        group_sizes: How many groups there are of each size.
        steps: Rows.
        shortest: Steps of the shortest episode.
        median: Steps of the median episode.
        longest: Steps of the longest episode.
        depth: The deepest hash stored.
        total: All episodes together.
        kinds: The same by kind of task.
        files: Files read.
        bytes: Their size.
        family_bytes: Compressed bytes by family of columns.
        config: What the run was made with; None for several runs or a lone file.
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
        """The overview as values of JSON."""
        return asdict(self)


def summarize_run(source: str | os.PathLike[str]) -> RunSummary:
    """Summarises a run, a file, or a pattern of them on this machine; reads no text, so that large runs take seconds.

    A writer may be at work in the run: what is committed when it is called is what is summarised.

    Raises:
        InputError: There is nothing to read, or a file is damaged or not on this machine.
    """
    if "://" in str(source):
        raise InputError(f"{source}: expected a run or files on this machine")
    found = step_files(source)
    if not found:
        raise InputError(f"no committed rows in {source}")
    with reading.errors(source):
        steps = scan_steps(found)
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
        files=len(found),
        bytes=sum(reading.status(Path(file)).st_size for file in found),
        family_bytes=_family_bytes(found, depth),
        config=_config(Path(source)),
    )


def _ends(steps: pl.LazyFrame) -> pl.LazyFrame:
    """One row a trajectory."""
    return steps.group_by(_RUN_TRAJECTORY).agg(
        pl.col("env_id", "split", "task_type", "episode_return", "episode_length").first(),
        pl.col("score").sort_by("step").last(),
        pl.col("won", "aborted").any(),
        pl.col("action_valid").sum().alias("valid"),
    )


def _task_types(ends: pl.DataFrame) -> list[TaskTypeSummary]:
    table = (
        ends.group_by("task_type")
        .agg(
            pl.col("task_id").n_unique().alias("tasks"),
            pl.len().alias("episodes"),
            pl.col("won").mean().alias("success"),
            pl.col("score").mean(),
            pl.col("episode_return").mean().alias("mean_return"),
            pl.col("episode_length").mean().alias("mean_length"),
            (pl.col("valid").sum() / pl.col("episode_length").sum()).alias("valid"),
            pl.col("aborted").sum(),
        )
        .sort("task_type", nulls_last=True)
    )
    return [TaskTypeSummary(**row) for row in table.iter_rows(named=True)]


def _family_bytes(found: list[str], depth: int) -> dict[str, int]:
    families = {column.name: column.family for column in schema.columns(depth)}
    totals = dict.fromkeys(schema.FAMILIES, 0)
    for file in found:
        for name, size in footer.column_bytes(Path(file)).items():
            family = families.get(name, "other")
            totals[family] = totals.get(family, 0) + size
    return totals


def _config(folder: Path) -> dict[str, Any] | None:
    if not folder.is_dir():
        return None
    header = manifest.read(folder).header
    return dict(header.config) if header else None
