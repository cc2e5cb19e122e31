"""Step tables in any form (a Polars frame, a path or URL, a pandas or pyarrow table), and their chunks of whole groups.

Tables larger than memory are read in chunks of complete groups of rollouts: memory does not depend on their size.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import polars as pl

from hgpo_envs.errors import InputError, one_line
from hgpo_train.advantages.input_columns import BATCH_KEYS, batch_keys, group_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hgpo_datasets.partitions import Partition

    StepTable: TypeAlias = Any
    """A Polars frame, a path or URL, or a list of them, or a table of another library; see `step_table`."""

ROWS: Final = 250_000
"""The approximate number of rows of a chunk."""


def step_table(steps: StepTable) -> pl.LazyFrame:
    """Return a step table as a LazyFrame.

    Args:
        steps: A Polars LazyFrame or DataFrame; the path, pattern or URL of a run or a Parquet file, or a list of them
            (`hgpo_datasets.scan_steps`); or a table of pandas, pyarrow or another library with Arrow's C stream
            interface. A pandas index is dropped.

    Raises:
        InputError: It is none of these, or the path contains no steps.

    >>> step_table({"task": ["a"]})
    Traceback (most recent call last):
    hgpo_envs.errors.InputError: expected a step table (a Polars LazyFrame or DataFrame, a path or URL, a pandas or
    pyarrow table), received dict {'task': ['a']}
    """
    if isinstance(steps, pl.LazyFrame | pl.DataFrame):
        return steps.lazy()
    if _is_path(steps):
        from hgpo_datasets import scan_steps  # tables in memory need none of the package, whose import takes as long

        return scan_steps(steps, plain=True)
    if not hasattr(steps, "__arrow_c_stream__") or isinstance(steps, pl.Series):
        raise InputError(
            "expected a step table (a Polars LazyFrame or DataFrame, a path or URL, a pandas or pyarrow table), "
            f"received {type(steps).__name__} {one_line(repr(steps), 60)}"
        )
    try:
        return pl.LazyFrame(steps)
    except Exception as error:  # of the other library
        reason = one_line(error, 200)
        raise InputError(f"{type(steps).__name__} cannot be converted to a Polars DataFrame: {reason}") from error


def table_parts(
    steps: StepTable, rows: int, *, whole: str = "group", storage_options: Mapping[str, Any] | None = None
) -> list[Partition | pl.LazyFrame]:
    """Return a step table as parts with whole groups of rollouts, which can be computed separately.

    Args:
        steps: As for `step_table`. A path or URL is divided as by `hgpo_datasets.partitions`; a table is one part.
        rows: The largest number of rows of a part.
        whole: As for `chunks`.
        storage_options: Options of the object store.
    """
    if not _is_path(steps):
        return [step_table(steps)]
    from hgpo_datasets.partitions import partitions

    keys = BATCH_KEYS if whole == "batch" else ()
    return list(partitions(steps, rows, whole=keys, plain=True, storage_options=storage_options))


def _is_path(steps: object) -> bool:
    """Return whether this is a path, or a list of paths."""
    paths = steps if isinstance(steps, list | tuple) else [steps]
    return bool(paths) and all(isinstance(path, str | os.PathLike) for path in paths)


def chunks(
    steps: pl.LazyFrame, columns: Sequence[str], rows: int = ROWS, *, whole: str = "group"
) -> Iterator[pl.DataFrame]:
    """Yield a table in chunks of about `rows` rows, in order, without splitting groups.

    Args:
        steps: A table whose groups are contiguous, as in the step tables that `StepWriter` writes.
        columns: The names of the columns to read.
        rows: The approximate number of rows of a chunk; larger if a group is larger.
        whole: The unit that is not split: a ``group`` of rollouts, or a ``batch`` (a run's iteration).

    Raises:
        InputError: The rows of a group are not contiguous and are in different chunks.
    """
    if rows < 1:
        raise InputError(f"chunk_rows: expected an integer of at least 1, received {rows}")
    keys = batch_keys(columns) if whole == "batch" else group_keys(columns)
    rest: pl.DataFrame | None = None  # rows after the last chunk
    seen = pl.Series("seen", [], dtype=pl.UInt64)
    for batch in steps.select(columns).collect_batches(chunk_size=rows, maintain_order=True):
        table = batch if rest is None else pl.concat([rest, batch])
        end = _last_border(table, keys) if keys else 0
        if end and end >= rows // 2:
            seen = _unseen_groups(table[:end], keys, seen)
            yield table[:end]
            table = table[end:]
        rest = table
    if rest is not None and rest.height:
        _unseen_groups(rest, keys, seen)
        yield rest


def _last_border(table: pl.DataFrame, keys: list[str]) -> int:
    """Return the index of the last group's first row."""
    same = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).last()) for key in keys)
    others = table.select((~same).arg_true().last()).item()
    return 0 if others is None else int(others) + 1


def _unseen_groups(chunk: pl.DataFrame, keys: list[str], seen: pl.Series) -> pl.Series:
    """Return the hashes of the groups of a chunk and of earlier ones, `seen`; no group may be in both."""
    if not keys:
        return seen
    groups = chunk.select(keys).unique().with_columns(pl.struct(keys).hash().alias("seen"))
    again = groups.filter(pl.col("seen").is_in(seen.implode()))
    if again.height:
        raise InputError(
            f"expected contiguous rows of each group, but {again.select(keys).row(0, named=True)} is in two places; "
            f"sort the table by {', '.join(keys)}, or increase the rows of a chunk to those of the table"
        )
    return pl.concat([seen, groups["seen"]])
