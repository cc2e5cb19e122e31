"""Reads step tables: `scan_steps` gives one LazyFrame over a file, a run, several runs, or a URL.

Only what a manifest lists is read, so a writer may be at work in the run or may have been killed there. Before a local
file is read it is checked to be a regular file of the committed size whose footer claims no more than the file can
hold; changed bytes inside pages are found by `hgpo verify`.
"""

from __future__ import annotations

import glob
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl

from hgpo_datasets import bounds, files, manifest, remote, schema, shards
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hgpo_datasets.manifest import Shard

Source = str | os.PathLike[str]
Choice = Literal["refuse", "skip"]

_PARQUET: Final = ".parquet"


class StepTableWarning(UserWarning):
    """Names a file that was left out."""


def scan_steps(
    source: Source | Iterable[Source],
    *,
    damaged: Choice = "refuse",
    uncommitted: Choice = "skip",
    storage_options: Mapping[str, Any] | None = None,
) -> pl.LazyFrame:
    """The steps of a file, a run, several runs, or an object-store URL, as one LazyFrame.

    Only the columns that a query asks for are read. Rows come file by file, each sorted by iteration, task, group,
    trajectory, step. Runs of different depths give the hashes that all of them have; a column that came with a later
    schema version is null in older files.

    Args:
        source: A Parquet file, a run's folder, a URL of either (`s3://`, `gs://`, `az://`, `hf://`, `https://` …), a
            pattern of these (`runs/*`), or several of them.
        damaged: What to do with a file that is missing or whose size is not the committed one: `refuse` raises,
            `skip` warns and reads the others.
        uncommitted: The same for a shard that is in the folder but not in the manifest (its writer is at work, or was
            killed).
        storage_options: How to reach the object store, as `polars.scan_parquet` takes it.

    Raises:
        InputError: There is nothing to read, a file is damaged, or it was written by a newer version.
    """
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    options = dict(storage_options or {})
    sources = [one for name in given for one in _expand(os.fspath(name))]
    found = [_files(one, damaged, uncommitted, options) for one in sources]
    if not any(found):
        raise InputError(f"no committed rows in {', '.join(map(str, given)) or 'an empty list'}")
    return _scan([some for some in found if some], options)


def step_files(source: Source) -> list[str]:
    """The local files that `scan_steps` reads.

    Raises:
        InputError: There are none, or one is damaged.
    """
    return [file for one in _expand(os.fspath(source)) for file in _files(one, "refuse", "skip", {})]


def _expand(source: str) -> list[str]:
    """The files and folders that a pattern names."""
    if "://" in source or Path(source).exists() or not glob.has_magic(source):
        return [source]
    return sorted(glob.glob(source, recursive=True))  # noqa: PTH207 (patterns with and without a root)


def _files(source: str, damaged: Choice, uncommitted: Choice, options: dict[str, Any]) -> list[str]:
    """The files of one source."""
    if "://" in source and not source.startswith("file://"):
        return [source] if source.endswith(_PARQUET) else _remote_run(source, options)
    path = Path(source.removeprefix("file://"))
    files.check_text(path)
    if path.is_dir():
        return _run(path, damaged, uncommitted)
    if not os.path.lexists(path):
        raise InputError(f"{source}: no such file or run")
    bounds.check_file(path)
    return [str(path)]


def _run(folder: Path, damaged: Choice, uncommitted: Choice) -> list[str]:
    if not os.path.lexists(folder / manifest.NAME):
        hint = "name its files (folder/*.parquet) to read them without one"
        raise InputError(f"{folder} is not a run: it has no {manifest.NAME}; {hint}")
    with files.reading(folder):
        present = sorted(folder.glob(f"*{_PARQUET}"))  # before the manifest is read: a writer may be at work
    listed = manifest.current(folder)
    if listed.problem:
        _refuse_or_warn(damaged, f"{folder}: {listed.problem}")
    names = {shard.file for shard in listed.shards}
    for extra in present:
        if extra.name not in names and extra.name not in listed.replaced:
            _refuse_or_warn(uncommitted, f"{extra} is not committed")
    found = []
    for shard in listed.shards:
        if problem := _problem(folder / shard.file, shard):
            _refuse_or_warn(damaged, problem)
        else:
            found.append(str(folder / shard.file))
    return found


def _problem(file: Path, shard: Shard) -> str | None:
    """What is wrong with a committed file, as far as its size and footer tell."""
    try:
        size = files.regular(file).st_size
        if size != shard.bytes:
            return f"{file} is damaged: {size} bytes, {shard.bytes} were committed"
        bounds.check_file(file)
    except InputError as error:
        return str(error)
    return None


def _refuse_or_warn(choice: Choice, line: str) -> None:
    if choice == "refuse":
        raise InputError(line)
    warnings.warn(f"{line}; it is left out", StepTableWarning, stacklevel=6)


def _remote_run(url: str, options: dict[str, Any]) -> list[str]:
    base = url.rstrip("/")
    address = f"{base}/{manifest.NAME}"
    with files.reading(address):
        listed = manifest.decode(remote.read_lines(address, manifest.MOST_BYTES, options))
    if listed.problem:
        raise InputError(f"{url}: {listed.problem}")
    return [f"{base}/{shard.file}" for shard in listed.shards]


def _scan(sources: list[list[str]], options: dict[str, Any]) -> pl.LazyFrame:
    """One frame over the files; those of one source have the same columns."""
    seen = [_columns(source[0], options) for source in sources]
    schemas: dict[str, Any] = {}
    if any(one != seen[0] for one in seen):
        depth = min(schema.stored_depth(one) for one in seen)
        schemas = {"schema": schema.polars_schema(depth), "missing_columns": "insert", "extra_columns": "ignore"}
    every = [file for source in sources for file in source]
    return pl.scan_parquet(every, storage_options=options or None, glob=False, **schemas)


def _columns(file: str, options: dict[str, Any]) -> dict[str, pl.DataType]:
    with files.reading(file):
        shards.check_version(pl.read_parquet_metadata(file, storage_options=options or None), file)
        return dict(pl.scan_parquet(file, storage_options=options or None, glob=False).collect_schema())
