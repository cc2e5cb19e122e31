"""Step tables in any form: a Polars frame, a path or URL, a pandas or pyarrow table."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import polars as pl

from hgpo_envs.errors import InputError, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_datasets.partitions import Partition

    class ArrowStream(Protocol):
        """A table with Arrow's C stream interface, such as those of pandas, pyarrow and DuckDB."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            """Return a capsule with the stream."""
            ...

    Path: TypeAlias = str | os.PathLike[str]
    StepTable: TypeAlias = pl.LazyFrame | pl.DataFrame | Path | Sequence[Path] | ArrowStream


def step_table(steps: Any) -> pl.LazyFrame:  # noqa: ANN401 (`StepTable`, or anything else that is refused)
    """Return a step table as a LazyFrame.

    Args:
        steps: A Polars LazyFrame or DataFrame; the path, pattern or URL of a run or a Parquet file, or a list of them
            (`hgpo_datasets.scan_steps`); or a table of pandas, pyarrow or another library with Arrow's C stream
            interface.

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
    if hasattr(steps, "__arrow_c_stream__") and not isinstance(steps, pl.Series):
        return _from_arrow(steps)
    raise InputError(
        "expected a step table (a Polars LazyFrame or DataFrame, a path or URL, a pandas or pyarrow table), "
        f"received {type(steps).__name__} {one_line(repr(steps), 60)}"
    )


def table_parts(
    steps: Any,  # noqa: ANN401 (as `step_table`)
    rows: int,
    whole: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> list[Partition | pl.LazyFrame]:
    """Return a step table as parts with whole groups of rollouts, which can be computed separately.

    Args:
        steps: As for `step_table`. A path or URL is divided as by `hgpo_datasets.partitions`; a table is one part.
        rows: The largest number of rows of a part.
        whole: Columns whose equal values are not divided either.
        storage_options: Options of the object store.

    Raises:
        InputError: As for `step_table`.
    """
    if _is_path(steps):
        from hgpo_datasets.partitions import partitions

        return list(partitions(steps, rows, whole=whole, plain=True, storage_options=storage_options))
    return [step_table(steps)]


def scan_part(part: Partition | pl.LazyFrame) -> pl.LazyFrame:
    """Return the steps of a part."""
    return part if isinstance(part, pl.LazyFrame) else part.scan()


def _is_path(steps: object) -> bool:
    """Return whether this is a path, or a list of paths."""
    paths = steps if isinstance(steps, list | tuple) else [steps]
    return bool(paths) and all(isinstance(path, str | os.PathLike) for path in paths)


def _from_arrow(steps: Any) -> pl.LazyFrame:  # noqa: ANN401 (a table of any library)
    """Convert a table with Arrow's C stream interface; a pandas index is dropped."""
    try:
        table = pl.from_pandas(steps) if type(steps).__module__.startswith("pandas") else pl.DataFrame(steps)
    except Exception as error:
        line = one_line(error, 200)
        raise InputError(f"{type(steps).__name__} cannot be converted to a Polars DataFrame: {line}") from error
    if not isinstance(table, pl.DataFrame):
        raise InputError(f"expected a table, received {type(steps).__name__}")
    return table.lazy()
