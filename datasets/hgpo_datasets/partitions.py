"""Partitions of runs, and functions of partitions, which this process, a process pool or Ray computes.

A group is never split over the shards of a run, and therefore not over partitions. The partitions depend only on the
shards and on their largest number of rows, and not on what computes them. Results come in the partitions' order.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hgpo_datasets.reader import (
    StepFile,
    errors,
    scan_files,
    shared_depth,
    source_files,
)
from hgpo_datasets.shards import first_line
from hgpo_envs.errors import InputError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    import polars as pl

    from hgpo_datasets.sources import Source

T = TypeVar("T")
R = TypeVar("R")

_THREADS: Final = "POLARS_MAX_THREADS"
_START: Final = (
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)


@dataclass(frozen=True, slots=True)
class Partition:
    """Consecutive files of a source with whole groups of rollouts.

    Attributes:
        files: The files.
        depth: Depth of the hashes to read, if the files of the source differ in it.
    """

    files: tuple[StepFile, ...]
    depth: int | None = None

    def scan(self) -> pl.LazyFrame:
        """Scan the steps of the partition."""
        return scan_files(self.files, self.depth)


def partitions(
    source: Source | Iterable[Source],
    rows: int,
    *,
    whole: Sequence[str] = (),
    plain: bool = False,
) -> list[Partition]:
    """Divide the steps of a source into partitions. Options of object stores are environment variables.

    Args:
        source: As in `scan_steps`. Files outside of runs are one partition.
        rows: The largest number of rows of a partition; larger if a shard is larger.
        whole: Columns whose equal values are not split, in addition to groups: `run` and `iteration` keep batches
            whole. These columns are read.
        plain: As in `scan_steps`.

    Raises:
        InputError: As in `scan_steps`, or `rows` is less than 1.
    """
    if rows < 1:
        raise InputError(
            f"chunk_rows: expected an integer of at least 1, received {rows}"
        )
    files = source_files(source)
    depth = shared_depth(files, plain=plain)
    limits = [0, len(files)]
    sizes = [file.shard.rows for file in files if file.shard is not None]
    if len(sizes) == len(files):
        limits = borders(
            sizes,
            [_values(file, whole, depth) for file in files],
            rows,
        )
    return [
        Partition(tuple(files[start:end]), depth) for start, end in pairwise(limits)
    ]


def map_partitions(
    function: Callable[[pl.LazyFrame], R],
    parts: Sequence[Partition | pl.LazyFrame],
    *,
    processes: int = 1,
    ray: bool = False,
) -> Generator[R]:
    """Apply a function to the steps of each partition and yield the results in order.

    Close the generator (`contextlib.closing`) if it may not be exhausted: this waits for the partitions that have
    begun, and for no others.

    Args:
        function: A function that can be pickled, for example one of a module or a `functools.partial` of it.
        parts: Partitions, or tables in memory.
        processes: Number of processes, or of Ray's tasks at a time. With 1 and without Ray, this process computes.
        ray: Whether to compute on the cluster of `RAY_ADDRESS` or of an earlier `ray.init`. Without these, Ray is
            started on this machine and stopped at the end. Requires the extra `ray`.

    Raises:
        InputError: `processes` is less than 1, or the function raised it.
        ProcessError: A process was killed, for example by the system for its memory; or the Ray job failed.
    """
    work = partial(_of_steps, function)
    with closing(
        _on_ray(work, parts, processes) if ray else in_processes(work, parts, processes)
    ) as results:
        yield from results


def _of_steps(
    function: Callable[[pl.LazyFrame], R], part: Partition | pl.LazyFrame
) -> R:
    return function(part.scan() if isinstance(part, Partition) else part)


def in_processes(
    function: Callable[[T], R], items: Sequence[T], processes: int = 1
) -> Generator[R]:
    """Apply a function to items of any kind, as `map_partitions`.

    Together, the processes have as many threads as the machine has cores.

    >>> list(in_processes(abs, [-3, 2]))
    [3, 2]
    """
    check_processes(processes)
    if processes == 1 or len(items) < 2:
        yield from map(function, items)
        return
    try:
        with process_pool(min(processes, len(items))) as pool:
            yield from pool.map(function, items)
    except BrokenProcessPool as error:
        raise ProcessError(
            "a process was killed, perhaps for its memory; use fewer processes or smaller parts"
        ) from error


def check_processes(processes: int) -> None:
    """Raise InputError unless a number of processes is at least 1."""
    if processes < 1:
        raise InputError(
            f"processes: expected an integer of at least 1, received {processes}"
        )


@contextmanager
def process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes, which share the cores and end with this process."""
    # never "fork", because Polars' threads do not survive one; a fork server has imported Polars but never used it
    context = multiprocessing.get_context(_START)
    context.set_forkserver_preload(["hgpo_datasets.partitions"])
    with (
        _threads_of(processes),
        ProcessPoolExecutor(processes, context, initializer=_begin) as pool,
    ):
        yield pool


