"""Advantage tables: the output of `hgpo advantages`, written next to a run, and functions to read and join it.

An advantage table is one Parquet file with the rows of the run, in the same order. It contains the columns that
identify a row, then one column per estimator (and its optional columns). The metadata contain the parameters of each
estimator, the run's fingerprint and the package's version.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

import orjson
import polars as pl

from hgpo_datasets import manifest
from hgpo_datasets.partitions import combined, file_fingerprint
from hgpo_datasets.reader import StepFile, step_files
from hgpo_datasets.sources import run_at, run_of_file
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import making_folder, new_file
from hgpo_envs.plugins import installed_version
from hgpo_train.advantages.chunks import ROWS, chunks
from hgpo_train.advantages.input_columns import batch_keys, row_keys
from hgpo_train.advantages.registry import EstimatorSpec, columns_read, compute_many
from hgpo_train.advantages.required_columns import check_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

METADATA: Final = "hgpo.advantages"
ROW_GROUP_ROWS: Final = 50_000
KEY: Final = ("run", "trajectory", "step")
"""The columns that identify a row. Missing columns are ignored."""


def write_advantages(
    steps: pl.LazyFrame,
    specs: Sequence[EstimatorSpec],
    out: Path,
    *,
    fingerprint: str = "",
    chunk_rows: int = ROWS,
    progress: Callable[[int], object] = lambda _: None,
    scratch_in: Path | None = None,
) -> int:
    """Compute several estimators in one pass over chunks of complete groups, and write one Parquet file.

    The write is atomic: an existing file is replaced when the new one is complete.

    Args:
        steps: The step table.
        specs: The estimators and the names of their columns.
        out: The path of the file.
        fingerprint: The run's fingerprint for the metadata; see `fingerprint`.
        chunk_rows: The approximate number of rows in memory.
        progress: Called with the number of rows of each finished chunk.
        scratch_in: The folder of the unfinished file; that of the file by default.

    Returns:
        The number of rows.

    Raises:
        InputError: The table lacks columns, has no rows, or has rows that an estimator refuses.
    """
    added = [column for spec in specs for column in spec.added]
    steps = steps.drop(added, strict=False)  # advantages that the table has already are no input
    schema = steps.collect_schema()
    check_columns(schema, specs)
    names = row_keys(schema)
    columns = list(dict.fromkeys([*batch_keys(schema), *names, *columns_read(schema, specs)]))
    with writing(out, metadata_of(specs, fingerprint), scratch_in=scratch_in) as table:
        for chunk in chunks(steps, columns, chunk_rows, whole=scope(specs)):
            found = compute_many(chunk, specs).select(*names, *added).collect()
            if found.height != chunk.height:
                raise InputError(
                    f"expected estimators to return all {chunk.height} rows, received {found.height}; do not drop rows"
                )
            # oldest: pyarrow writes no categories of string views
            table.write(found.to_arrow(compat_level=pl.CompatLevel.oldest()))
            progress(chunk.height)
        if not table.rows:
            raise InputError("the step table has no rows")
    return table.rows


def scope(specs: Sequence[EstimatorSpec]) -> str:
    """Return what must not be split between chunks: a ``group`` of rollouts or a ``batch``; see `chunks`."""
    return "batch" if any(spec.estimator.scope == "batch" for spec in specs) else "group"


class TableWriter:
    """Write the rows of an advantage table in row groups of `ROW_GROUP_ROWS`, however they are divided when given.

    Args:
        file: The file to write.
        metadata: The table's metadata; see `metadata_of`.
    """

    def __init__(self, file: IO[bytes], metadata: str) -> None:
        self.rows = 0
        self._file = file
        self._metadata = metadata
        self._writer: Any = None  # pyarrow's, because Polars cannot append to a Parquet file
        self._rest: list[pa.Table] = []

    def write(self, table: pa.Table) -> None:
        """Add rows. All tables have the same columns."""
        import pyarrow.parquet as pq

        if self._writer is None:
            schema = table.schema.with_metadata({METADATA: self._metadata})
            self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")
        waiting = sum(rest.num_rows for rest in self._rest) + table.num_rows
        complete = waiting - waiting % ROW_GROUP_ROWS
        self._rest.append(table)
        self.rows += table.num_rows
        if complete:
            rest = self._written(complete)
            self._rest = [rest] if rest.num_rows else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Write the remaining rows and the footer."""
        if self._rest and error is None:
            self._written(ROW_GROUP_ROWS)
        if self._writer is not None:
            self._writer.close()

    def _written(self, rows: int) -> pa.Table:
        """Write the first of the waiting rows and return the others."""
        import pyarrow as pa

        table = pa.concat_tables(self._rest).unify_dictionaries()
        self._writer.write_table(table.slice(0, rows), ROW_GROUP_ROWS)
        return table.slice(rows)


