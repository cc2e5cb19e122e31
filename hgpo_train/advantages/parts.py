"""Advantage tables of large runs: parts that processes compute separately, and their union.

A part is the advantage table of a partition (`hgpo_datasets.partitions`), ``part-000000.parquet`` and so on, in a
folder of its own. Its metadata contain the fingerprint of the partition's shards, the estimators' parameters and the
package's version. A part whose metadata are those that are wanted is finished: it is not computed again, so that an
interrupted command continues, and a run that has grown needs only its new parts.

The bytes of a part depend on the partition and the estimators alone, and not on the number of processes.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import object_store
from hgpo_datasets.partitions import Partition, partitions
from hgpo_datasets.processes import check_processes, in_processes
from hgpo_datasets.ray_tasks import on_ray
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import LOCK, FolderLock, make_folder, making_folder, remove_folder
from hgpo_train.advantages.advantage_tables import METADATA, metadata_of, scope, write_advantages, writing
from hgpo_train.advantages.chunks import ROWS, unseen_groups
from hgpo_train.advantages.input_columns import BATCH_KEYS, group_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

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
    check_processes(processes)
    if len(parts) == 1:
        steps = parts[0].scan()
        return write_advantages(steps, specs, out, fingerprint=fingerprint, chunk_rows=chunk_rows, progress=progress)
    with scratch_folder(out, _is_part) as folder:
        work = partial(write_part, specs=tuple(specs), folder=str(folder), chunk_rows=chunk_rows)
        _reports(in_processes(work, parts, processes), progress)
        paths = [f"{folder}/{part_name(part.number)}" for part in parts]
        _check_groups(parts, paths, {})
        rows = _union(paths, out, metadata_of(specs, fingerprint))
    remove_folder(folder)
    return rows


def write_folder(
    parts: Sequence[Partition],
    specs: Sequence[EstimatorSpec],
    folder: str,
    *,
    overwrite: bool = False,
    processes: int = 1,
    ray: bool = False,
    chunk_rows: int = ROWS,
    progress: Callable[[int], object] = lambda _: None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[PartReport]:
    """Compute estimators in several processes and write a folder of parts. Finished parts are not computed again.

    Args:
        parts: The partitions; see `partitions_for`.
        specs: The estimators and the names of their columns.
        folder: The path of the folder, or a URL in an object store. It contains nothing but parts, so that other
            programs can read it as one table.
        overwrite: Whether parts of other estimators or of other rows are replaced.
        processes: Number of processes, or of Ray's tasks at a time.
        ray: Whether to compute the parts as a Ray Data job; see `hgpo_datasets.ray_tasks`.
        chunk_rows: The approximate number of rows in memory of each process.
        progress: Called with the number of rows of each finished part.
        storage_options: Options of the object store of the run and of the folder.

    Returns:
        What was done for each part.

    Raises:
        InputError: As `write_table`; or the folder contains other files, or parts that may not be replaced.
        ProcessError: Processes were killed repeatedly.
    """
    check_processes(processes)
    options = dict(storage_options or {})
    wanted = [part_name(part.number) for part in parts]
    others = [name for name in _names(folder, options) if name not in wanted]
    for name in others:
        if not _is_part(name):
            raise InputError(f"{folder}: expected a folder of parts, but it contains {name}; change --out")
        if not overwrite:
            raise _other_part(f"{folder}/{name}")
    if not _is_url(folder):
        make_folder(Path(folder))
    work = partial(
        write_part,
        specs=tuple(specs),
        folder=folder,
        overwrite=overwrite,
        chunk_rows=chunk_rows,
        storage_options=options,
    )
    reports = _reports((on_ray if ray else in_processes)(work, parts, processes), progress)
    for name in others:
        if _is_url(folder):
            object_store.remove(f"{folder}/{name}", options)
        else:
            Path(folder, name).unlink()
    _check_groups(parts, [f"{folder}/{name}" for name in wanted], options)
    return reports


def write_part(
    partition: Partition,
    *,
    specs: Sequence[EstimatorSpec],
    folder: str,
    overwrite: bool = True,
    chunk_rows: int = ROWS,
    storage_options: Mapping[str, Any] | None = None,
) -> PartReport:
    """Write the part of a partition into a folder, unless it is finished. The write is atomic.

    Raises:
        InputError: As `write_advantages`; or another part has this name and may not be replaced.
    """
    options = dict(storage_options or {})
    fingerprint = partition.fingerprint()
    name = part_name(partition.number)
    target = f"{folder}/{name}"
    if _exists(folder, name, options):
        rows = finished_rows(target, specs, fingerprint, options)
        if rows is not None:
            return PartReport(rows, computed=False)
        if not overwrite:
            raise _other_part(target)
    steps = partition.scan(options)
    if not _is_url(folder):
        # other programs can read the folder at any time, because it contains no unfinished files
        place = Path(folder).absolute().parent
        rows = write_advantages(
            steps, specs, Path(target), fingerprint=fingerprint, chunk_rows=chunk_rows, scratch_in=place
        )
        return PartReport(rows, computed=True)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, name)
        rows = write_advantages(steps, specs, file, fingerprint=fingerprint, chunk_rows=chunk_rows)
        object_store.put(target, file.read_bytes(), options)
    return PartReport(rows, computed=True)


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


def _reports(results: Generator[PartReport], progress: Callable[[int], object]) -> list[PartReport]:
    reports = []
    with closing(results):
        for report in results:
            progress(report.rows)
            reports.append(report)
    return reports


def _is_url(folder: str) -> bool:
    return "://" in folder


def _names(folder: str, options: Mapping[str, Any]) -> list[str]:
    """Return the names in a folder; none if it does not exist."""
    if _is_url(folder):
        return object_store.names(folder, options)
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise InputError(f"{folder}: expected a folder of parts, received a file; change --out")
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


def _exists(folder: str, name: str, options: Mapping[str, Any]) -> bool:
    if _is_url(folder):
        return object_store.exists(f"{folder}/{name}", options)
    return Path(folder, name).exists()


def _other_part(path: str) -> InputError:
    return InputError(
        f"{path} has other estimators, rows or parameters; replace it with --overwrite, or use another --out"
    )


@contextmanager
def scratch_folder(out: Path, is_part: Callable[[str], bool]) -> Iterator[Path]:
    """Yield the locked folder ``<out>.parts`` for finished parts. It is kept after an error if it contains any.

    Without parts, an error removes it and the parents that were made for it.

    Args:
        out: What is made of the parts.
        is_part: Whether a name is that of a finished part.

    Raises:
        InputError: The folder contains anything else, or another process uses it.
    """
    folder = out.with_name(out.name + SUFFIX)
    if folder.is_dir() and any(path.name != LOCK and not is_part(path.name) for path in folder.iterdir()):
        raise InputError(f"{folder}: expected parts of {out.name}, received other files; move them elsewhere")
    with making_folder(folder), FolderLock(folder, f"computing {out.name}"):
        try:
            yield folder
        except BaseException:
            if not any(is_part(path.name) for path in folder.iterdir()):
                remove_folder(folder)
            raise


def _is_part(name: str) -> bool:
    return re.fullmatch(r"part-\d{6,}\.parquet", name) is not None


def _union(paths: Sequence[str], out: Path, metadata: str) -> int:
    """Write the rows of parts, in order, to one table; return their number."""
    import pyarrow.parquet as pq

    with writing(out, metadata) as table:
        for path in paths:
            with pq.ParquetFile(path) as part:
                for number in range(part.num_row_groups):
                    table.write(part.read_row_group(number))
    return table.rows


def _check_groups(parts: Sequence[Partition], paths: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise an InputError if a group is in two parts.

    A group is never split over the shards of one run. But two runs may have the same name, and the same tasks.
    """
    if len({file.path.rpartition("/")[0] for part in parts for file in part.files}) == 1:
        return
    storage_options = dict(options) or None
    found = [pl.scan_parquet(path, storage_options=storage_options, glob=False) for path in paths]
    keys = group_keys(found[0].collect_schema())
    seen = pl.Series("seen", [], dtype=pl.UInt64)
    for part in found:
        seen = unseen_groups(part.select(keys).unique().collect(), keys, seen)
