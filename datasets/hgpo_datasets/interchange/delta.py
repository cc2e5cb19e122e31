"""Runs as Delta Lake tables, which Spark, Trino, DuckDB, Polars and other engines read (extra `interchange`).

A table can contain many runs; it is partitioned by the column `run`. The column `shard` is added, the file of a row.
Each commit appends a shard and records how many of the run's shards the table has (an application transaction of the
Delta protocol), so that exporting a run again appends only its new shards, and a killed export continues. A commit is
refused if another export of the run has committed since this one read the table.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from hgpo_datasets import manifest
from hgpo_datasets.reader import scan_files, source_files
from hgpo_datasets.remote import uses_http
from hgpo_datasets.shards import first_line
from hgpo_datasets.sources import STEPS, parts_of
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_datasets.manifest import Header
    from hgpo_datasets.reader import StepFile

SHARD: Final = "shard"
"""The column that is added: the name of the row's file in the run."""


class DeltaReport(NamedTuple):
    """The table's version after an export, and the numbers of shards and rows that it appended."""

    version: int
    shards: int
    rows: int


def to_delta(run: str | os.PathLike[str], table: str | os.PathLike[str]) -> DeltaReport:
    """Append those shards of a run to a Delta Lake table that the table does not have.

    Readers see the table before or after a commit. Rows of a shard that the run has replaced (retried rollouts) are
    removed in a commit before that which adds the new ones.

    Args:
        run: The folder of a run.
        table: The folder of the table, or its URL (`s3://`, `gs://`, `az://` …); created if it does not exist. The
            options of object stores are environment variables.

    Raises:
        InputError: The run has no rows or is damaged, the table has another run of this name, or it cannot be written.
    """
    from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake

    (part, *others) = parts_of([run])
    if others or part.kind != "run":
        raise InputError(f"{run}: expected the folder of one run; export several runs one after the other")
    folder = Path(part.path)
    files = source_files(folder, {})
    listed = manifest.current(folder, folder / STEPS)
    assert listed.header is not None  # `source_files` has read it
    app = f"hgpo/{listed.header.run}/{manifest.encode_line(listed.header, '')[1]}"
    url = os.fspath(table)
    if "://" not in url and set(url) & set("[]|^%\\"):  # the library makes a URL of the path and panics
        raise InputError(f"expected the path of a Delta table without the characters []|^%\\, received {url}")
    options = {"allow_http": "true"} if "://" in url and uses_http() else None
    rows = appended = 0
    with _errors(url):
        existing = _table(url, files[0], options)
        done = existing.transaction_version(app) or 0
        _check_runs(existing, listed.header, known=done > 0)
        _remove_replaced(existing, listed.header, listed.replaced, app)
        for file in files:
            number = int(Path(file.path).name.removeprefix("steps-").partition(".")[0])  # among all ever committed
            if number < done:
                continue
            steps = _rows(file)
            if (existing.transaction_version(app) or 0) != done:  # the last commit has also read those of others
                raise InputError(f"{url}: another export of the run {listed.header.run!r} is writing it; wait for it")
            write_deltalake(
                existing,
                steps.to_arrow(compat_level=pl.CompatLevel.oldest()),
                mode="append",
                schema_mode="merge",  # runs of other depths have other hashes
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=CommitProperties(app_transactions=[Transaction(app, number + 1)]),
            )
            done, rows, appended = number + 1, rows + steps.height, appended + 1
        return DeltaReport(existing.version(), appended, rows)


def _rows(file: StepFile) -> pl.DataFrame:
    return scan_files([file], None, {}).with_columns(pl.lit(Path(file.path).name).alias(SHARD)).collect()


def _table(url: str, file: StepFile, options: dict[str, str] | None) -> Any:  # noqa: ANN401 (a DeltaTable)
    """Open a table, or create an empty one: a commit can only be refused for another after a version that both read."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if not DeltaTable.is_deltatable(url, options):
        schema = _rows(file).clear().to_arrow(compat_level=pl.CompatLevel.oldest()).schema
        try:
            return DeltaTable.create(url, schema, mode="error", partition_by=["run"], storage_options=options)
        except DeltaError:
            if not DeltaTable.is_deltatable(url, options):
                raise
    return DeltaTable(url, storage_options=options)


def _check_runs(table: Any, header: Header, *, known: bool) -> None:  # noqa: ANN401 (a DeltaTable)
    if not {SHARD, "run"} <= {field.name for field in table.schema().fields}:
        raise InputError(f"{table.table_uri}: expected a table of `hgpo data export delta`; choose another table")
    if not known and any(partition["run"] == header.run for partition in table.partitions()):
        raise InputError(
            f"{table.table_uri} has the rows of another run named {header.run!r}; choose another table or run name"
        )


def _remove_replaced(table: Any, header: Header, replaced: list[str], app: str) -> None:  # noqa: ANN401 (a DeltaTable)
    """Remove the rows of shards that the run has replaced."""
    from deltalake import CommitProperties, Transaction

    transaction = Transaction(f"{app}/replaced", len(replaced))
    if len(replaced) > (table.transaction_version(transaction.app_id) or 0):
        run, files = header.run.replace("'", "''"), ", ".join(f"'{file}'" for file in replaced)
        properties = CommitProperties(app_transactions=[transaction])
        table.delete(f"run = '{run}' AND {SHARD} IN ({files})", commit_properties=properties)


@contextmanager
def _errors(table: str) -> Iterator[None]:
    """Convert the errors of the table and of its store to one line."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except InputError:
        raise
    except CommitFailedError as error:
        met = first_line(error)
        raise InputError(f"{table}: another export has committed ({met}); run the command again") from error
    except (DeltaError, OSError, ValueError) as error:
        raise InputError(f"{table}: {first_line(error)}") from error
