"""Tables larger than memory: whole groups of rollouts at a time, with memory that does not grow with the table."""

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
    """The table's columns in chunks of about `rows` rows, in order, no group cut in two.

    Args:
        steps: A table whose groups' rows lie together, as step tables are written.
        columns: What to read.
        rows: About how many rows a chunk has; more where one group is larger.
        whole: What is not cut: a ``group`` of rollouts, or a ``batch`` (a run's iteration).

    Raises:
        InputError: A group's rows come in two places that are not in one chunk.
    """
    keys = group_keys(columns)
    if whole == "batch":
        keys = batch_keys(columns)
    waiting: pl.DataFrame | None = None
    seen = pl.Series("seen", [], dtype=pl.UInt64)
    for batch in steps.select(columns).collect_batches(chunk_size=rows, maintain_order=True):
        table = batch if waiting is None else pl.concat([waiting, batch])
        end = _last_border(table, keys) if keys else 0
        if end and end >= rows // 2:
            seen = _unseen(table[:end], keys, seen)
            yield table[:end]
            table = table[end:]
        waiting = table
    if waiting is not None and waiting.height:
        _unseen(waiting, keys, seen)
        yield waiting


def _last_border(table: pl.DataFrame, keys: list[str]) -> int:
    """The row where the last group begins."""
    same = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).last()) for key in keys)
    others = table.select((~same).arg_true().last()).item()
    return 0 if others is None else int(others) + 1


def _unseen(chunk: pl.DataFrame, keys: list[str], seen: pl.Series) -> pl.Series:
    """The groups seen so far with those of the chunk; refused where one was there before."""
    if not keys:
        return seen
    groups = chunk.select(keys).unique().with_columns(pl.struct(keys).hash().alias("seen"))
    again = groups.filter(pl.col("seen").is_in(seen.implode()))
    if again.height:
        raise InputError(
            f"rows of one group must lie together, but {again.select(keys).row(0, named=True)} comes in two places; "
            f"sort the table by {', '.join(keys)}, or raise the rows of a chunk above the table's"
        )
    return pl.concat([seen, groups["seen"]])
