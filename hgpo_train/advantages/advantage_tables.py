"""Advantage tables: what `hgpo advantages` puts beside a run, and how it is read back and joined.

One Parquet file: the columns that name a row, then one column an estimator (and its optional ones), rows in the
run's order. Its metadata holds every estimator's parameters, the run's fingerprint and the package's version.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from hgpo_datasets.reader import step_files
from hgpo_envs.atomic import making_folder, new_path, scratch_folder
from hgpo_envs.errors import InputError
from hgpo_train.advantages.chunks import ROWS, chunks
from hgpo_train.advantages.input_columns import batch_keys, row_keys
from hgpo_train.advantages.registry import EstimatorSpec, columns_read, compute_many

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

METADATA: Final = "hgpo.advantages"
ROW_GROUP_ROWS: Final = 50_000
KEY: Final = ("run", "trajectory", "step")
"""Those of these columns that are there name a row."""


def write_advantages(
    steps: pl.LazyFrame,
    specs: Sequence[EstimatorSpec],
    out: Path,
    *,
    fingerprint: str = "",
    chunk_rows: int = ROWS,
    progress: Callable[[int], object] = lambda _: None,
) -> int:
    """Computes several estimators in one pass, a chunk of whole groups at a time, into one Parquet file.

    The file is complete or absent under its name; an existing one is replaced when the new one is complete.

    Args:
        steps: The step table.
        specs: The estimators and the columns that they fill.
        out: The file.
        fingerprint: What the table was, kept in the metadata.
        chunk_rows: About how many rows are in memory at a time.
        progress: Called with the number of rows of each finished chunk.

    Returns:
        The number of rows.
    """
    schema = steps.collect_schema()
    names = row_keys(schema)
    columns = list(dict.fromkeys([*batch_keys(schema), *names, *columns_read(schema, specs)]))
    added = [column for spec in specs for column in spec.added]
    whole = "batch" if any(spec.estimator.scope == "batch" for spec in specs) else "group"
    metadata = {METADATA: _metadata(specs, fingerprint)}
    parts: list[Path] = []
    rows = 0
    with making_folder(out.absolute().parent), new_path(out) as content, scratch_folder(out) as making:
        for chunk in chunks(steps, columns, chunk_rows, whole=whole):
            table = compute_many(chunk, specs).select(*names, *added).collect()
            if table.height != chunk.height:
                raise InputError(f"an estimator must keep all rows, but of {chunk.height} rows it kept {table.height}")
            parts.append(making / f"{len(parts):06d}.parquet")
            table.write_parquet(parts[-1], row_group_size=ROW_GROUP_ROWS, metadata=metadata)
            rows += chunk.height
            progress(chunk.height)
        if not parts:
            raise InputError("the step table has no rows")
        if len(parts) > 1:  # Polars appends to no Parquet file: parts are strung together, a row group at a time
            pl.scan_parquet(parts, glob=False).sink_parquet(content, row_group_size=ROW_GROUP_ROWS, metadata=metadata)
        else:
            parts[0].rename(content)
    return rows


def refuse_own_input(source: Path, out: Path) -> None:
    """Raises an InputError if writing `out` would replace a file of `source`, or put one into its folder."""
    inside = source.is_dir() and out.resolve().is_relative_to(source.resolve())
    if inside or (out.exists() and any(out.samefile(file) for file in step_files(source))):
        raise InputError(f"expected an output file outside of what is read, got {out} of {source}; give another --out")
    if out.is_dir():
        raise InputError(f"expected an output file, got the folder {out}; give a file name with --out")


def _metadata(specs: Sequence[EstimatorSpec], fingerprint: str) -> str:
    columns = {spec.column: {"estimator": spec.estimator.name, "parameters": asdict(spec.parameters)} for spec in specs}
    version = importlib.metadata.version("hgpo") if _installed() else ""
    return orjson.dumps({"run_fingerprint": fingerprint, "hgpo_version": version, "columns": columns}).decode()


def _installed() -> bool:
    return any(True for _ in importlib.metadata.distributions(name="hgpo"))


def read_metadata(path: Path) -> dict[str, Any]:
    """An advantage table's `columns` (estimator and parameters of each), `run_fingerprint` and `hgpo_version`."""
    metadata = pl.read_parquet_metadata(path)
    if METADATA not in metadata:
        raise InputError(f"{path} is no advantage table: its metadata has no {METADATA}")
    return dict(orjson.loads(metadata[METADATA]))


def join_advantages(steps: pl.LazyFrame, advantages: pl.LazyFrame) -> pl.LazyFrame:
    """A step table with the columns of an advantage table; rows keep their order."""
    shared = steps.collect_schema().names()
    added = advantages.collect_schema().names()
    keys = [key for key in KEY if key in shared and key in added]
    new = [name for name in added if name not in shared]
    return steps.join(advantages.select(*keys, *new), on=keys, how="left", maintain_order="left", nulls_equal=True)


def fingerprint(source: Path) -> str:
    """What was read: SHA-256 of a run's manifest, of a Parquet file's size and footer, or of a pattern's files' ones.

    The manifest holds the SHA-256 of every shard, the footer every column chunk's place and statistics.

    Raises:
        InputError: There is nothing to read.
    """
    manifest = source / "manifest.jsonl"
    if manifest.exists():
        return _sha256(manifest.read_bytes())
    files = step_files(source)
    if not files:
        raise InputError(f"{source}: no such files")
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
