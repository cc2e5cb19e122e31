"""The columns of scores in a step table: that those are there which an estimator reads, with finite numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.wording import listed
from hgpo_train.advantages.input_columns import StepTableError
from hgpo_train.scores.registry import columns_of, score_command

if TYPE_CHECKING:
    from collections.abc import Sequence


def require_scores(schema: pl.Schema, scores: Sequence[str], name: str) -> list[str]:
    """Return the columns of scores, which a table must have with their types.

    Args:
        schema: The columns of the table.
        scores: The names of the scores.
        name: The estimator that reads them.

    Raises:
        InputError: A column is missing, or has no numbers.
    """
    columns = columns_of(scores)
    missing = [f"`{column}`" for column in columns if column not in schema]
    if missing:
        raise InputError(
            f"the table has no {listed(missing)}, which {name} reads; name a run in place of the table, and add its "
            f"scores with: {score_command('RUN', scores)}"
        )
    for column, expected in columns.items():
        found = schema[column]
        if (
            found != pl.Null
            and _is_numeric(expected)
            and not _is_numeric(found, nested=expected == pl.List)
        ):
            raise InputError(
                f"column {column}: expected {expected}, received {found}; compute it with hgpo score"
            )
    return list(columns)


def _is_numeric(dtype: pl.DataType, *, nested: bool | None = None) -> bool:
    """Return whether these are numbers, or lists of numbers; with `nested`, only the one or the other."""
    is_list = isinstance(dtype, pl.List)
    inner = dtype.inner if isinstance(dtype, pl.List) else dtype
    return bool(inner.is_numeric()) and nested in (None, is_list)


def check_scores(
    prepared: pl.LazyFrame, scores: Sequence[str], steps: pl.DataFrame
) -> None:
    """Check that scores are finite or null, except in aborted trajectories.

    Args:
        prepared: The steps with the input columns of estimators.
        scores: The names of the scores.
        steps: The table, which `(row)` counts.

    Raises:
        StepTableError: One is NaN or infinite.
    """
    for column, dtype in columns_of(scores).items():
        if not _is_numeric(dtype) or steps.schema[column] == pl.Null:
            continue
        value = pl.col(column).list.mean() if dtype == pl.List else pl.col(column)
        bad = (
            prepared.filter(~value.is_finite() & ~pl.col("(aborted)"))
            .select("(row)", value)
            .sort("(row)")
            .collect()
        )
        if bad.height:
            row, received = bad.row(0)
            raise StepTableError(
                f"expected finite numbers as {column}, received {received}", steps[row]
            )
