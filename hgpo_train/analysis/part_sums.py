"""Sums of the parts of a run, computed in several processes and kept until a command has ended.

The statistics of a run are made of sums that its parts have by themselves. A finished part's sums are kept in a folder,
so that an interrupted command continues.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from hgpo_datasets.partitions import Partition
from hgpo_datasets.processes import in_processes
from hgpo_envs.files.atomic import is_scratch, new_folder, remove_folder
from hgpo_envs.plugins import installed_version
from hgpo_train.advantages.parts import scratch_folder
from hgpo_train.advantages.tables import scan_part

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

SUFFIX: Final = ".arrow"


class PartSums(NamedTuple):
    """The sums of a part.

    Attributes:
        rows: Number of rows of the part.
        frames: The sums by name.
    """

    rows: int
    frames: dict[str, pl.DataFrame]


@contextmanager
def sums_folder(out: Path) -> Iterator[Path]:
    """Yield the folder ``<out>.parts`` for the sums of finished parts. It is removed unless the block fails.

    Raises:
        InputError: It contains anything else, or another process uses it.
    """
    with scratch_folder(out, _is_kept) as folder:
        yield folder
    remove_folder(folder)


def sums_of_parts(
    work: partial[PartSums],
    parts: Sequence[Partition | pl.LazyFrame],
    processes: int = 1,
    folder: Path | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> Generator[PartSums]:
    """Yield the sums of the parts in their order.

    Args:
        work: Computes the sums of a part from its place in the table and its steps. Its keyword arguments, all with a
            `repr` that tells them apart, and the function's name decide which kept sums are used.
        parts: The parts; see `hgpo_train.advantages.tables.table_parts`.
        processes: Number of processes.
        folder: Folder with the sums of finished parts, which are not computed again. A single part is not kept. None
            keeps nothing.
        progress: Called with the number of rows of each finished part.

    Raises:
        InputError: `processes` is less than 1, or the steps are not valid.
        ProcessError: Processes were killed repeatedly.
    """
    every = partial(_kept, work=work, folder=folder if len(parts) > 1 else None)
    with closing(in_processes(every, list(enumerate(parts)), processes)) as results:
        for sums in results:
            progress(sums.rows)
            yield sums


def _kept(numbered: tuple[int, Partition | pl.LazyFrame], *, work: partial[PartSums], folder: Path | None) -> PartSums:
    """Return the sums of a part: those that are kept, or new ones."""
    place, part = numbered
    if folder is None or not isinstance(part, Partition):
        return work(place, scan_part(part))
    target = folder / _name(place, part, work)
    found = _read(target)
    if found is None:
        found = work(place, part.scan())
        with new_folder(target, replace=lambda _: True) as scratch:
            for name, frame in (found.frames | {"rows": pl.DataFrame({"rows": [found.rows]})}).items():
                frame.write_ipc(scratch / f"{name}{SUFFIX}")
    return found


def _name(place: int, part: Partition, work: partial[PartSums]) -> str:
    """Return the name of a part's folder: a digest of all that its sums depend on."""
    function = f"{work.func.__module__}.{work.func.__qualname__}"
    what = (installed_version("hgpo"), function, sorted(work.keywords.items()), place, part.depth, part.fingerprint())
    return hashlib.sha256(repr(what).encode()).hexdigest()[:32]


def _is_kept(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{32}", name) is not None or is_scratch(name)


def _read(folder: Path) -> PartSums | None:
    """Return kept sums; None if there are none, or if they cannot be read."""
    try:
        frames = {path.stem: pl.read_ipc(path) for path in sorted(folder.glob(f"*{SUFFIX}"))}
    except (pl.exceptions.PolarsError, OSError):
        return None
    rows = frames.pop("rows", None)
    return None if rows is None else PartSums(int(rows.item()), frames)
