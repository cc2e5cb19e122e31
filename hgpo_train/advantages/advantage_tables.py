"""Advantage tables: the output of `hgpo advantages`, written next to a run, and functions to read and join it.

An advantage table is one Parquet file with the rows of the run, in the same order. It contains the columns that
identify a row, then one column per estimator (and its optional columns). The metadata contain the parameters of each
estimator, the run's fingerprint and the package's version.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from hgpo_datasets import manifest
from hgpo_datasets.reader import step_files
from hgpo_datasets.run_paths import run_at, run_of_file
from hgpo_envs.atomic import making_folder, new_file
from hgpo_envs.errors import InputError
from hgpo_envs.plugins import installed_version
from hgpo_train.advantages.chunks import ROWS, chunks
from hgpo_train.advantages.input_columns import batch_keys, row_keys
from hgpo_train.advantages.registry import EstimatorSpec, columns_read, compute_many
from hgpo_train.advantages.required_columns import check_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

    Returns:
        The number of rows.

    Raises:
        InputError: The table lacks columns, has no rows, or has rows that an estimator refuses.
    """
    import pyarrow.parquet as pq

    added = [column for spec in specs for column in spec.added]
    steps = steps.drop(added, strict=False)  # advantages that the table has already are no input
    schema = steps.collect_schema()
    check_columns(schema, specs)
    names = row_keys(schema)
    columns = list(dict.fromkeys([*batch_keys(schema), *names, *columns_read(schema, specs)]))
    whole = "batch" if any(spec.estimator.scope == "batch" for spec in specs) else "group"
    metadata = {METADATA: _metadata(specs, fingerprint)}
    rows, writer = 0, None
    with making_folder(out.absolute().parent), new_file(out) as file, ExitStack() as opened:
        for chunk in chunks(steps, columns, chunk_rows, whole=whole):
            table = compute_many(chunk, specs).select(*names, *added).collect()
            if table.height != chunk.height:
                raise InputError(
                    f"expected estimators to return all {chunk.height} rows, received {table.height}; do not drop rows"
                )
            # oldest: pyarrow writes no categories of string views
            content = table.to_arrow(compat_level=pl.CompatLevel.oldest())
            if writer is None:  # pyarrow's, because Polars cannot append to a Parquet file
                schema = content.schema.with_metadata(metadata)
                writer = opened.enter_context(pq.ParquetWriter(file, schema, compression="zstd"))
            writer.write_table(content, ROW_GROUP_ROWS)
            rows += chunk.height
            progress(chunk.height)
        if not rows:
            raise InputError("the step table has no rows")
    return rows


def refuse_own_input(source: Path, out: Path) -> None:
    """Raise an InputError if writing `out` would replace a file of `source`, or create a file in its folder."""
    target = out.resolve()
    folders = [source, *filter(None, [run_at(source)])] if source.is_dir() else []
    inside = any(target.is_relative_to(folder.resolve()) for folder in folders)
    # other programs can read the folder of a run's shards only if it contains nothing else
    inside = inside or any(run_of_file(place) is not None for place in (target, *target.parents))
    if inside or (out.exists() and any(out.samefile(file) for file in step_files(source))):
        raise InputError(f"expected an output file outside of the input {source}, received {out}; change --out")
    if out.is_dir():
        raise InputError(f"expected an output file, received the folder {out}; add a file name to --out")


def _metadata(specs: Sequence[EstimatorSpec], fingerprint: str) -> str:
    columns = {spec.column: {"estimator": spec.estimator.name, "parameters": asdict(spec.parameters)} for spec in specs}
    version = installed_version("hgpo") or ""
    return orjson.dumps({"run_fingerprint": fingerprint, "hgpo_version": version, "columns": columns}).decode()


def read_metadata(path: Path) -> dict[str, Any]:
    """Return an advantage table's metadata.

    The keys are `columns` (the estimator and parameters of each column), `run_fingerprint` and `hgpo_version`.

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
    each = [_sha256(_size_and_footer(Path(file))) for file in files]
    return each[0] if len(each) == 1 else _sha256("".join(each).encode())


def _size_and_footer(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 8, 0))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(size - 8 - length, 0))
        return str(size).encode() + file.read()


def _sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
