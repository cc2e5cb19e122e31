"""Partitions of runs: consecutive shards with whole groups of rollouts, for processes and machines that share the work.

A group is never split over the shards of a run, so that no group is split over partitions. The partitions depend only
on the shards and on their largest number of rows, and not on the number of processes that compute them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_datasets import reading
from hgpo_datasets.reader import StepFile, scan_files, shared_depth, source_files
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hgpo_datasets.sources import Source


@dataclass(frozen=True, slots=True)
class Partition:
    """Consecutive files of a source with whole groups of rollouts.

    Attributes:
        number: Its place in the source, from 0.
        files: The files.
        depth: Depth of the hashes to read, if the files of the source differ in it.
    """

    number: int
    files: tuple[StepFile, ...]
    depth: int | None = None

    def scan(self, storage_options: Mapping[str, Any] | None = None) -> pl.LazyFrame:
        """Scan the steps of the partition."""
        return scan_files([file.path for file in self.files], self.depth, storage_options or {})

    def rows(self) -> int:
        """Return the number of rows; read from the footers of files outside of runs, which must be local."""
        shards = [file.shard for file in self.files if file.shard is not None]
        if len(shards) == len(self.files):
            return sum(shard.rows for shard in shards)
        return int(self.scan().select(pl.len()).collect().item())

    def fingerprint(self) -> str:
        """Return a fingerprint of the content, as ``sha256:<digits>``.

        It is the SHA-256 of the digests of the shards in the manifest; for a file outside of a run, which must be
        local, that of its size and footer.
        """
        return combined(file_fingerprint(file) for file in self.files)


def file_fingerprint(file: StepFile) -> str:
    """Return the digest of a shard, or for another file the SHA-256 of its size and footer, as ``sha256:<digits>``.

    The footer contains the position and statistics of every column chunk.
    """
    if file.shard is not None:
        return f"sha256:{file.shard.sha256}"
    return f"sha256:{hashlib.sha256(_size_and_footer(Path(file.path))).hexdigest()}"


def combined(fingerprints: Iterable[str]) -> str:
    """Return one fingerprint of several files; that of a single file is its own."""
    each = list(fingerprints)
    return each[0] if len(each) == 1 else f"sha256:{hashlib.sha256(''.join(each).encode()).hexdigest()}"


def partitions(
    source: Source | Iterable[Source],
    rows: int,
    *,
    whole: Sequence[str] = (),
    plain: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Partition]:
    """Divide the steps of a source into partitions.

    Args:
        source: As in `scan_steps`. Files outside of runs are one partition.
        rows: The largest number of rows of a partition; larger if a shard is larger.
        whole: Columns whose equal values are not split, in addition to groups: `run` and `iteration` keep batches
            whole. These columns are read.
        plain: As in `scan_steps`.
        storage_options: Options of the object store, as in `scan_steps`.

    Raises:
        InputError: As in `scan_steps`, or `rows` is less than 1.
    """
    if rows < 1:
        raise InputError(f"chunk_rows: expected an integer of at least 1, received {rows}")
    options = dict(storage_options or {})
    found = source_files(source, options)
    depth = shared_depth([[file.path for file in some] for some in found], options, plain=plain)
    files = [file for some in found for file in some]
    shards = [file.shard for file in files if file.shard is not None]
    if len(shards) < len(files):
        borders = [0, len(files)]
    else:
        may_end = [True] * len(files)
        if whole:
            may_end = _ends([_values(file.path, whole, depth, options) for file in files])
        borders = _borders([shard.rows for shard in shards], may_end, rows)
    return [Partition(number, tuple(files[start:end]), depth) for number, (start, end) in enumerate(pairwise(borders))]


def _size_and_footer(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 8, 0))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(size - 8 - length, 0))
        return str(size).encode() + file.read()


def _values(path: str, columns: Sequence[str], depth: int | None, options: Mapping[str, Any]) -> set[tuple[Any, ...]]:
    """Return the distinct values of some columns of a file. Columns that it lacks are ignored."""
    with reading.errors(path):
        steps = scan_files([path], depth, options)
        present = [name for name in columns if name in steps.collect_schema()]
        return set(steps.select(present).unique().collect().rows()) if present else set()


def _ends(values: Sequence[set[tuple[Any, ...]]]) -> list[bool]:
    """Return, for each file, whether no value of it or of an earlier file occurs in a later one.

    >>> _ends([{1, 2}, {3}, {2, 4}, {5}])
    [False, False, True, True]
    """
    last = {value: number for number, found in enumerate(values) for value in found}
    reach = accumulate((max((last[value] for value in found), default=0) for found in values), max)
    return [furthest <= number for number, furthest in enumerate(reach)]


def _borders(rows: Sequence[int], may_end: Sequence[bool], most: int) -> list[int]:
    """Return the first file of each partition, and the number of files.

    >>> _borders([4, 4, 4, 9, 1], [True, True, True, True, True], 8)
    [0, 2, 3, 4, 5]
    >>> _borders([4, 4, 4, 9, 1], [True, False, True, True, True], 8)
    [0, 1, 3, 4, 5]
    """
    borders, count, start = [0], 0, 0
    for number, end in enumerate(may_end, 1):
        if not end and number < len(rows):
            continue
        unit = sum(rows[start:number])  # files that must stay together
        if count and count + unit > most:
            borders.append(start)
            count = 0
        count, start = count + unit, number
    return [*borders, len(rows)]
