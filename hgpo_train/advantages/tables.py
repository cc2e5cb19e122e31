"""Step tables in any form (a Polars frame, a path or URL, a pandas or pyarrow table), and their chunks of whole groups.

Tables larger than memory are read in chunks of complete groups of rollouts: memory does not depend on their size.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import polars as pl

from hgpo_envs.errors import InputError, one_line
from hgpo_train.advantages.input_columns import BATCH_KEYS, group_keys
from hgpo_train.scores.tables import with_scores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hgpo_datasets.partitions import Partition

    StepTable: TypeAlias = Any
    """A Polars frame, a path or URL, or a list of them, or a table of another library; see `step_table`."""

ROWS: Final = 250_000
"""The approximate number of rows of a chunk."""


def step_table(steps: StepTable, scores: Sequence[str] = ()) -> pl.LazyFrame:
    """Return a step table as a LazyFrame.

    Args:
        steps: A Polars LazyFrame or DataFrame; the path, pattern or URL of a run or a Parquet file, or a list of them
            (`hgpo_datasets.scan_steps`); or a table of pandas, pyarrow or another library with Arrow's C stream
            interface. A pandas index is dropped.
        scores: The names of scores, whose columns are added to the steps of runs (`hgpo score`).

    Raises:
        InputError: It is none of these, the path contains no steps, or a run has no such scores.

    >>> step_table({"task": ["a"]})
    Traceback (most recent call last):
    hgpo_envs.errors.InputError: expected a step table (a Polars LazyFrame or DataFrame, a path or URL, a pandas or
    pyarrow table), received dict {'task': ['a']}
    """
    if isinstance(steps, pl.LazyFrame | pl.DataFrame):
        return steps.lazy()
    if is_path(steps):
        # tables in memory need none of the package, whose import takes as long
        from hgpo_datasets import scan_steps

        return with_scores(scan_steps(steps, plain=True), steps, scores)
    if not hasattr(steps, "__arrow_c_stream__") or isinstance(steps, pl.Series):
        raise InputError(
            "expected a step table (a Polars LazyFrame or DataFrame, a path or URL, a pandas or pyarrow table), "
            f"received {type(steps).__name__} {one_line(repr(steps), 60)}"
        )
    try:
        return pl.LazyFrame(steps)
    except Exception as error:  # of the other library
        reason = one_line(error, 200)
        raise InputError(
            f"{type(steps).__name__} cannot be converted to a Polars DataFrame: {reason}"
        ) from error


def table_parts(
    steps: StepTable,
    rows: int,
    *,
    whole: str = "group",
) -> list[Partition | pl.LazyFrame]:
    """Return a step table as parts with whole groups of rollouts, in order, which can be computed separately.

    Args:
        steps: As for `step_table`; of a table, the rows of each group are next to each other.
        rows: The largest number of rows of a part; larger if a group or the shard of a run is larger.
        whole: The unit that is not divided: a ``group`` of rollouts, or a ``batch`` (a run's iteration).

    Raises:
        InputError: The rows of a group are not next to each other in a larger table.
    """
    # A table in memory is divided here; a path by the shards of its runs, whose groups are whole.
    if not is_path(steps):
        return list(_chunks(step_table(steps), rows, whole))
    from hgpo_datasets.partitions import partitions

    keys = BATCH_KEYS if whole == "batch" else ()
    parts = partitions(steps, rows, whole=keys, plain=True)
    if len(parts) == 1:  # perhaps a file that is in no run
        return list(_chunks(parts[0].scan(), rows, whole))
    return list(parts)


def is_path(steps: object) -> bool:
    """Return whether this is a path, or a list of paths."""
    paths = steps if isinstance(steps, list | tuple) else [steps]
    return bool(paths) and all(isinstance(path, str | os.PathLike) for path in paths)


def _chunks(
    steps: pl.LazyFrame,
    rows: int,
    whole: str,
) -> Iterator[pl.LazyFrame]:
    """Yield a table in chunks, without dividing groups."""
    schema = steps.collect_schema()
    keys = group_keys(schema)
    if whole == "batch":
        keys = [name for name in BATCH_KEYS if name in schema]
    if not keys or steps.select(pl.len()).collect().item() <= rows:
        yield steps
        return

    # The first row of each group, and that after its last; groups whose rows are in two places overlap others.
    row = pl.col("(row)")
    limits = (
        steps.select(keys)
        .with_row_index("(row)")
        .group_by(keys)
        .agg(start=row.min(), end=row.max() + 1)
    )
    groups = limits.sort("start").collect()
    apart = groups.filter(pl.col("end") > pl.col("start").shift(-1)).select(keys)
    if apart.height:
        raise InputError(
            f"expected contiguous rows of each group, but those of {apart.row(0, named=True)} are in two places; sort "
            f"the table by {', '.join(keys)}, or increase the rows of a chunk to those of the table"
        )

    # A chunk ends before the group that would make it too long.
    start = 0
    before = 0
    for end in groups["end"]:
        if end - start > rows and before > start:
            yield steps.slice(start, before - start)
            start = before
        before = end
    yield steps.slice(start, before - start)
