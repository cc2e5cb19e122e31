"""Runs as Delta Lake tables, which Spark, Trino, DuckDB, Polars and other engines read (extra `interchange`).

A table can contain many runs; it is partitioned by the column `run`. The column `shard` is added, the file of a row.
Each commit appends some shards and records how many of the run's shards the table has (an application transaction of
the Delta protocol), so that exporting a run again appends only its new shards, and a killed export continues.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import manifest
from hgpo_datasets.partitions import borders
from hgpo_datasets.reader import StepFile, scan_files, source_files
from hgpo_datasets.remote import uses_http
from hgpo_datasets.shards import first_line
from hgpo_datasets.sources import STEPS, single_run
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

COMMIT_ROWS: Final = 250_000
"""Largest number of rows of a commit; larger if a shard is larger."""
SHARD: Final = "shard"
"""The column that is added: the name of the row's file in the run."""


@dataclass(frozen=True)
class DeltaReport:
    """What an export did.

    Attributes:
        version: The table's version afterwards.
        shards: Number of shards that were appended.
        rows: Their number of rows.
    """

    version: int
    shards: int
    rows: int


def to_delta(
    run: str | os.PathLike[str],
    table: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    commit_rows: int = COMMIT_ROWS,
    progress: Callable[[int], object] = lambda _: None,
) -> DeltaReport:
    """Append those shards of a run to a Delta Lake table that the table does not have.

    Readers see the table before or after a commit. Rows of a shard that the run has replaced (retried rollouts) are
    removed in a commit before that which adds the new ones.

    Args:
        run: The folder of a run.
        table: The folder of the table, or its URL (`s3://`, `gs://`, `az://` …); created if it does not exist.
        storage_options: Options of the object store, as in `deltalake.write_deltalake`.
        commit_rows: Largest number of rows of a commit; larger if a shard is larger.
        progress: Called with the number of rows of each commit.

    Raises:
        InputError: The run has no rows or is damaged, the table has another run of this name, or it cannot be written.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

    folder = single_run(run)
    if folder is None:
        raise InputError(f"{run}: expected the folder of one run; export several runs one after the other")
    files = source_files(folder, {})
    listed = manifest.current(folder, folder / STEPS)
    assert listed.header is not None  # `source_files` has read it
    app = f"hgpo/{listed.header.run}/{manifest.encode_line(listed.header, '')[1]}"
    place, given = os.fspath(table), dict(storage_options or {})
    options = given | ({"allow_http": "true"} if "://" in place and uses_http(given) else {}) or None
    with _errors(place):
        known = DeltaTable.is_deltatable(place, options)
        there = DeltaTable(place, storage_options=options) if known else None
        done = there.transaction_version(app) if there is not None else None
        if there is not None:
            _check_other_runs(there, listed.header.run, known=done is not None)
            _remove_replaced(there, listed, app)
        rows = appended = 0
        files = [file for file in files if _number(file) >= (done or 0)]
        sizes = [file.shard.rows for file in files if file.shard is not None]
        for start, end in pairwise(borders(sizes, [set()] * len(files), commit_rows)) if files else ():
            some = files[start:end]
            steps = _steps(some)
            write_deltalake(
                place,
                steps.to_arrow(compat_level=pl.CompatLevel.oldest()),
                mode="append",
                partition_by=["run"],
                schema_mode="merge",  # runs of other depths have other hashes
                storage_options=options,
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=CommitProperties(app_transactions=[Transaction(app, _number(some[-1]) + 1)]),
            )
            rows, appended = rows + steps.height, appended + len(some)
            progress(steps.height)
        return DeltaReport(DeltaTable(place, storage_options=options).version(), appended, rows)


def _number(file: StepFile) -> int:
    """Return the place of a shard among all that the run ever committed, which is in its name."""
    assert file.shard is not None
    return int(file.shard.file.removeprefix("steps-").partition(".")[0])


def _steps(files: Sequence[StepFile]) -> pl.DataFrame:
    each = [
        scan_files([file], None, {}).with_columns(pl.lit(file.shard.file).alias(SHARD))
        for file in files
        if file.shard is not None
    ]
    return pl.concat(each).collect()


def _check_other_runs(table: Any, run: str, *, known: bool) -> None:  # noqa: ANN401 (a DeltaTable)
    columns = [field.name for field in table.schema().fields]
    if SHARD not in columns or "run" not in columns:
        raise InputError(f"{table.table_uri}: expected a table of `hgpo data export delta`; choose another table")
    if not known and any(found["run"] == run for found in table.partitions()):
        raise InputError(
            f"{table.table_uri} has the rows of another run named {run!r}; choose another table, or collect with "
            "another name"
        )


def _remove_replaced(table: Any, listed: manifest.Manifest, app: str) -> None:  # noqa: ANN401 (a DeltaTable)
    """Remove the rows of shards that the run has replaced."""
    from deltalake import CommitProperties, Transaction

    assert listed.header is not None
    name, count = f"{app}/replaced", len(listed.replaced)
    if count > (table.transaction_version(name) or 0):
        run = listed.header.run.replace("'", "''")
        files = ", ".join(f"'{file}'" for file in listed.replaced)
        table.delete(
            f"run = '{run}' AND {SHARD} IN ({files})",
            commit_properties=CommitProperties(app_transactions=[Transaction(name, count)]),
        )


@contextmanager
def _errors(table: str) -> Iterator[None]:
    """Convert the errors of the table and of its store to one line."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except InputError:
        raise
    except (DeltaError, OSError, ValueError) as error:
        raise InputError(f"{table}: {first_line(error)}") from error
