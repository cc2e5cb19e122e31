"""Advantage tables of large runs: parts that processes compute separately, and their union.

A part is the advantage table of a partition (`hgpo_datasets.partitions`), ``part-000000.parquet`` and so on, in a
folder of its own. Its metadata contain the fingerprint of the partition's shards, the estimators' parameters and the
package's version. A part whose metadata are those that are wanted is finished: it is not computed again, so that an
interrupted command continues, and a run that has grown needs only its new parts.

The bytes of a part depend on the partition and the estimators alone, and not on the number of processes.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets.partitions import Partition, partitions
from hgpo_datasets.processes import in_processes
from hgpo_envs.atomic import LOCK, FolderLock, is_scratch, make_folder, remove_folder
from hgpo_envs.errors import InputError
from hgpo_train.advantages.advantage_tables import METADATA, metadata_of, scope, write_advantages, writing
from hgpo_train.advantages.chunks import ROWS, unseen_groups
from hgpo_train.advantages.input_columns import BATCH_KEYS, group_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from hgpo_datasets.sources import Source
    from hgpo_train.advantages.registry import EstimatorSpec

SUFFIX: Final = ".parts"
"""Suffix of the folder of parts of a table that is not finished."""


@dataclass(frozen=True)
class PartReport:
    """What `write_part` did.

    Attributes:
        rows: Number of rows of the part.
        computed: Whether it was computed; False if it was finished already.
    """

    rows: int
    computed: bool


def partitions_for(
    source: Source,
    specs: Sequence[EstimatorSpec],
    chunk_rows: int = ROWS,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Partition]:
    """Return the partitions of a source in which estimators can be computed separately.

    Args:
        source: As in `hgpo_datasets.scan_steps`; Parquet files of other programs, too.
        specs: The estimators.
        chunk_rows: The largest number of rows of a partition; larger if a shard or, for an estimator of whole batches,
            a batch is larger.
        storage_options: Options of the object store.

    Raises:
        InputError: As in `hgpo_datasets.scan_steps`, or `chunk_rows` is less than 1.
    """
    whole = BATCH_KEYS if scope(specs) == "batch" else ()
    return partitions(source, chunk_rows, whole=whole, plain=True, storage_options=storage_options)


def part_name(number: int) -> str:
    """Return the file name of a part.

    >>> part_name(3)
    'part-000003.parquet'
    """
    return f"part-{number:06d}.parquet"


def write_table(
    parts: Sequence[Partition],
    specs: Sequence[EstimatorSpec],
    out: Path,
    *,
    fingerprint: str = "",
    processes: int = 1,
    chunk_rows: int = ROWS,
    progress: Callable[[int], object] = lambda _: None,
) -> int:
    """Compute estimators in several processes and write one Parquet file. Continue what an interrupted call has begun.

    Finished parts are in the folder ``<out>.parts`` until the file is complete. A table of a single partition is
    written directly. The bytes of the file do not depend on `processes`.

    Args:
        parts: The partitions; see `partitions_for`.
        specs: The estimators and the names of their columns.
        out: The path of the file. It is replaced when the new one is complete.
        fingerprint: The run's fingerprint for the metadata; see `hgpo_train.advantages.advantage_tables.fingerprint`.
        processes: Number of processes.
        chunk_rows: The approximate number of rows in memory of each process.
        progress: Called with the number of rows of each finished part.

    Returns:
        The number of rows.

    Raises:
        InputError: As `write_advantages`; also if another process computes the same table, or a group is in two
            partitions.
        ProcessError: Processes were killed repeatedly.
    """
    if len(parts) == 1:
        steps = parts[0].scan()
        return write_advantages(steps, specs, out, fingerprint=fingerprint, chunk_rows=chunk_rows, progress=progress)
    with _scratch(out) as folder:
        _write_parts(parts, specs, folder, processes, chunk_rows, progress)
        paths = [folder / part_name(part.number) for part in parts]
        rows = _union(paths, out, metadata_of(specs, fingerprint))
    remove_folder(folder)
    return rows


def write_folder(
    parts: Sequence[Partition],
    specs: Sequence[EstimatorSpec],
    folder: Path,
    *,
    overwrite: bool = False,
    processes: int = 1,
    chunk_rows: int = ROWS,
    progress: Callable[[int], object] = lambda _: None,
) -> list[PartReport]:
    """Compute estimators in several processes and write a folder of parts. Finished parts are not computed again.

    Args:
        parts: The partitions; see `partitions_for`.
        specs: The estimators and the names of their columns.
        folder: The folder. It contains nothing but parts, so that other programs can read it as one table.
        overwrite: Whether parts of other estimators or of other rows are replaced.
        processes: Number of processes.
        chunk_rows: The approximate number of rows in memory of each process.
        progress: Called with the number of rows of each finished part.

    Returns:
        What was done for each part.

    Raises:
        InputError: As `write_table`; or the folder contains other files, or parts that may not be replaced.
        ProcessError: Processes were killed repeatedly.
    """
    _check_folder(folder, parts, specs, overwrite=overwrite)
    make_folder(folder)
    reports = _write_parts(parts, specs, folder, processes, chunk_rows, progress)
    wanted = {part_name(part.number) for part in parts}
    for path in folder.iterdir():
        if path.name not in wanted and _is_part(path):
            path.unlink()  # of a larger run, or of smaller partitions; `overwrite` allows it
    _check_groups([folder / name for name in sorted(wanted)])
    return reports


def write_part(
    partition: Partition, *, specs: Sequence[EstimatorSpec], folder: Path, chunk_rows: int = ROWS
) -> PartReport:
    """Write the part of a partition into a folder, unless it is finished. The write is atomic."""
    path = folder / part_name(partition.number)
    fingerprint = partition.fingerprint()
    rows = finished_rows(str(path), specs, fingerprint) if path.exists() else None
    if rows is not None:
        return PartReport(rows, computed=False)
    written = write_advantages(
        partition.scan(),
        specs,
        path,
        fingerprint=fingerprint,
        chunk_rows=chunk_rows,
        scratch_in=folder.parent,  # other programs can read the folder at any time
    )
    return PartReport(written, computed=True)


def finished_rows(
    path: str,
    specs: Sequence[EstimatorSpec],
    fingerprint: str,
    storage_options: Mapping[str, Any] | None = None,
) -> int | None:
    """Return the number of rows of a part if it is the wanted one, else None."""
    options = dict(storage_options or {}) or None
    metadata = pl.read_parquet_metadata(path, storage_options=options)
    if metadata.get(METADATA) != metadata_of(specs, fingerprint):
        return None
    found = pl.scan_parquet(path, storage_options=options, glob=False)
    wanted = [column for spec in specs for column in spec.added]  # details are not named in the metadata
    if found.collect_schema().names()[-len(wanted) :] != wanted:
        return None
    return int(found.select(pl.len()).collect().item())


def _write_parts(
    parts: Sequence[Partition],
    specs: Sequence[EstimatorSpec],
    folder: Path,
    processes: int,
    chunk_rows: int,
    progress: Callable[[int], object],
) -> list[PartReport]:
    work = partial(write_part, specs=tuple(specs), folder=folder, chunk_rows=chunk_rows)
    reports = []
    with closing(in_processes(work, parts, processes)) as results:
        for report in results:
            progress(report.rows)
            reports.append(report)
    return reports


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """Yield the locked folder of a table's parts. It is kept after an error if it contains finished parts."""
    folder = out.with_name(out.name + SUFFIX)
    if folder.is_dir() and any(path.name != LOCK and not _is_part(path) for path in folder.iterdir()):
        raise InputError(f"{folder}: expected parts of {out.name}, received other files; move them elsewhere")
    make_folder(folder)
    with FolderLock(folder, f"computing {out.name}"):
        try:
            yield folder
        except BaseException:
            if not any(map(_is_part, folder.iterdir())):
                remove_folder(folder)
            raise