@contextmanager
def writing(out: Path, metadata: str, *, scratch_in: Path | None = None) -> Iterator[TableWriter]:
    """Yield a writer of an advantage table, which becomes `out` if the block ends without an error.

    Args:
        out: The file. Missing folders are created.
        metadata: The table's metadata; see `metadata_of`.
        scratch_in: The folder of the unfinished file; that of the file by default.
    """
    with (
        making_folder(out.absolute().parent),
        new_file(out, scratch_in=scratch_in) as file,
        TableWriter(file, metadata) as table,
    ):
        yield table


def refuse_own_input(source: Path, out: Path, *, folder: bool = False) -> None:
    """Raise an InputError if writing `out` would replace a file of `source`, or create a file in its folder.

    Args:
        source: What is read.
        out: What is written.
        folder: Whether it is a folder and not a file.
    """
    target = out.resolve()
    folders = [source, *filter(None, [run_at(source)])] if source.is_dir() else []
    inside = any(target.is_relative_to(folder.resolve()) for folder in folders)
    # other programs can read the folder of a run's shards only if it contains nothing else
    inside = inside or any(run_of_file(place) is not None for place in (target, *target.parents))
    if inside or (out.exists() and any(out.samefile(file) for file in step_files(source))):
        raise InputError(f"expected an output file outside of the input {source}, received {out}; change --out")
    if out.is_dir() and not folder:
        raise InputError(f"expected an output file, received the folder {out}; add a file name to --out")


def metadata_of(specs: Sequence[EstimatorSpec], fingerprint: str) -> str:
    """Return the metadata of a table, as JSON; see `read_metadata`."""
    columns = {spec.column: _described(spec) for spec in specs}
    version = installed_version("hgpo") or ""
    return orjson.dumps({"run_fingerprint": fingerprint, "hgpo_version": version, "columns": columns}).decode()


def _described(spec: EstimatorSpec) -> dict[str, Any]:
    """Describe an estimator, with a digest of its module if this is not one of an installed version."""
    found = {"estimator": spec.estimator.name, "parameters": asdict(spec.parameters)}
    module, is_own, _ = spec.estimator.reference.partition(":")
    if not is_own or module.startswith("hgpo_train."):
        return found
    code = getattr(sys.modules.get(module), "__file__", None)
    return found | ({"code": _sha256(Path(code).read_bytes())} if code else {})


def read_metadata(path: Path) -> dict[str, Any]:
    """Return an advantage table's metadata.

    The keys are `columns` (the estimator and parameters of each column, and the `code`'s digest of an own estimator),
    `run_fingerprint` and `hgpo_version`.

    Raises:
        InputError: The file is not an advantage table.
    """
    metadata = pl.read_parquet_metadata(path)
    if METADATA not in metadata:
        raise InputError(f"{path}: expected an advantage table, received a file without the metadata {METADATA}")
    return dict(orjson.loads(metadata[METADATA]))


def join_advantages(steps: pl.LazyFrame, advantages: pl.LazyFrame) -> pl.LazyFrame:
    """Add the columns of an advantage table to its step table; rows keep their order."""
    shared = steps.collect_schema().names()
    added = advantages.collect_schema().names()
    keys = [key for key in KEY if key in shared and key in added]
    new = [name for name in added if name not in shared]
    return steps.join(advantages.select(*keys, *new), on=keys, how="left", maintain_order="left", nulls_equal=True)


def fingerprint(source: Path) -> str:
    """Return a fingerprint of a step table's content, as ``sha256:<digits>``.

    For a run, it is the SHA-256 of the manifest, which contains the SHA-256 of every shard. For a Parquet file, it is
    the SHA-256 of the file's size and footer, which contains the position and statistics of every column chunk. For
    several files, it is the SHA-256 of their fingerprints.

    Args:
        source: Runs or Parquet files, as in `scan_steps`.

    Raises:
        InputError: No file exists.
    """
    if (run := run_at(source)) is not None:
        return _sha256((run / manifest.NAME).read_bytes())
    files = step_files(source)
    if not files:
        raise InputError(f"no committed rows in {source}")
    return combined(file_fingerprint(StepFile(file)) for file in files)


def _sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
