"""Convert input rows to a Polars frame with the columns, types and null rules of the schema.

Errors list the rows that violate the schema, so that one invalid value affects only its own trajectory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from hgpo_datasets.schema import TEXT, TEXTS, Column, columns
from hgpo_datasets.shards import first_line
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.unicode_text import clean_text

Rows = Iterable[Mapping[str, Any]] | Mapping[str, Sequence[Any]] | pl.DataFrame | Any
"""Input steps: rows as mappings, columns by name, a Polars frame, or an object with Arrow's C stream interface (pyarrow
or pandas tables)."""

Fault = tuple[str, str, pl.Series]
"""A column, what is wrong with it, and a mask of the rows."""

_REFUSALS: Final = (
    TypeError,
    ValueError,
    OverflowError,
    AttributeError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
"""Exceptions raised when values do not fit a column."""


def preview(value: object, most: int = 80) -> str:
    """Return the repr of any value in one line of at most so many characters.

    >>> preview("a" * 100, most=5)
    "'aaaa"
    """
    try:
        return f"{value!r:.{most}}".replace("\n", " ")
    except Exception:  # noqa: BLE001 (the repr of a user's object may raise any exception)
        return f"a {type(value).__name__}"


class RowError(InputError):
    """Rows violate the schema. The message describes the first of them.

    Args:
        messages: The trajectory of each invalid row, and the error in one line.

    Attributes:
        trajectories: The error of the first invalid row of each trajectory. Rules are checked in stages, and the error
            lists the rows that fail the first failing stage; other rows may fail later stages.
    """

    def __init__(self, messages: Iterable[tuple[object, str]]) -> None:
        (_, message), *others = pairs = list(messages)
        self.trajectories: dict[str, str] = {
            trajectory: text for trajectory, text in reversed(pairs) if isinstance(trajectory, str)
        }
        super().__init__(f"{message}{f' (and {len(others)} more rows)' if others else ''}")


def refuse(frame: pl.DataFrame, faults: Iterable[Fault]) -> None:
    """Raise RowError if rows violate a rule. The frame has every column; a null in a mask is no violation."""
    messages = [
        (row["trajectory"], f"{row_name(row)}: {rule}, received {column} = {preview(row[column])}")
        for column, rule, mask in faults
        if mask.any()
        for row in frame.filter(mask).unique("trajectory", keep="first", maintain_order=True).iter_rows(named=True)
    ]
    if messages:
        raise RowError(messages)


def row_name(row: Mapping[str, Any]) -> str:
    """Return the description of a row for error messages."""
    return f"task {preview(row['task_id'], 200)}, trajectory {preview(row['trajectory'], 200)}, step {row['step']}"


def frame(rows: Rows, depth: int, defaults: Mapping[str, object]) -> pl.DataFrame:
    """Convert rows to a frame with every column of the schema, in its order. Supplied derived columns are kept.

    Args:
        rows: The steps, in any order.
        depth: Largest k of the history and context hashes in the schema.
        defaults: Values of columns that the rows do not have.

    Raises:
        RowError: A value has the wrong type, does not fit its column, or is null in a column that is never null.
        InputError: The input is not a table of rows, or a column is unknown or missing.
    """
    known = {column.name: column for column in columns(depth)}
    steps = table(rows, known)
    trajectories = steps["trajectory"] if "trajectory" in steps.columns else None
    values = []
    for column in known.values():
        filler = defaults.get(column.name, column.default)
        if column.name not in steps.columns:
            if filler is None and not (column.null or column.derived):
                meaning = column.meaning[0].lower() + column.meaning[1:-1]
                raise InputError(f"expected a column {column.name!r} ({meaning}), received rows without it")
            values.append(pl.Series(column.name, [filler], column.type).new_from_index(0, len(steps)))
            continue
        series = steps[column.name]
        if series.dtype != column.type:
            series = _cast(series, column, trajectories)
        if series.has_nulls() and not (column.null or column.derived):
            if filler is None:
                indices = series.is_null().arg_true().to_list()
                raise _row_error(column, indices, series, trajectories, "expected a value in every row")
            series = series.fill_null(pl.lit(filler, column.type))
        values.append(series)
    return pl.DataFrame(values)


def table(rows: Rows, known: Mapping[str, Column]) -> pl.DataFrame:
    """Return the rows as a table of known columns. Those of mappings have the types of the schema.

    Raises:
        InputError: A name is unknown, or a value of a mapping does not fit its column.
    """
    if hasattr(rows, "__arrow_c_stream__"):  # Polars, pyarrow, pandas
        try:
            frame = pl.DataFrame(rows)
        except _REFUSALS as error:
            raise InputError(f"expected a table of steps, received {preview(rows)}: {first_line(error)}") from error
        _check_names(frame.columns, known)
        return frame
    values = rows if isinstance(rows, Mapping) else _by_column(rows)
    _check_names(values, known)
    if len(lengths := {len(some) for some in values.values()}) > 1:
        raise InputError(f"expected columns of one length, received {sorted(lengths)}")
    names = values.get("trajectory")
    return pl.DataFrame([_series(known[name], list(some), names) for name, some in values.items()])


def _by_column(rows: object) -> dict[str, list[Any]]:
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise InputError(f"expected rows (mappings) or a table, received {type(rows).__name__}")
    mappings = list(rows)
    if wrong := [row for row in mappings if not isinstance(row, Mapping)]:
        raise InputError(f"expected rows that are mappings, received {type(wrong[0]).__name__}")
    names = dict.fromkeys(itertools.chain.from_iterable(mappings))
    return {name: [row.get(name) for row in mappings] for name in names}


def _check_names(names: Iterable[object], known: Mapping[str, Column]) -> None:
    for name in names:
        if name not in known:
            raise InputError(unknown("step table column", name, known))


def _series(column: Column, values: Sequence[Any], trajectories: Sequence[Any] | None) -> pl.Series:
    """Create a column from values. The trajectories of the rows are for errors."""
    try:
        try:
            return _strict(column, values)
        except UnicodeEncodeError:
            return _strict(column, [_cleaned(value) for value in values])
    except _REFUSALS as error:
        indices = [index for index, value in enumerate(values) if not _fits(column, value)]
        if not indices:  # each value fits, but together they do not form a column
            message = f"column {column.name}: expected {column.type}, received values of several types"
            raise InputError(message) from error
        raise _row_error(column, indices, values, trajectories, f"expected {column.type}") from error


def _strict(column: Column, values: Sequence[Any]) -> pl.Series:
    """Create a column, or raise one of `_REFUSALS`."""
    if not isinstance(column.type, pl.List):
        return pl.Series(column.name, values, dtype=column.type, strict=True)
    # one flat column and its offsets, which is seven times faster than list by list; pyarrow can also create lists
    # directly, but then it accepts 0.5 as the integer 0
    import pyarrow as pa

    if any(issubclass(cls, str | bytes | Mapping) for cls in set(map(type, values))):
        raise TypeError(column.name)
    lengths = [-1 if value is None else len(value) for value in values]
    items = [item for value in values if value is not None for item in value]
    ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    if len(items) != ends[-1]:
        raise ValueError(column.name)  # a container whose len() differs from its number of items
    # passed as Polars series, because pyarrow imports pandas to inspect arrays of other types
    offsets, flat, nulls = (
        part.to_arrow(compat_level=pl.CompatLevel.newest())
        for part in (
            pl.Series(np.append(0, ends)),
            pl.Series(items, dtype=column.type.inner, strict=True),
            pl.Series(lengths, dtype=pl.Int64) < 0,
        )
    )
    return pl.Series(column.name, pa.LargeListArray.from_arrays(offsets, flat, mask=nulls), dtype=column.type)


def _cleaned(value: object) -> object:
    """Return the value with texts made valid UTF-8, and other values unchanged."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list | tuple | np.ndarray):
        return [_cleaned(item) for item in value]
    return value


