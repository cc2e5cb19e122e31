"""Tables larger than memory: chunks of complete groups of rollouts. Memory does not depend on the table's size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.advantages.input_columns import batch_keys, group_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROWS: Final = 250_000


def chunks(
    steps: pl.LazyFrame, columns: Sequence[str], rows: int = ROWS, *, whole: str = "group"
) -> Iterator[pl.DataFrame]:
    """Read a table in chunks of about `rows` rows, in order, without splitting groups.

    Args:
        steps: A table whose groups are contiguous, as in the step tables that `StepWriter` writes.
        columns: The names of the columns to read.
        rows: The approximate number of rows of a chunk; larger if a group is larger.
        whole: The unit that is not split: a ``group`` of rollouts, or a ``batch`` (a run's iteration).

    Yields:
        The chunks.

    Raises:
        InputError: The rows of a group are not contiguous and are in different chunks.
    """
    if rows < 1:
        raise InputError(f"chunk_rows: expected an integer of at least 1, received {rows}")
    keys = group_keys(columns)
    if whole == "batch":
        keys = batch_keys(columns)
    rest: pl.DataFrame | None = None  # rows after the last chunk
    seen = pl.Series("seen", [], dtype=pl.UInt64)
    for batch in steps.select(columns).collect_batches(chunk_size=rows, maintain_order=True):
        table = batch if rest is None else pl.concat([rest, batch])
        end = _last_border(table, keys) if keys else 0
        if end and end >= rows // 2:
            seen = unseen_groups(table[:end], keys, seen)
            yield table[:end]
            table = table[end:]
        rest = table
    if rest is not None and rest.height:
        unseen_groups(rest, keys, seen)
        yield rest


def _last_border(table: pl.DataFrame, keys: list[str]) -> int:
    """Return the index of the last group's first row."""
    same = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).last()) for key in keys)
    others = table.select((~same).arg_true().last()).item()
    return 0 if others is None else int(others) + 1


def unseen_groups(chunk: pl.DataFrame, keys: list[str], seen: pl.Series) -> pl.Series:
    """Return the hashes of the groups so far, with those of the chunk.

    Args:
        chunk: Rows of whole groups.
        keys: The columns that identify a group.
        seen: The hashes of the groups of earlier chunks.

    Raises:
        InputError: A group of the chunk is also in an earlier chunk.
    """
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