@contextmanager
def _threads_of(processes: int) -> Iterator[None]:
    """Let new processes share the cores. Polars reads the number of its threads when it is imported."""
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = _shared_cores(processes)
    try:
        yield
    finally:
        os.environ.pop(_THREADS, None)  # another thread may have removed it


def _shared_cores(processes: int) -> str:
    return str(max(1, (os.cpu_count() or 1) // processes))


def _begin() -> None:
    # the parent finishes the parts that have begun
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is killed, because it would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _on_ray(
    function: Callable[[T], R], items: Sequence[T], workers: int
) -> Generator[R]:
    check_processes(workers)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    with _ray_running(workers):
        remote: Any = ray.remote(num_cpus=1, max_retries=3)
        task = remote(_call)
        begun: list[Any] = [task.remote(function, item) for item in items[:workers]]
        try:
            for number in range(len(items)):
                yield ray.get(begun[number])
                begun[number] = None
                begun += [
                    task.remote(function, item)
                    for item in items[number + workers : number + workers + 1]
                ]
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error  # what the function raised
            if isinstance(cause, InputError):
                raise cause from None
            raise ProcessError(f"the Ray job failed: {first_line(cause)}") from error


def _call(function: Callable[[T], R], item: T) -> R:
    return function(item)


@contextmanager
def _ray_running(workers: int) -> Iterator[None]:
    """Start Ray, unless the program has started it, and stop it at the end."""
    import ray

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {
        "runtime_env": {"env_vars": {_THREADS: _shared_cores(workers)}}
    }
    if not os.environ.get("RAY_ADDRESS"):
        options |= {"num_cpus": workers, "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    try:
        yield
    finally:
        ray.shutdown()


def _values(
    file: StepFile, columns: Sequence[str], depth: int | None
) -> set[tuple[Any, ...]]:
    """Return the distinct values of some columns of a file. Columns that it lacks are ignored."""
    if not columns:
        return set()
    with errors(file.path):
        steps = scan_files([file], depth)
        present = [name for name in columns if name in steps.collect_schema()]
        return set(steps.select(present).unique().collect().rows())


def borders(sizes: Sequence[int], values: Sequence[set[Any]], most: int) -> list[int]:
    """Return the first file of each partition, and the number of files.

    Args:
        sizes: Numbers of rows of the files.
        values: Values in the files. Files with a value in common, and those between them, are in one partition.
        most: The largest number of rows of a partition; larger if files must stay together.

    >>> borders([4, 4, 4, 9, 1], [set()] * 5, 8)
    [0, 2, 3, 4, 5]
    >>> borders([4, 4, 4, 9, 1], [{1}, {2}, {2}, set(), {3}], 8)
    [0, 1, 3, 4, 5]
    """
    # A border after a file is possible if no value in it or before it occurs later (`reach`). Among the possible ones,
    # each partition takes as many files as fit.
    last = {value: number for number, some in enumerate(values) for value in some}
    reach = accumulate(
        (max((last[value] for value in some), default=0) for some in values), max
    )
    rows = [0, *accumulate(sizes)]
    firsts = [0]
    previous = 0
    for end in (
        number for number, farthest in enumerate(reach, 1) if farthest < number
    ):
        if rows[end] - rows[firsts[-1]] > most and previous > firsts[-1]:
            firsts.append(previous)
        previous = end
    return [*firsts, len(sizes)]
