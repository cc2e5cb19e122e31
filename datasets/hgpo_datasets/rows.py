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

_BYTES: Final = {
    TEXT: pl.Binary(),
    TEXTS: pl.List(pl.Binary()),
}
"""The types of texts, and those of their bytes. Arrow's texts can be any bytes, and Polars does not check them."""

_WHOLE: Final = 2**53
"""A float of this magnitude or more can stand for several integers."""


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
        first: The trajectory of the first invalid row.
        trajectories: The error of the first invalid row of each trajectory. Rules are checked in stages, and the error
            lists the rows that fail the first failing stage; other rows may fail later stages.
    """

    def __init__(self, messages: Iterable[tuple[object, str]]) -> None:
        pairs = list(messages)
        (self.first, message), *others = pairs
        self.trajectories: dict[str, str] = {
            trajectory: text
            for trajectory, text in reversed(pairs)
            if isinstance(trajectory, str)
        }
        super().__init__(
            f"{message}{f' (and {len(others)} more rows)' if others else ''}"
        )


def refuse(frame: pl.DataFrame, faults: Iterable[Fault]) -> None:
    """Raise RowError if rows violate a rule. The frame has every column; a null in a mask is no violation."""
    messages = [
        (
            row["trajectory"],
            f"{row_name(row)}: {rule}, received {column} = {preview(row[column])}",
        )
        for column, rule, mask in faults
        if mask.any()
        for row in frame.filter(mask)
        .unique("trajectory", keep="first", maintain_order=True)
        .iter_rows(named=True)
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
    given = _by_column(rows)
    for name in given:
        if name not in known:
            raise InputError(unknown("step table column", name, known))
    lengths = {len(values) for values in given.values()}
    if len(lengths) > 1:
        raise InputError(f"expected columns of one length, received {sorted(lengths)}")

    # The names of trajectories come first: errors of other columns contain them.
    trajectories = given.get("trajectory")
    if isinstance(trajectories, pl.Series):
        trajectories = _cast(trajectories, known["trajectory"], None)
    found = []
    absent = []
    for column in known.values():
        filler = defaults.get(column.name, column.default)
        optional = column.null or column.derived
        if column.name not in given:
            if filler is None and not optional:
                meaning = column.meaning[0].lower() + column.meaning[1:-1]
                raise InputError(
                    f"expected a column {column.name!r} ({meaning}), received rows without it"
                )
            absent.append(pl.lit(filler, column.type).alias(column.name))
            continue
        values = given[column.name]
        convert = _cast if isinstance(values, pl.Series) else series_of
        series = convert(values, column, trajectories)
        if series.has_nulls() and not optional:
            if filler is None:
                indices = series.is_null().arg_true().to_list()
                raise _row_error(
                    column,
                    indices,
                    series,
                    trajectories,
                    "expected a value in every row",
                )
            series = series.fill_null(pl.lit(filler, column.type))
        found.append(series)
    return pl.DataFrame(found).with_columns(absent).select(list(known))


def _by_column(rows: Rows) -> Mapping[str, Any]:
    """Return the values of each column: a series of a table with Arrow's types, or a sequence of Python's values."""
    if hasattr(rows, "__arrow_c_stream__"):  # Polars, pyarrow, pandas
        try:
            return {series.name: series for series in pl.DataFrame(rows)}
        except _REFUSALS as error:
            raise InputError(
                f"expected a table of steps, received {preview(rows)}: {first_line(error)}"
            ) from error
    if isinstance(rows, Mapping):
        return rows
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise InputError(
            f"expected rows (mappings) or a table, received {type(rows).__name__}"
        )
    mappings = list(rows)
    for row in mappings:
        if not isinstance(row, Mapping):
            raise InputError(
                f"expected rows that are mappings, received {type(row).__name__}"
            )
    names = dict.fromkeys(itertools.chain.from_iterable(mappings))
    return {name: [row.get(name) for row in mappings] for name in names}


def series_of(
    values: Iterable[Any],
    column: Column,
    trajectories: Sequence[Any] | pl.Series | None = None,
) -> pl.Series:
    """Create a column from Python's values. The trajectories of the rows are for errors."""
    values = list(values)
    try:
        try:
            return _strict(column, values)
        except UnicodeEncodeError:  # lone surrogates
            return _strict(column, [_cleaned(value) for value in values])
    except _REFUSALS as error:
        indices = [
            index for index, value in enumerate(values) if not _fits(column, value)
        ]
        if not indices:  # each value fits, but together they do not form a column
            message = f"column {column.name}: expected {column.type}, received values of several types"
            raise InputError(message) from error
        raise _row_error(
            column, indices, values, trajectories, f"expected {column.type}"
        ) from error