def _fits(column: Column, value: object) -> bool:
    try:
        _strict(column, [_cleaned(value)])
    except _REFUSALS:
        return False
    return True


def _cast(series: pl.Series, column: Column, trajectories: pl.Series | None) -> pl.Series:
    """Return a column of a table with the type of the schema."""
    compatible = (
        series.dtype == pl.Null
        or (series.dtype.is_integer() and column.type.is_numeric())
        or (series.dtype.is_float() and column.type.is_float())
        or (series.dtype in {pl.Categorical, pl.Enum} and column.type == TEXT)
        or (series.dtype == pl.List and column.type == pl.List and series.dtype != TEXTS)
    )
    if not compatible:
        raise InputError(f"column {column.name}: expected {column.type}, received {series.dtype}")
    try:
        return series.cast(column.type, strict=True)
    except _REFUSALS as error:
        fits = series.cast(column.type, strict=False)
        changed = fits.ne_missing(series) if series.dtype.is_nested() else fits.is_null() & series.is_not_null()
        indices = changed.arg_true().to_list()
        raise _row_error(column, indices, series, trajectories, f"expected {column.type}") from error


def _row_error(
    column: Column,
    indices: Sequence[int],
    values: Sequence[Any] | pl.Series,
    trajectories: Sequence[Any] | pl.Series | None,
    text: str,
) -> RowError:
    """Return an error for the rows with these indices."""
    return RowError(
        (
            None if trajectories is None else trajectories[index],
            f"row {index}, column {column.name}: {text}, received {preview(values[index])}",
        )
        for index in indices
    )
