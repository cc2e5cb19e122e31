"""Summarize a run: environments and tasks, results, and storage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_datasets import schema
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
from hgpo_train.measures import figures
from hgpo_train.rollout.outcomes import GROUP, rollout_table

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

        `total` has the figures of all rollouts (`hgpo_train.measures.figures`), `kinds` those of each `task_type`.

    Raises:
        InputError: The source has no rows, is not local, or a file is damaged.
    """
    if "://" in str(source):
        raise InputError(
            f"expected a local run or local files, received the URL {source}; copy it to this machine"
        )
    files = source_files(source)
    header = header_of(files)
    # 1. One row per rollout; only the columns that are used are read.
    with errors(source):
        steps = scan_files(files, shared_depth(files))
        depth = schema.stored_depth(steps.collect_schema().names())
        table = rollout_table(steps, branches=True).drop("task", "truncated", "error")
        trajectories = table.collect(engine="streaming")
        wordings = wordings_of(steps)
        named = pl.col("run", "env_id", "split").unique().sort().drop_nulls()
        names = steps.select(named.implode()).collect(engine="streaming")
    if trajectories.is_empty():
        raise InputError(f"no rows in {source}")
    # 2. What is counted over all of them. Branches are no independent rollouts: they are counted, and in no rate.
    rollouts = trajectories.filter(~pl.col("branch"))
    if rollouts.is_empty():
        raise InputError(
            f"{source}: expected rollouts with their branches, received branches alone"
        )
    lengths = pl.col("length")
    sizes = Counter(sorted(rollouts.group_by("run", *GROUP).len()["len"]))
    return {
        "source": clean_text(str(source)),
        **dict(zip(("runs", "env_ids", "splits"), names.row(0), strict=True)),
        "wordings": wordings,
        "iterations": [
            int(rollouts["iteration"].min() or 0),  # type: ignore[arg-type]
            int(rollouts["iteration"].max() or 0),  # type: ignore[arg-type]
        ],
        "groups": sizes.total(),
        "group_sizes": dict(sizes),
        "branches": len(trajectories) - len(rollouts),
        "steps": trajectories["length"].sum(),
        **rollouts.select(
            shortest=lengths.min(), median=lengths.median(), longest=lengths.max()
        ).row(0, named=True),
        "depth": depth,
        "total": figures(rollouts).row(0, named=True),
        "kinds": figures(rollouts, ["task_type"]).to_dicts(),
        "files": len(files),
        "bytes": sum(Path(file.path).stat().st_size for file in files),
        "family_bytes": _family_bytes(files, depth),
        "config": None if header is None else header.config,
    }


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
