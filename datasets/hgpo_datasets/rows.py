"""Rows as people give them → a Polars frame of the schema's columns, types and nulls."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_datasets.row_errors import RowError, WrongRow
from hgpo_datasets.schema import GROUP_KEY, TEXT, TEXTS, Column, columns
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable

Rows = Iterable[Mapping[str, Any]] | pl.DataFrame | Any
"""Steps to be written: mappings, a Polars frame, or anything with Arrow's C stream (a pyarrow or pandas table)."""

_REFUSALS: Final = (
    TypeError,
    ValueError,
    OverflowError,
    AttributeError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
"""What making a column of odd values raises."""


_KEYS: Final = {column.name: column for column in columns(0) if column.name in GROUP_KEY}


def frame(rows: Rows, depth: int, defaults: Mapping[str, object]) -> pl.DataFrame:
    """The rows as a frame that has every column of the schema, in its order; given derived columns are kept.

    Args:
        rows: The steps, in any order.
        depth: The deepest hash that the schema holds.
        defaults: Values for columns that the rows lack.

    Raises:
        RowError: A value is of another type than its column's, does not fit it, or is null where it never is.
        InputError: The rows are not rows, or a column is unknown or missing.
    """
    known = {column.name: column for column in columns(depth)}
    given = rows if isinstance(rows, pl.DataFrame) else _from_any(rows, known)
    _check_names(given.columns, known)
    trajectories = given["trajectory"] if "trajectory" in given.columns else None
    values = given.select(_value(given, column, defaults, trajectories) for column in known.values())
    wrong = [
        _wrong_row(row, trajectories, column.name, f"column {column.name} is never null; row {row} has none")
        for column in known.values()
        if not (column.null or column.derived) and values[column.name].null_count()
        for row in values[column.name].is_null().arg_true()
    ]
    if wrong:
        raise RowError(wrong)
    return values


def check_defaults(defaults: Mapping[str, object], depth: int) -> None:
    """Checks values for columns that rows may lack.

    Raises:
        InputError: A name is unknown, or a value does not fit its column.
    """
    known = {column.name: column for column in columns(depth)}
    _check_names(defaults, known)
    for name, value in defaults.items():
        _series(name, [value], known[name].type)


def key_value(name: str, value: object) -> Any:  # noqa: ANN401 (int or str, by the column)
    """A value of a group's name as its column will hold it: an int of 32 bits, or a text without lone surrogates.

    Raises:
        InputError: It does not fit the column, or is None.
    """
    column = _KEYS[name]
    if value is None:
        raise InputError(f"expected a value for {name!r} in every row; it is missing")
    as_it_is = value.isascii() if type(value) is str else type(value) is int and abs(value) < 1 << 31
    if as_it_is and isinstance(value, str) == (column.type == TEXT):
        return value
    return _series(name, [value], column.type)[0]


def _from_any(rows: Rows, known: Mapping[str, Column]) -> pl.DataFrame:
    if hasattr(rows, "__arrow_c_stream__"):
        try:
            return pl.DataFrame(rows)
        except _REFUSALS as error:
            raise InputError(f"expected a table of steps, got {type(rows).__name__}: {_line(error)}") from error
    listed = _listed(rows)
    names = dict.fromkeys(itertools.chain.from_iterable(listed))
    _check_names(names, known)
    made, wrong = [], []
    for name in names:
        try:
            made.append(_series(name, [row.get(name) for row in listed], known[name].type))
        except RowError as error:
            wrong += [one.of(listed[one.row].get("trajectory")) for one in error.wrong if one.row is not None]
    if wrong:
        raise RowError(wrong)
    return pl.DataFrame(made)


def _listed(rows: object) -> list[Mapping[str, Any]]:
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise InputError(f"expected rows (mappings) or a table, got {type(rows).__name__}")
    listed = list(rows)
    wrong = {kind for kind in set(map(type, listed)) if not issubclass(kind, Mapping)}
    if wrong:
        number, kind = next((number, type(row)) for number, row in enumerate(listed) if type(row) in wrong)
        raise InputError(f"expected rows that are mappings; row {number} is {kind.__name__}")
    return listed


def _check_names(names: Iterable[object], known: Mapping[str, Column]) -> None:
    for name in names:
        if name not in known:
            raise InputError(unknown("step table column", name, known))


def _series(name: str, values: list[Any], kind: pl.DataType) -> pl.Series:
    """A column of given values.

    Raises:
        RowError: Values do not fit the column; all of them are named, by their rows.
        InputError: They do not fit together.
    """
    make = _lists if isinstance(kind, pl.List) else _plain
    try:
        try:
            return make(name, values, kind)
        except UnicodeEncodeError:
            return make(name, [_cleaned(value) for value in values], kind)
    except _REFUSALS as error:
        wrong = [row for row, value in enumerate(values) if not _fits(value, make, kind)]
        if not wrong:
            raise InputError(f"column {name}: expected {kind}, got values of several types") from error
        raise RowError(
            WrongRow(row, None, None, name, f"column {name}: expected {kind}, got {_preview(values[row])}")
            for row in wrong
        ) from error


def _plain(name: str, values: list[Any], kind: pl.DataType) -> pl.Series:
    return pl.Series(name, values, dtype=kind, strict=True)


def _lists(name: str, values: list[Any], kind: pl.DataType) -> pl.Series:
    """A column of lists from one flat column: five times faster than list by list.

    pyarrow makes lists directly, but takes 0.5 for the integer 0.
    """
    import pyarrow as pa

    assert isinstance(kind, pl.List)
    if any(issubclass(kind, str | bytes | Mapping) for kind in set(map(type, values))):
        raise TypeError(name)
    lengths = [-1 if value is None else len(value) for value in values]
    flat = pl.Series(name, [item for value in values if value is not None for item in value], dtype=kind.inner)
    ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    if len(flat) != ends[-1]:
        raise ValueError(name)  # a container whose length is not the number of its items
    nulls = pl.Series(lengths, dtype=pl.Int64) < 0
    # from Polars, because pyarrow imports pandas to look at any other array
    parts = [
        part.to_arrow(compat_level=pl.CompatLevel.newest()) for part in (pl.Series(np.append(0, ends)), flat, nulls)
    ]
    return pl.Series(name, pa.LargeListArray.from_arrays(*parts[:2], mask=parts[2]), dtype=kind)


def _cleaned(value: object) -> object:
    """The value with texts as a table can hold them; anything else as it is."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list | tuple | np.ndarray):
        return [_cleaned(item) for item in value]
    return value


def _fits(value: object, make: Callable[[str, list[Any], pl.DataType], pl.Series], kind: pl.DataType) -> bool:
    try:
        make("value", [_cleaned(value)], kind)
    except _REFUSALS:
        return False
    return True


def _preview(value: object) -> str:
    """A value as a message shows it: short, and in one line whatever it is."""
    try:
        return f"{value!r:.80}".replace("\n", " ")
    except Exception:  # noqa: BLE001 (somebody's object may raise anything)
        return f"a {type(value).__name__}"


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _wrong_row(row: int, trajectories: pl.Series | None, column: str, message: str) -> WrongRow:
    return WrongRow(row, None if trajectories is None else trajectories[row], None, column, message)


def _value(
    given: pl.DataFrame, column: Column, defaults: Mapping[str, object], trajectories: pl.Series | None
) -> pl.Series | pl.Expr:
    filler = defaults.get(column.name, column.default)
    if column.name in given.columns:
        series = _typed(given[column.name], column, trajectories)
        wanting = series.null_count() and filler is not None and not column.null
        return series.fill_null(pl.lit(filler, column.type)) if wanting else series
    if filler is None and column.required:
        meaning = column.meaning[0].lower() + column.meaning[1:-1]
        raise InputError(f"expected a column {column.name!r} ({meaning}); it is missing")
    return pl.lit(filler, column.type).alias(column.name)


def _typed(series: pl.Series, column: Column, trajectories: pl.Series | None) -> pl.Series:
    if series.dtype == column.type:
        return series
    same_kind = (
        series.dtype == pl.Null
        or (series.dtype.is_integer() and column.type.is_numeric())
        or (series.dtype.is_float() and column.type.is_float())
        or (series.dtype in {pl.Categorical, pl.Enum} and column.type == TEXT)
        or (series.dtype == pl.List and column.type == pl.List and series.dtype != TEXTS)
    )
    if not same_kind:
        raise InputError(f"column {column.name}: expected {column.type}, got {series.dtype}")
    try:
        return series.cast(column.type, strict=True)
    except _REFUSALS as error:
        wrong = [row for row in range(len(series)) if not _casts(series.slice(row, 1), column.type)]
        line = f"column {column.name}: expected {column.type}, got values that do not fit it"
        if not wrong:
            raise InputError(line) from error
        raise RowError(
            _wrong_row(row, trajectories, column.name, f"{line}: {_preview(series[row])}") for row in wrong
        ) from error


def _casts(series: pl.Series, kind: pl.DataType) -> bool:
    try:
        series.cast(kind, strict=True)
    except _REFUSALS:
        return False
    return True
