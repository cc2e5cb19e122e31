"""Runs as Delta Lake tables, which Spark, Trino, DuckDB, Polars and other engines read (extra `interchange`).

A table can contain many runs; it is partitioned by the column `run`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from hgpo_datasets import manifest
from hgpo_datasets.reader import scan_steps
from hgpo_datasets.remote import uses_http
from hgpo_datasets.shards import first_line
from hgpo_datasets.sources import parts_of
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from deltalake import DeltaTable


class DeltaReport(NamedTuple):
    """The table's version after an export, and the number of rows of the run.

    Version 0 of a table that `to_delta` creates is empty; version 1 is the first export.
    """

    version: int
    rows: int


def to_delta(run: str | os.PathLike[str], table: str | os.PathLike[str]) -> DeltaReport:
    """Write the rows of a run to a Delta Lake table in one commit, instead of those of an earlier export.

    Args:
        run: The folder of a run.
        table: The folder of the table, or its URL (`s3://`, `gs://`, `az://` …); created if it does not exist. The
            options of object stores are environment variables.

    Raises:
        InputError: The run has no rows or is damaged, the table is a file or a folder of something else, it has
            another run of this name, or it cannot be written.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import DeltaError

    (part, *others) = parts_of([run])
    if others or part.kind != "run":
        raise InputError(
            f"{run}: expected the folder of one run; export several runs one after the other"
        )
    steps = scan_steps(run)
    header = manifest.read(Path(part.path)).header
    assert header is not None  # `scan_steps` has read it
    url = os.fspath(table)
    # the library makes a URL of the path and panics
    if "://" not in url and set(url) & set("[]|^%\\"):
        raise InputError(
            f"expected the path of a Delta table without the characters []|^%\\, received {url}"
        )
    options = {"allow_http": "true"} if "://" in url and uses_http() else None
    # Runs are distinguished by the check of their description: a name can be that of another run.
    written = Transaction(f"hgpo/{header.run}/{manifest.encode_line(header, '')[1]}", 1)
    name = header.run.replace("'", "''")
    try:
        if "://" not in url:
            _check_folder(Path(url))
        if not DeltaTable.is_deltatable(url, options):
            # Only a commit after a version that both have read is refused if another export commits first.
            empty = (
                steps.head(0).collect().to_arrow(compat_level=pl.CompatLevel.oldest())
            )
            DeltaTable.create(
                url,
                empty.schema,
                mode="ignore",
                partition_by=["run"],
                storage_options=options,
            )
        target = DeltaTable(url, storage_options=options)
        _check(target, header.run, written.app_id)
        steps.sink_delta(
            target,
            mode="overwrite",
            delta_write_options={
                "predicate": f"run = '{name}'",
                "schema_mode": "merge",  # runs of other depths have other hashes
                "commit_properties": CommitProperties(app_transactions=[written]),
            },
        )
        target.update_incremental()
    except (DeltaError, OSError, ValueError, pl.exceptions.PolarsError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{url}: {first_line(error)}") from error
    return DeltaReport(target.version(), steps.select(pl.len()).collect().item())


def _check_folder(folder: Path) -> None:
    """Refuse a path that is a file, or a folder with other content than a table."""
    if folder.is_dir():
        names = [path.name for path in folder.iterdir()]
        if names and "_delta_log" not in names:
            raise InputError(
                f"{folder}: expected a Delta table or an empty folder, received one with other files"
            )
    elif os.path.lexists(folder):
        raise InputError(
            f"{folder}: expected a folder, received a file; choose another path"
        )


def _check(table: DeltaTable, run: str, app: str) -> None:
    """Refuse a table of another program, and one with another run of this name."""
    if "run" not in table.metadata().partition_columns:
        raise InputError(
            f"{table.table_uri}: expected a table of `hgpo data export delta`; choose another table"
        )
    if table.transaction_version(app) is None and any(
        part["run"] == run for part in table.partitions()
    ):
        raise InputError(
            f"{table.table_uri} has the rows of another run named {run!r}; choose another table or run name"
        )
