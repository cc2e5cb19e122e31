"""Reads step tables: `scan_steps` gives one LazyFrame over a file, a run, several runs, or a URL.

Only what a manifest lists is read, so a writer may be at work in the run or may have been killed there. Sizes are
compared with the manifest before anything is read; flipped bytes are what `hgpo verify` looks for.
"""

from __future__ import annotations

import glob
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl

from hgpo_datasets import manifest, schema, shards
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    return _scan([files for files in found if files], options)


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
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        return _run(path, damaged, uncommitted)
    raise InputError(f"{source}: no such file or run")


def _run(folder: Path, damaged: Choice, uncommitted: Choice) -> list[str]:
    path = folder / manifest.NAME
    if not path.exists():
        hint = "name its files (folder/*.parquet) to read them without one"
        raise InputError(f"{folder} is not a run: it has no {manifest.NAME}; {hint}")
    listed = manifest.decode(path.read_bytes())
    if listed.problem:
        _refuse_or_warn(damaged, f"{folder}: {listed.problem}")
    names = {shard.file for shard in listed.shards}
    for extra in sorted(folder.glob(f"*{_PARQUET}")):
        if extra.name not in names and extra.name not in listed.replaced:
            _refuse_or_warn(uncommitted, f"{extra} is not committed")
    files = []
    for shard in listed.shards:
        file = folder / shard.file
        if not file.exists():
            _refuse_or_warn(damaged, f"{file} is missing")
        elif file.stat().st_size != shard.bytes:
            _refuse_or_warn(damaged, f"{file} is damaged: {file.stat().st_size} bytes, {shard.bytes} were committed")
        else:
            files.append(str(file))
    return files


def _refuse_or_warn(choice: Choice, line: str) -> None:
    if choice == "refuse":
        raise InputError(line)
    warnings.warn(f"{line}; it is left out", StepTableWarning, stacklevel=6)


def _remote_run(url: str, options: dict[str, Any]) -> list[str]:
    base = url.rstrip("/")
    listed = manifest.decode(_read_remote(f"{base}/{manifest.NAME}", options))
    if listed.problem:
        raise InputError(f"{url}: {listed.problem}")
    return [f"{base}/{shard.file}" for shard in listed.shards]


def _read_remote(url: str, options: dict[str, Any]) -> bytes:
    try:
        lines = pl.scan_lines(url, storage_options=options or None).collect()["line"]
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{url} cannot be read: {str(error).splitlines()[0]}") from error
    return "".join(f"{line}\n" for line in lines).encode()


def _scan(sources: list[list[str]], options: dict[str, Any]) -> pl.LazyFrame:
    """One frame over the files; those of one source have the same columns."""
    seen = [_columns(files[0], options) for files in sources]
    schemas: dict[str, Any] = {}
    if any(one != seen[0] for one in seen):
        depth = min(schema.stored_depth(one) for one in seen)
        schemas = {"schema": schema.polars_schema(depth), "missing_columns": "insert", "extra_columns": "ignore"}
    files = [file for source in sources for file in source]
    return pl.scan_parquet(files, storage_options=options or None, glob=False, **schemas)


def _columns(file: str, options: dict[str, Any]) -> dict[str, pl.DataType]:
    try:
        shards.check_version(pl.read_parquet_metadata(file, storage_options=options or None), file)
        return dict(pl.scan_parquet(file, storage_options=options or None, glob=False).collect_schema())
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error
