"""Work on partitions as a Ray Data job: the same as `hgpo_datasets.processes`, on the machines of a cluster.

Ray restarts the work of processes and machines that end. Requires the extra `ray`.
"""

from __future__ import annotations

import logging
import os
import pickle
import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hgpo_datasets.processes import check_processes
from hgpo_datasets.shards import first_line
from hgpo_envs.errors import InputError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

T = TypeVar("T")
R = TypeVar("R")

RETRIES: Final = 3
"""How often the work on an item is repeated if its process ends."""


def on_ray(function: Callable[[T], R], items: Sequence[T], workers: int = 1) -> Generator[R]:
    """Apply a function to items with Ray Data and yield the results in their order.

    The job runs on the cluster of `RAY_ADDRESS` or of an earlier `ray.init`. Without these, Ray is started on this
    machine with a core for each worker, and stopped at the end.

    Args:
        function: A function that can be pickled.
        items: Its arguments; each is one task.
        workers: Largest number of tasks at a time.

    Raises:
        InputError: `workers` is less than 1, or the function raised it.
        ProcessError: Another error ended the job, for example processes that were killed repeatedly.
    """
    check_processes(workers)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import ray.data

    with _running(workers):
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        rows = [{"item": pickle.dumps(item)} for item in items]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray 2.64 removes `ray_remote_args_fn`; pyproject.toml excludes it
            tasks = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
                partial(_work, function=function),
                compute=ray.data.TaskPoolStrategy(size=workers),
                num_cpus=1,
                ray_remote_args_fn=lambda: {"max_retries": RETRIES},  # Ray Data's default is to try forever
            )
        try:
            for row in tasks.iter_rows():
                result = pickle.loads(row["result"])  # noqa: S301 (pickled by `_work`)
                if isinstance(result, InputError):
                    raise result
                yield result
        except ray.exceptions.RayError as error:
            raise ProcessError(f"the Ray job failed: {first_line(error)}") from error


def _work(row: dict[str, bytes], *, function: Callable[[Any], Any]) -> dict[str, bytes]:
    """Call the function. Invalid input is a result, because Ray would report it with its own errors around it."""
    try:
        result = function(pickle.loads(row["item"]))  # noqa: S301 (pickled by `on_ray`)
    except InputError as error:
        result = InputError(str(error))
    return {"result": pickle.dumps(result)}


@contextmanager
def _running(workers: int) -> Iterator[None]:
    """Start Ray, unless the program has started it, and stop it at the end."""
    import ray

    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    options: dict[str, Any] = {"runtime_env": {"env_vars": {"POLARS_MAX_THREADS": threads}}}
    if not os.environ.get("RAY_ADDRESS"):
        options |= {"num_cpus": workers, "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    try:
        yield
    finally:
        ray.shutdown()
