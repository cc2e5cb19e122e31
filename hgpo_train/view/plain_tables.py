"""Tables of other programs: Parquet files with the columns that estimators need, made into a run that can be viewed.

The viewer reads slices of sorted files with hashes and lengths. A table that lacks these is written once as a run in a
temporary folder, which is removed when the viewer ends. The table itself is only read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets import StepWriter, scan_steps
from hgpo_datasets.branches import COLUMNS as BRANCHES
from hgpo_datasets.schema import TEXT, columns
from hgpo_envs.errors import InputError
from hgpo_train.advantages import registry
from hgpo_train.advantages.input_columns import group_keys, no_flag, row_keys

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_KEPT: Final = {
    column.name: column.type
    for column in columns()
    if column.name == "state_hash" or not (column.derived or column.name == "run")
}
"""Columns that are taken from the table, with their types. The writer computes the others."""

_ROWS: Final = 50_000
"""About how many rows are written at a time."""

_FLAGS: Final = ("terminated", "truncated", "aborted")
"""Columns that a step table sets only in the last row of a trajectory, if any row of it has them."""
_TEXTS: Final = ("next_state", "error")
"""Columns that a step table has only in the last row of a trajectory: its own value."""


def import_table(files: Sequence[str], folder: Path) -> None:
    """Write the rows of plain Parquet files as a run.

    A column of the step table is taken over if the table has it. ``task`` stands for ``task_id`` where that is missing.
    Steps are numbered from 0 in each trajectory, without gaps. All files have the same columns.

    Raises:
        InputError: A column is missing or cannot be converted, or rows are invalid.
    """
    steps = scan_steps(files, plain=True)
    schema = steps.collect_schema()
    registry.get("hgpo").columns(schema)
    if "state" not in schema:
        raise InputError(
            f"{files[0]}: expected a column `state` with texts, which the viewer shows; add one"
        )
    table = _step_table(steps.collect(), schema)
    if table.is_empty():
        raise InputError(f"{files[0]}: expected steps, received a table without rows")

    # Rows are written in their order, several whole groups at a time.
    keys = [name for name in ("iteration", "task_id", "group") if name in table.columns]
    table = table.sort([*keys, "trajectory", "step"])
    first = pl.int_range(pl.len()).min().over(keys)
    parts = table.select((first // _ROWS).rle_id()).to_series()
    with StepWriter(folder, run="table") as writer:
        for part in range(int(parts[-1]) + 1):
            writer.add_group(table.filter(parts == part))


def _converted(series: pl.Series, kind: pl.DataType) -> pl.Series:
    """Return keys as texts and numbers as flags, as estimators read them. The writer checks all other types."""
    if kind == pl.Boolean and series.dtype.is_numeric():
        if (wrong := series.filter(no_flag(series))).len():
            raise InputError(
                f"column {series.name}: expected true, false, 0 or 1, received {wrong[0]}"
            )
        return series.cast(kind)
    return series.cast(kind) if kind == TEXT and series.dtype.is_numeric() else series


def _step_table(table: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Return the columns of a step table that a plain table has, in their types."""
    if "task_id" not in schema:
        table = table.with_columns(task_id="task")
    # A run has one name: trajectories of several are kept apart.
    if "run" in schema and table["run"].n_unique() > 1:
        names = {
            name: pl.format("{}/{}", "run", name) for name in ("task_id", "trajectory")
        }
        table = table.with_columns(**names)
    if not set(BRANCHES) <= set(schema):  # one of them alone means something else there
        table = table.drop(BRANCHES, strict=False)
    table = table.select(
        _converted(table[name], kind)
        for name, kind in _KEPT.items()
        if name in table.columns
    )

    # Flags and texts of the end are often in every row; a step table has them in the last one.
    within = [*group_keys(table.columns), "trajectory"]
    last = pl.col("step") == pl.col("step").max().over(within)
    at_end: dict[str, pl.Expr] = {
        name: last & pl.col(name).any().over(within)
        for name in _FLAGS
        if name in table.columns
    }
    at_end |= {
        name: pl.when(last).then(pl.col(name))
        for name in _TEXTS
        if name in table.columns
    }
    if table.select(row_keys(table.columns)).is_duplicated().any():
        raise InputError(
            "expected each step of a trajectory once; the table has several rows of one step"
        )
    position = pl.col("step").rank("ordinal").over(within).cast(_KEPT["step"]) - 1
    if "branch_step" in table.columns:
        position += pl.col("branch_step").fill_null(0)
    return table.with_columns(position.alias("step"), **at_end)
