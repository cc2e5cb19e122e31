"""Advantage tables: the output of `hgpo advantages`, written next to a run, and functions to read and join it.

An advantage table is one Parquet file with the rows of the run, in the same order. It contains the columns that
identify a row, then one column per estimator (and its optional columns). The metadata contain the parameters of each
estimator, the run's fingerprint and the package's version.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from hgpo_datasets import manifest, remote
from hgpo_datasets.partitions import map_partitions
from hgpo_datasets.reader import step_files
from hgpo_datasets.row_tables import path_of, readable_files
from hgpo_datasets.shards import POLARS_ERRORS
from hgpo_datasets.sources import run_at, run_of_file
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.atomic import making_folder, new_path
from hgpo_envs.files.untrusted_files import sha256
from hgpo_envs.plugins import installed_version
from hgpo_train.advantages.input_columns import row_keys
from hgpo_train.advantages.registry import Estimator, compute_many
from hgpo_train.advantages.tables import ROWS, is_path, table_parts
from hgpo_train.scores.tables import with_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hgpo_train.advantages.tables import StepTable

FOLDER: Final = "advantages"
"""The folder of a training run with the advantages that each iteration was trained on."""
METADATA: Final = "hgpo.advantages"
ROW_GROUP_ROWS: Final = 50_000


def write_advantages(
    steps: StepTable,
    estimators: Sequence[Estimator],
    out: Path | str,
    *,
    processes: int = 1,
    ray: bool = False,
    chunk_rows: int = ROWS,
    progress: Callable[[int], object] = lambda _: None,
) -> int:
    """Compute several estimators in one pass over complete groups, and write one Parquet file.

    The file appears when it is complete; an existing one is then replaced.

    Args:
        steps: The step table: a path, URL or table. The groups of a table are contiguous, as `StepWriter` writes them.
        estimators: The estimators, with different names of their columns.
        out: The path of the file, or a URL in an object store.
        processes: Number of processes, which share the shards of runs if `steps` is a path or URL.
        ray: Whether Ray's tasks compute, `processes` at a time; see `hgpo_datasets.partitions.map_partitions`.
        chunk_rows: The approximate number of rows of a chunk, which a process has in memory.
        progress: Called with the number of rows of each finished chunk.

    Returns:
        The number of rows.

    Raises:
        InputError: The table lacks columns, has no rows, or has rows that an estimator refuses.
        ProcessError: Processes were killed repeatedly.
    """
    import pyarrow.parquet as pq  # Polars cannot append to a Parquet file

    # 1. The parts, each of which contains what its estimators compare.
    whole = (
        "batch"
        if any(estimator.scope == "batch" for estimator in estimators)
        else "group"
    )
    parts = table_parts(steps, chunk_rows, whole=whole)
    # chunks of one table, which this process reads
    if isinstance(parts[0], pl.LazyFrame):
        processes = 1
        ray = False

    # 2. What the file says of itself, and the work on a part, which can be that of another process.
    local = isinstance(steps, str | os.PathLike) and "://" not in str(steps)
    metadata = description(estimators, fingerprint(Path(steps)) if local else "")
    work = partial(
        _advantages, estimators=estimators, source=steps if is_path(steps) else None
    )

    # 3. The parts in order, each appended when it is there.
    rows = 0
    writer = None
    with ExitStack() as stack:
        file = stack.enter_context(_opened(out))
        for table in stack.enter_context(
            closing(map_partitions(work, parts, processes=processes, ray=ray))
        ):
            # oldest: pyarrow writes no categories of string views
            arrow = table.to_arrow(compat_level=pl.CompatLevel.oldest())
            if writer is None:
                schema = arrow.schema.with_metadata({METADATA: orjson.dumps(metadata)})
                writer = stack.enter_context(
                    pq.ParquetWriter(file, schema, compression="zstd")
                )
            writer.write_table(arrow, ROW_GROUP_ROWS)
            rows += table.height
            progress(table.height)
        if not rows:
            raise InputError("the step table has no rows")
    return rows


def description(
    estimators: Sequence[Estimator], run_fingerprint: str = ""
) -> dict[str, Any]:
    """Return what the columns of estimators were computed with, as `read_metadata` returns it."""
    columns = {
        each.column: {"estimator": each.name, "parameters": asdict(each.parameters)}
        for each in estimators
    }
    version = installed_version("hgpo") or ""
    return {
        "run_fingerprint": run_fingerprint,
        "columns": columns,
        "hgpo_version": version,
    }


@contextmanager
def _opened(out: Path | str) -> Iterator[IO[bytes]]:
    """Open a file to write, which appears at its path or URL if the block ends without an error."""
    if "://" not in str(out):
        path = Path(out).absolute()
        with (
            making_folder(path.parent),
            new_path(path) as content,
            content.open("wb") as file,
        ):
            yield file
        return
    with tempfile.NamedTemporaryFile() as copy:
        yield copy
        copy.flush()
        remote.put(str(out), Path(copy.name))


def _advantages(
    steps: pl.LazyFrame,
    estimators: Sequence[Estimator],
    source: StepTable | None,
) -> pl.DataFrame:
    """Return the columns that identify a row, and those of the estimators; `source` is where the steps are from."""
    if source is not None:
        steps = with_scores(
            steps, source, [score for each in estimators for score in each.scores]
        )
    added = [column for estimator in estimators for column in estimator.added]
    # advantages that the table has already are no input
    steps = steps.drop(added, strict=False)
    computed = compute_many(steps, estimators).select(
        *row_keys(steps.collect_schema()), *added
    )
    return computed.collect(engine="in-memory")


def read_metadata(path: Path) -> dict[str, Any]:
    """Return an advantage table's metadata.

    The keys are `columns` (the estimator and all parameters of each column), `run_fingerprint` and `hgpo_version`.
    """
    try:
        metadata = pl.read_parquet_metadata(path)
    except (OSError, *POLARS_ERRORS) as error:
        raise InputError(
            f"{path}: expected an advantage table of `hgpo advantages` ({one_line(error)})"
        ) from error
    if METADATA not in metadata:
        raise InputError(
            f"{path}: expected an advantage table, received a file without the metadata {METADATA}"
        )
    return dict(orjson.loads(metadata[METADATA]))


def trained_advantages(run: Path, iteration: int | None = None) -> pl.LazyFrame | None:
    """Return the advantages that a run was trained on (`FOLDER`), of one iteration or of all; None if there are none.

    Steps that were not trained on, such as those of aborted rollouts and of filtered groups, have no row or null.

    Raises:
        InputError: A file is no advantage table, or the tables have columns of different types.
    """
    files = readable_files(run, FOLDER)
    if iteration is not None:  # of the step table, which counts from 0
        files = [path for path in files if path == path_of(run, FOLDER, iteration + 1)]
    if not files:
        return None
    read_metadata(files[0])
    try:
        steps = pl.scan_parquet(files, missing_columns="insert", extra_columns="ignore")
        steps.collect_schema()
    except (OSError, *POLARS_ERRORS) as error:
        raise InputError(
            f"{run / FOLDER}: expected advantage tables ({one_line(error)})"
        ) from error
    return steps


def join_advantages(steps: pl.LazyFrame, advantages: pl.LazyFrame) -> pl.LazyFrame:
    """Add the columns of an advantage table to its step table, by run, trajectory and step; rows keep their order."""
    shared = steps.collect_schema().names()
    added = advantages.collect_schema().names()
    keys = [
        key for key in ("run", "trajectory", "step") if key in shared and key in added
    ]
    new = [name for name in added if name not in shared]
    return steps.join(
        advantages.select(*keys, *new),
        on=keys,
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )


def refuse_own_input(source: Path, out: Path) -> None:
    """Raise an InputError if writing the file `out` would replace a file of `source`, or create one in its folder."""
    target = out.resolve()
    folders = [source, *filter(None, [run_at(source)])] if source.is_dir() else []
    # As a folder of the run, or inside of one.
    inside = any(target.is_relative_to(folder.resolve()) for folder in folders)
    # other programs can read the folder of a run's shards only if it contains nothing else
    inside = inside or any(
        run_of_file(path) is not None for path in (target, *target.parents)
    )
    if inside or (
        out.exists() and any(out.samefile(file) for file in step_files(source))
    ):
        raise InputError(
            f"expected an output file outside of the input {source}, received {out}; change --out"
        )
    if out.is_dir():
        raise InputError(
            f"expected an output file, received the folder {out}; add a file name to --out"
        )


def fingerprint(source: Path) -> str:
    """Return the SHA-256 of a run's manifest, which contains that of every shard; for Parquet files, of theirs."""
    if (run := run_at(source)) is not None:
        return f"sha256:{sha256(run / manifest.NAME)}"
    digest = hashlib.sha256()
    for path in step_files(source):
        digest.update(bytes.fromhex(sha256(Path(path))))
    return f"sha256:{digest.hexdigest()}"
