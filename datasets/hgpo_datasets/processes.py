"""Work on partitions in several processes, with results in order and errors instead of hanging."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from hgpo_envs.errors import InputError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

T = TypeVar("T")
R = TypeVar("R")

_THREADS: Final = "POLARS_MAX_THREADS"


def in_processes(function: Callable[[T], R], items: Sequence[T], processes: int = 1) -> Generator[R]:
    """Apply a function to items and yield the results in their order.

    Processes are spawned and not forked, because Polars' threads do not survive a fork. Together they have as many
    threads as the machine has cores. If one ends, for example because the system has killed it for its memory, its
    work is repeated once in new processes. Close the generator (`contextlib.closing`) if it may not be exhausted:
    this waits for the items that have begun, and for no others.

    Args:
        function: A function that can be pickled, for example one of a module or a `functools.partial` of it.
        items: Its arguments.
        processes: Number of processes. With 1, the work is done in this one.

    Raises:
        InputError: `processes` is less than 1.
        ProcessError: Processes ended twice at the same item.

    >>> list(in_processes(abs, [-3, 2]))
    [3, 2]
    """
    check_processes(processes)
    if processes == 1 or len(items) < 2:
        yield from map(function, items)
        return
    done, failed = 0, -1
    while done < len(items):
        try:
            for result in _pooled(function, items[done:], processes):
                done += 1
                yield result
        except BrokenProcessPool as error:
            if failed == done:
                raise ProcessError(
                    f"a process was killed twice during the work on part {done + 1} of {len(items)}, perhaps for its "
                    "memory; use fewer processes or smaller parts"
                ) from error
            failed = done


def check_processes(processes: int) -> None:
    """Check a number of processes.

    Raises:
        InputError: It is less than 1.
    """
    if processes < 1:
        raise InputError(f"processes: expected an integer of at least 1, received {processes}")


def _pooled(function: Callable[[T], R], items: Sequence[T], processes: int) -> Generator[R]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(items)), spawn, initializer=_begin) as pool:
        with _threads_of(processes):
            results = pool.map(function, items)  # starts the processes
        yield from results


@contextmanager
def _threads_of(processes: int) -> Iterator[None]:
    """Let new processes share the cores. Polars reads the number of its threads when it is imported."""
    given = os.environ.get(_THREADS)
    if given is None:
        os.environ[_THREADS] = str(max(1, (os.cpu_count() or 1) // processes))
    try:
        yield
    finally:
        if given is None:
            del os.environ[_THREADS]


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent finishes the parts that have begun
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is killed, because it would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
