"""Convert input rows to a Polars frame with the columns, types and null rules of the schema.

Errors list the rows that violate the schema, so that one invalid value affects only its own trajectory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_datasets.schema import TEXT, TEXTS, Column, columns
from hgpo_datasets.shards import first_line
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable

Rows = Iterable[Mapping[str, Any]] | Mapping[str, Sequence[Any]] | pl.DataFrame | Any
"""Input steps: rows as mappings, columns by name, a Polars frame, or an object with Arrow's C stream interface (pyarrow
or pandas tables)."""

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


def name_preview(name: object) -> str:
    """Return the description of a task, trajectory or group, whose names are longer than other values."""
    return preview(name, 200)


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

    def of(self, trajectory: object) -> WrongRow:
        """Return a copy with the trajectory set."""
        return replace(self, trajectory=trajectory)


class RowError(InputError):
    """An error for rows that violate the schema. The message describes the first of them.

    Attributes:
        wrong: The first invalid row of each trajectory. Rules are checked in stages, and the error lists the rows that
            fail the first failing stage; other rows may fail later stages.
    """

    def __init__(self, wrong: Iterable[WrongRow]) -> None:
        first: dict[object, WrongRow] = {}
        for one in wrong:
            first.setdefault(one.trajectory if isinstance(one.trajectory, str) else ("row", one.row), one)
        self.wrong = tuple(first.values())
        more = f" (and {len(self.wrong) - 1} more trajectories have invalid rows)" if len(self.wrong) > 1 else ""
        super().__init__(f"{self.wrong[0].message}{more}")

    @property
    def trajectories(self) -> frozenset[str]:
        """The trajectories with invalid rows, without rows that have no trajectory."""
        return frozenset(one.trajectory for one in self.wrong if isinstance(one.trajectory, str))


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
    given = rows if isinstance(rows, pl.DataFrame) else _from_any(rows, known)
    _check_names(given.columns, known)
    trajectories = given["trajectory"] if "trajectory" in given.columns else None
    values = given.select(_value(given, column, defaults, trajectories) for column in known.values())
    wrong = [
        _wrong_row(row, trajectories, column.name, f"column {column.name} is never null; row {row} is null")
        for column in known.values()
        if not (column.null or column.derived) and values[column.name].null_count()
        for row in values[column.name].is_null().arg_true()
    ]
    if wrong:
        raise RowError(wrong)
    return values


def check_defaults(defaults: Mapping[str, object], depth: int) -> None:
    """Check the default values of columns.

    Raises:
        InputError: A name is unknown, or a value does not fit its column.
    """
    known = {column.name: column for column in columns(depth)}
    _check_names(defaults, known)
    for name, value in defaults.items():
        _series(name, [value], known[name].type)


def _from_any(rows: Rows, known: Mapping[str, Column]) -> pl.DataFrame:
    if hasattr(rows, "__arrow_c_stream__"):
        try:
            return pl.DataFrame(rows)
        except _REFUSALS as error:
            raise InputError(
                f"expected a table of steps, received {type(rows).__name__}: {first_line(error)}"
            ) from error
    columns = rows if isinstance(rows, Mapping) else _columns(rows)
    _check_names(columns, known)
    names = columns.get("trajectory")
    made, wrong = [], []
    for name, values in columns.items():
        try:
            made.append(_series(name, list(values), known[name].type))
        except RowError as error:
            wrong += [one.of(names and names[one.row]) for one in error.wrong if one.row is not None]
    if wrong:
        raise RowError(wrong)
    if len(set(map(len, made))) > 1:
        raise InputError(f"expected columns of one length, received {sorted(set(map(len, made)))}")
    return pl.DataFrame(made)


def _columns(rows: object) -> dict[str, list[Any]]:
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise InputError(f"expected rows (mappings) or a table, received {type(rows).__name__}")
    listed = list(rows)
    wrong = {kind for kind in set(map(type, listed)) if not issubclass(kind, Mapping)}
    if wrong:
        number, kind = next((number, type(row)) for number, row in enumerate(listed) if type(row) in wrong)
        raise InputError(f"expected rows that are mappings, received {kind.__name__} as row {number}")
    names = dict.fromkeys(itertools.chain.from_iterable(listed))
    return {name: [row.get(name) for row in listed] for name in names}


def _check_names(names: Iterable[object], known: Mapping[str, Column]) -> None:
    for name in names:
        if name not in known:
            raise InputError(unknown("step table column", name, known))


def _series(name: str, values: list[Any], kind: pl.DataType) -> pl.Series:
    """Create a column from a list of values.

    Raises:
        RowError: Values do not fit the column; the error lists all of them by row.
        InputError: Each value fits, but together they do not form a column.
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
            raise InputError(f"column {name}: expected {kind}, received values of several types") from error
        raise RowError(
            WrongRow(row, None, None, name, f"column {name}: expected {kind}, received {preview(values[row])}")
            for row in wrong
        ) from error


def _plain(name: str, values: list[Any], kind: pl.DataType) -> pl.Series:
    return pl.Series(name, values, dtype=kind, strict=True)


def _lists(name: str, values: list[Any], kind: pl.DataType) -> pl.Series:
    """Create a column of lists from one flat column, which is five times faster than list by list.

    pyarrow can create the lists directly, but it accepts 0.5 as the integer 0.
    """
    import pyarrow as pa

    assert isinstance(kind, pl.List)
    if any(issubclass(kind, str | bytes | Mapping) for kind in set(map(type, values))):
        raise TypeError(name)
    lengths = [-1 if value is None else len(value) for value in values]
    flat = pl.Series(name, [item for value in values if value is not None for item in value], dtype=kind.inner)
    ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    if len(flat) != ends[-1]:
        raise ValueError(name)  # a container whose len() differs from its number of items
    nulls = pl.Series(lengths, dtype=pl.Int64) < 0
    # passed as Polars series, because pyarrow imports pandas to inspect arrays of other types
    parts = [
        part.to_arrow(compat_level=pl.CompatLevel.newest()) for part in (pl.Series(np.append(0, ends)), flat, nulls)
    ]
    return pl.Series(name, pa.LargeListArray.from_arrays(*parts[:2], mask=parts[2]), dtype=kind)


def _cleaned(value: object) -> object:
    """Return the value with texts made valid UTF-8, and other values unchanged."""
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
        raise InputError(f"expected a column {column.name!r} ({meaning}), received rows without it")
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
        raise InputError(f"column {column.name}: expected {column.type}, received {series.dtype}")
    try:
        return series.cast(column.type, strict=True)
    except _REFUSALS as error:
        wrong = [row for row in range(len(series)) if not _casts(series.slice(row, 1), column.type)]
        line = f"column {column.name}: expected {column.type}, received values that do not fit it"
        if not wrong:
            raise InputError(line) from error
        raise RowError(
            _wrong_row(row, trajectories, column.name, f"{line}: {preview(series[row])}") for row in wrong
        ) from error


def _casts(series: pl.Series, kind: pl.DataType) -> bool:
    try:
        series.cast(kind, strict=True)
    except _REFUSALS:
        return False
    return True
