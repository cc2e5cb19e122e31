"""Convert input rows to a Polars frame with the columns, types and null rules of the schema.

Errors list the rows that violate the schema, so that one invalid value affects only its own trajectory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    """Return a short one-line description of a value for error messages.

    Args:
        value: Any value.
        most: The maximum length in characters.

    >>> preview("a" * 100, most=5)
    "'aaaa"
    """
    try:
        return f"{value!r:.{most}}".replace("\n", " ")
    except Exception:  # noqa: BLE001 (the repr of a user's object may raise any exception)
        return f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class WrongRow:
    """One row that violates the schema.

    Attributes:
        row: Index among the input rows; None if only trajectory and step are known.
        trajectory: The row's trajectory in the input; None if the row has none.
        step: The row's step; None if only the index is known.
        column: The invalid column.
        message: The error in one line.
    """

    row: int | None
    trajectory: object
    step: int | None
    column: str
    message: str


class RowError(InputError):
    """An error for rows that violate the schema. The message describes the first of them.

    Attributes:
        wrong: The first invalid row of each trajectory. Rules are checked in stages, and the error lists the rows that
            fail the first failing stage; other rows may fail later stages.
    """

    def __init__(self, wrong: Iterable[WrongRow]) -> None:
        first: dict[object, WrongRow] = {}
        for row in wrong:
            first.setdefault(row.trajectory if isinstance(row.trajectory, str) else ("row", row.row), row)
        self.wrong = tuple(first.values())
        more = f" (and {len(self.wrong) - 1} more trajectories have invalid rows)" if len(self.wrong) > 1 else ""
        super().__init__(f"{self.wrong[0].message}{more}")

    @property
    def trajectories(self) -> frozenset[str]:
        """The trajectories with invalid rows, without rows that have no trajectory."""
        return frozenset(row.trajectory for row in self.wrong if isinstance(row.trajectory, str))


def refuse(frame: pl.DataFrame, faults: Iterable[Fault]) -> None:
    """Raise if a rule has rows that violate it.

    Args:
        frame: Rows with every column of the schema.
        faults: The rules' columns, messages and masks. A null in a mask is no violation.

    Raises:
        RowError: There are such rows.
    """
    wrong = [
        WrongRow(
            None,
            row["trajectory"],
            row["step"],
            column,
            f"{row_name(row)}: {message}, received {column} = {preview(row[column])}",
        )
        for column, message, mask in faults
        if mask.any()
        for row in frame.filter(mask).unique("trajectory", keep="first", maintain_order=True).iter_rows(named=True)
    ]
    if wrong:
        raise RowError(wrong)


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
    table = _table(rows, known)
    trajectories = table["trajectory"] if "trajectory" in table.columns else None
    values = []
    for column in known.values():
        filler = defaults.get(column.name, column.default)
        if column.name not in table.columns:
            if filler is None and column.required:
                meaning = column.meaning[0].lower() + column.meaning[1:-1]
                raise InputError(f"expected a column {column.name!r} ({meaning}), received rows without it")
            values.append(pl.Series(column.name, [filler], column.type).new_from_index(0, len(table)))
            continue
        series = table[column.name]
        if series.dtype != column.type:
            series = _cast(series, column, trajectories)
        if series.has_nulls() and not (column.null or column.derived):
            if filler is None:
                indices = series.is_null().arg_true().to_list()
                raise _row_error(column, indices, series, trajectories, "expected a value in every row")
            series = series.fill_null(pl.lit(filler, column.type))
        values.append(series)
    return pl.DataFrame(values)


def check_defaults(defaults: Mapping[str, object], depth: int) -> None:
    """Check the default values of columns.

    Raises:
        InputError: A name is unknown, or a value does not fit its column.
    """
    _table([defaults], {column.name: column for column in columns(depth)})


def _table(rows: Rows, known: Mapping[str, Column]) -> pl.DataFrame:
    """Return the rows as a table of known columns. Those of mappings have the types of the schema."""
    if isinstance(rows, pl.DataFrame) or hasattr(rows, "__arrow_c_stream__"):
        try:
            table = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(rows)
        except _REFUSALS as error:
            raise InputError(
                f"expected a table of steps, received {type(rows).__name__}: {first_line(error)}"
            ) from error
        _check_names(table.columns, known)
        return table
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
    """Create a column from values. The trajectories of the rows are for errors.

    Raises:
        RowError: Values do not fit the column; the error lists all of them by row.
        InputError: Each value fits, but together they do not form a column.
    """
    try:
        try:
            return _strict(column, values)
        except UnicodeEncodeError:
            return _strict(column, [_cleaned(value) for value in values])
    except _REFUSALS as error:
        indices = [index for index, value in enumerate(values) if not _fits(column, value)]
        if not indices:
            raise InputError(
                f"column {column.name}: expected {column.type}, received values of several types"
            ) from error
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
        WrongRow(
            index,
            None if trajectories is None else trajectories[index],
            None,
            column.name,
            f"row {index}, column {column.name}: {text}, received {preview(values[index])}",
        )
        for index in indices
    )