def _strict(column: Column, values: Sequence[Any]) -> pl.Series:
    """Create a column, or raise one of `_REFUSALS`."""
    kind: Any = column.type
    items = values
    if is_list := isinstance(kind, pl.List):
        # Rollouts of a task have the same lists of actions again and again: each is converted once.
        distinct = {id(value): value for value in values}
        if 2 * len(distinct) < len(values):
            places = {each: place for place, each in enumerate(distinct)}
            series = _strict(column, list(distinct.values()))
            return series.gather([places[id(value)] for value in values])
        # Lists become one flat column and its offsets, which is seven times faster than list by list. pyarrow can also
        # create lists directly, but then it accepts 0.5 as the integer 0.
        kind = kind.inner
        if any(
            issubclass(cls, str | bytes | Mapping) for cls in set(map(type, values))
        ):
            raise TypeError(column.name)
        items = [item for value in values if value is not None for item in value]
    # which Polars makes 0 and 1
    if kind.is_integer() and bool in set(map(type, items)):
        raise TypeError("bool")
    flat = pl.Series(column.name, items, dtype=kind, strict=True)
    if not is_list:
        return flat

    import pyarrow as pa

    lengths = [-1 if value is None else len(value) for value in values]
    ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    if len(items) != ends[-1]:
        # a container whose len() differs from its number of items
        raise ValueError(column.name)
    # Passed as Polars series, because pyarrow imports pandas to inspect arrays of other types.
    parts = (
        pl.Series(np.append(0, ends)),
        flat,
        pl.Series(lengths, dtype=pl.Int64) < 0,
    )
    offsets, content, nulls = (
        part.to_arrow(compat_level=pl.CompatLevel.newest()) for part in parts
    )
    return pl.Series(
        column.name,
        pa.LargeListArray.from_arrays(offsets, content, mask=nulls),
        dtype=column.type,
    )


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


def _cast(
    series: pl.Series, column: Column, trajectories: pl.Series | None
) -> pl.Series:
    """Return a column of a table with the type of the schema. No value changes, but for the precision of floats."""
    wanted = column.type
    if series.dtype == wanted and wanted not in _BYTES:
        return series
    # 1. What pandas does to columns with missing values.
    if (
        series.dtype.is_float()
        and not wanted.is_float()
        and (column.null or column.derived)
    ):
        series = series.fill_nan(None)  # it makes floats of integers with nulls
        # and of the hashes of contexts, which are computed again
        if "_hash_" in column.name:
            series = series.clear(len(series))
    # an empty column has no type, and it makes texts of it
    if series.null_count() == len(series):
        return pl.Series(column.name, [None], column.type).new_from_index(
            0, len(series)
        )
    # 2. The cast, with a mask of the values that it would change.
    wrong = series.is_not_null()
    try:
        if _alike(series.dtype, wanted):
            if wanted in _BYTES:
                # from bytes, Polars checks each text
                return series.cast(wanted).cast(_BYTES[wanted]).cast(wanted)
            fitting = series.cast(wanted, strict=False)
            wrong = _changed(series, fitting)
            if not wrong.any():
                return fitting
    except _REFUSALS:  # a text is no UTF-8
        series = (
            series
            if series.dtype == _BYTES[wanted]
            else series.cast(wanted).cast(_BYTES[wanted])
        )
        wrong = pl.Series([not _is_utf8(value) for value in series])
    raise _row_error(
        column,
        wrong.arg_true().to_list(),
        series,
        trajectories,
        f"expected {wanted}",
    )


def _alike(found: pl.DataType, wanted: pl.DataType) -> bool:
    """Return whether values of a type can be values of another one. Each value is checked besides."""
    if isinstance(wanted, pl.List):
        if not isinstance(found, pl.List):
            return False
        found = found.inner  # type: ignore[assignment]
        wanted = wanted.inner  # type: ignore[assignment]
        return _alike(found, wanted) and not (found.is_float() and wanted.is_integer())
    if found == pl.Null:
        return True
    if wanted == TEXT:
        return isinstance(found, pl.String | pl.Binary | pl.Categorical | pl.Enum)
    return found == wanted or (
        wanted.is_numeric() and (found.is_integer() or found.is_float())
    )


def _changed(series: pl.Series, fitting: pl.Series) -> pl.Series:
    """Return the mask of values that a cast to numbers has changed."""
    inner = [
        dtype.inner if isinstance(dtype, pl.List) else dtype
        for dtype in (series.dtype, fitting.dtype)
    ]
    if all(dtype.is_float() for dtype in inner):
        return pl.repeat(
            value=False,
            n=len(series),
            eager=True,
        )
    changed = fitting.cast(series.dtype, strict=False).ne_missing(series)
    return changed | (series.abs() >= _WHOLE) if series.dtype.is_float() else changed


def _is_utf8(value: bytes | pl.Series | None) -> bool:
    """Return whether bytes, or all of a list of them, are UTF-8."""
    items = value if isinstance(value, pl.Series) else [value]
    try:
        for item in items:
            (item or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _row_error(
    column: Column,
    indices: Sequence[int],
    values: Sequence[Any] | pl.Series,
    trajectories: Sequence[Any] | pl.Series | None,
    text: str,
) -> RowError:
    """Return an error for the rows with these indices."""
    messages = []
    for index in indices:
        value = values[index]
        shown = preview(value.to_list() if isinstance(value, pl.Series) else value)
        name = None if trajectories is None else trajectories[index]
        messages.append(
            (name, f"row {index}, column {column.name}: {text}, received {shown}")
        )
    return RowError(messages)