def _is_part(path: Path) -> bool:
    return path.match("part-??????.parquet")


def _check_folder(folder: Path, parts: Sequence[Partition], specs: Sequence[EstimatorSpec], *, overwrite: bool) -> None:
    """Raise an InputError unless the folder is absent, or contains nothing but parts that may stay or be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a folder of parts, received a file; change --out")
    other = next((path for path in folder.iterdir() if not _is_part(path) and not is_scratch(path.name)), None)
    if other is not None:
        raise InputError(f"{folder}: expected a folder of parts, but it contains {other.name}; change --out")
    if overwrite:
        return
    fingerprints = {part_name(part.number): part.fingerprint() for part in parts}
    for path in sorted(folder.iterdir()):
        if finished_rows(str(path), specs, fingerprints.get(path.name, "")) is None:
            raise InputError(
                f"{path} has other estimators, rows or parameters; replace it with --overwrite, or use another --out"
            )


def _union(paths: Sequence[Path], out: Path, metadata: str) -> int:
    """Write the rows of parts, in order, to one table; return their number."""
    import pyarrow.parquet as pq

    _check_groups(paths)
    with writing(out, metadata) as table:
        for path in paths:
            with pq.ParquetFile(path) as part:
                for number in range(part.num_row_groups):
                    table.write(part.read_row_group(number))
    return table.rows


def _check_groups(paths: Sequence[Path]) -> None:
    """Raise an InputError if a group is in two parts: two runs may have the same name."""
    keys = group_keys(pl.scan_parquet(paths[0], glob=False).collect_schema())
    seen = pl.Series("seen", [], dtype=pl.UInt64)
    for path in paths:
        seen = unseen_groups(pl.scan_parquet(path, glob=False).select(keys).unique().collect(), keys, seen)
