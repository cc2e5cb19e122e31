"""Summarize a run: environments and tasks, results, and storage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_datasets import schema
from hgpo_datasets.branches import IS_BRANCH
from hgpo_datasets.derived_columns import effective_trials
from hgpo_datasets.reader import (
    errors,
    header_of,
    scan_files,
    shared_depth,
    source_files,
)
from hgpo_datasets.wordings import wordings_of
from hgpo_envs.errors import InputError
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from hgpo_datasets.reader import StepFile


def summarize_run(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Summarize local runs or files, as in `scan_steps`. No texts are read, so large runs take seconds.

    If a writer is open, the summary covers the files that are committed at the time of the call.

    Returns:
        JSON values. `iterations` are the first and the last; `group_sizes` has the number of groups by size;
        `branches` is the number of branches, whose steps are part of `steps`, and which nothing else contains;
        `shortest`, `median` and `longest` are lengths of episodes in steps; `depth` is the largest k of the stored
        hashes; `family_bytes` are compressed sizes by family of columns; `config` is null for several runs or a file.
        `wordings` names the wordings of the tasks (`hgpo_datasets.wordings`).

        `total` has the results of all episodes, `kinds` those of each `task_type`. `success` leaves out aborted
        episodes and those for which it is unknown; `success_if_aborted_lost` counts them as lost,
        `success_if_aborted_won` as won. `success_trials` is the number of tasks that `success`
        is worth: fewer than there are if some have more rollouts (`effective_trials`).
        `score` (after the last step), `mean_return`, `mean_length` and `valid` (fraction of steps with a valid action)
        are of the episodes that were not aborted. What is unknown for all is null.

    Raises:
        InputError: The source has no rows, is not local, or a file is damaged.
    """
    if "://" in str(source):
        raise InputError(
            f"expected a local run or local files, received the URL {source}; copy it to this machine"
        )
    files = source_files(source)
    header = header_of(files)
    run_group = ("run", *schema.GROUP_KEY)
    # 1. One row per episode; only these columns are read.
    with errors(source):
        steps = scan_files(files, shared_depth(files))
        depth = schema.stored_depth(steps.collect_schema().names())
        episodes = (
            steps.group_by(*run_group, "trajectory")
            .agg(
                pl.col(
                    "env_id",
                    "split",
                    "task_type",
                    "episode_return",
                    "episode_length",
                    "episode_won",
                ).first(),
                pl.col("score").sort_by("step").last(),
                IS_BRANCH.first().alias("branch"),
                pl.len().cast(pl.Int64).alias("rows"),
                pl.col("aborted").any(),
                pl.col("action_valid").sum().alias("valid"),
            )
            .collect(engine="streaming")
        )
        wordings = wordings_of(steps)
    if episodes.is_empty():
        raise InputError(f"no rows in {source}")
    # 2. What is counted over all of them. Branches are no independent episodes: they are counted, and in no rate.
    stored = episodes["rows"].sum()
    branches = episodes["branch"].sum()
    episodes = episodes.filter(~pl.col("branch"))
    if episodes.is_empty():
        raise InputError(
            f"{source}: expected rollouts with their branches, received branches alone"
        )
    names = episodes.select(
        pl.col("run", "env_id", "split").unique().sort().drop_nulls().implode()
    )
    lengths = pl.col("episode_length")
    sizes = Counter(sorted(episodes.group_by(run_group).len()["len"]))
    return {
        "source": clean_text(str(source)),
        **dict(zip(("runs", "env_ids", "splits"), names.row(0), strict=True)),
        "wordings": wordings,
        "iterations": [
            int(episodes["iteration"].min() or 0),  # type: ignore[arg-type]
            int(episodes["iteration"].max() or 0),  # type: ignore[arg-type]
        ],
        "groups": sizes.total(),
        "group_sizes": dict(sizes),
        "branches": branches,
        "steps": stored,
        **episodes.select(
            shortest=lengths.min(), median=lengths.median(), longest=lengths.max()
        ).row(0, named=True),
        "depth": depth,
        "total": _results(episodes.with_columns(task_type=pl.lit(None, pl.String)))[0],
        "kinds": _results(episodes),
        "files": len(files),
        "bytes": sum(Path(file.path).stat().st_size for file in files),
        "family_bytes": _family_bytes(files, depth),
        "config": None if header is None else header.config,
    }


def _results(episodes: pl.DataFrame) -> list[dict[str, Any]]:
    # Rates are of the whole episodes; the bounds count the aborted ones as lost and as won.
    whole = ~pl.col("aborted")
    won = pl.col("episode_won").filter(whole)
    known = pl.col("task_id").filter(whole & pl.col("episode_won").is_not_null())
    length = pl.col("episode_length").filter(whole)
    results = episodes.group_by("task_type").agg(
        pl.col("task_id").n_unique().alias("tasks"),
        pl.len().alias("episodes"),
        won.mean().alias("success"),
        effective_trials(known.unique_counts()).alias("success_trials"),
        pl.when(won.count() > 0)
        .then(won.sum() / pl.len())
        .alias("success_if_aborted_lost"),
        pl.when(won.count() > 0)
        .then(1 - (~won).sum() / pl.len())
        .alias("success_if_aborted_won"),
        pl.col("score").filter(whole).mean(),
        pl.col("episode_return").filter(whole).mean().alias("mean_return"),
        length.mean().alias("mean_length"),
        (pl.col("valid").filter(whole).sum() / length.sum())
        .fill_nan(None)
        .alias("valid"),
        pl.col("aborted").sum(),
    )
    return results.sort("task_type", nulls_last=True).to_dicts()


def _family_bytes(files: Sequence[StepFile], depth: int) -> dict[str, int]:
    import pyarrow.parquet as pq

    families = {column.name: column.family for column in schema.columns(depth)}
    totals = Counter(dict.fromkeys(schema.FAMILIES, 0))
    for file in files:
        with errors(file.path):
            footer = pq.read_metadata(file.path)
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for chunk in map(group.column, range(group.num_columns)):
                family = families.get(chunk.path_in_schema.partition(".")[0], "other")
                totals[family] += chunk.total_compressed_size
    return dict(totals)
