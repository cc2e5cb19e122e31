"""Read step tables: `scan_steps` returns one LazyFrame over runs, files and URLs.

Only files listed in a manifest are read, so a run can be read while a writer is open or after it was killed. Sizes are
compared with the manifest. Changed bytes are not detected here: `hgpo verify` finds them, and opens foreign files in a
process of its own, which a forged one may end.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl

from hgpo_datasets import manifest, remote, schema, shards
from hgpo_datasets.sources import PARQUET, STEPS, Part, Source, parts_of, run_of_file
from hgpo_envs.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hgpo_datasets.manifest import Shard

Choice = Literal["refuse", "skip"]


@dataclass(frozen=True, slots=True)
class StepFile:
    """A file of a source.

    Attributes:
        path: Its path or URL.
        shard: Its line in the manifest; None for a file outside of a run.
    """

    path: str
    shard: Shard | None = None


class StepTableWarning(UserWarning):
    """A warning that a file or a run was skipped."""


def scan_steps(
    source: Source | Iterable[Source],
    *,
    damaged: Choice = "refuse",
    uncommitted: Choice = "skip",
    plain: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> pl.LazyFrame:
    """Scan the steps of a run, a folder of runs, a file, a pattern, or a URL as one LazyFrame.

    A query reads only the columns that it uses. The files keep their order; within a file, rows are sorted by
    iteration, task, group, trajectory and step. For runs of different depths, the result has the hashes that all of
    them have.

    Args:
        source: A run's folder or its `steps/`, a folder that contains runs at any depth, a Parquet file, a glob
            pattern of these (`runs/*`), the URL of a run or file (`s3://`, `gs://`, `az://`, `hf://`, `https://` …), or
            several of these. A run that is named twice is read once. A run inside another run, such as the evaluation
            of a training run, is read only if it is named itself.
        damaged: Handling of files that are missing or whose size differs from the manifest: `refuse` raises, `skip`
            warns and reads the other files.
        uncommitted: Handling of shards that are in the folder but not in the manifest, because their writer is open or
            was killed: `refuse` or `skip`, as above.
        plain: Whether to read Parquet files of other programs as well: local files outside of run folders, without the
            metadata of a step table. Their columns and the order of their rows are unchanged.
        storage_options: Options of the object store, as in `polars.scan_parquet`.

    Raises:
        InputError: The source has no rows, or contains both runs and other Parquet files; a file is damaged, is no
            step table or was written by a newer version; or plain files have different columns.

    Warns:
        StepTableWarning: A file was skipped, or some of several runs have no committed rows.
    """
    for name, choice in (("damaged", damaged), ("uncommitted", uncommitted)):
        if choice not in get_args(Choice):
            raise InputError(unknown(f"choice for {name}", choice, get_args(Choice)))
    options = dict(storage_options or {})
    found = source_files(source, options, damaged, uncommitted)
    files = [[file.path for file in some] for some in found]
    return scan_files([path for some in files for path in some], shared_depth(files, options, plain=plain), options)


def source_files(
    source: Source | Iterable[Source],
    options: Mapping[str, Any],
    damaged: Choice = "refuse",
    uncommitted: Choice = "skip",
) -> list[list[StepFile]]:
    """Return the files that `scan_steps` reads, those of each run or file in a list of their own.

    Args:
        source: As in `scan_steps`.
        options: Options of the object store.
        damaged: As in `scan_steps`.
        uncommitted: As in `scan_steps`.

    Raises:
        InputError: As in `scan_steps`.
    """
    several = isinstance(source, Iterable) and not isinstance(source, str | os.PathLike)
    sources: list[Any] = [*source] if several else [source]  # type: ignore[misc]
    for each in sources:
        if not isinstance(each, str | os.PathLike) or not os.fspath(each):
            received = f"{type(each).__name__} {each!r}"
            raise InputError(f"expected the path or URL of a run or Parquet file, received {received}")
    parts = parts_of(sources)
    found = [_files(part, damaged, uncommitted, options) for part in parts]
    if not any(found):
        runs = sum(part.kind == "run" for part in parts)
        more = f": found {runs} runs, none of them with committed rows" if runs > 1 else ""
        raise InputError(f"no committed rows in {', '.join(map(str, sources)) or 'an empty list'}{more}")
    _warn_about_empty(parts, found)
    return [files for files in found if files]


def step_files(source: Source) -> list[str]:
    """Return the paths of the local files that `scan_steps` reads.

    Raises:
        InputError: The source does not exist, or a file is damaged.
    """
    return [file.path for part in parts_of([source]) for file in _files(part, "refuse", "skip", {})]


def _warn_about_empty(parts: list[Part], found: list[list[StepFile]]) -> None:
    """Warn if a folder or pattern contains runs without committed rows beside others."""
    for source in dict.fromkeys(part.source for part in parts):
        empty = [not files for part, files in zip(parts, found, strict=True) if part.source == source]
        if len(empty) > 1 and any(empty):
            line = f"{source}: {len(empty)} runs, {sum(empty)} of them without committed rows"
            warnings.warn(line, StepTableWarning, stacklevel=4)


def _files(part: Part, damaged: Choice, uncommitted: Choice, options: Mapping[str, Any]) -> list[StepFile]:
    """Return the files of one run, file or URL."""
    if part.kind == "url":
        return [StepFile(part.path)] if part.path.endswith(PARQUET) else _remote_run(part.path, options)
    path = Path(part.path)
    if part.kind == "run":
        return _run(path, damaged, uncommitted)
    shards.file_size(path)
    return [StepFile(str(path))]


def _run(folder: Path, damaged: Choice, uncommitted: Choice) -> list[StepFile]:
    place = folder / STEPS
    with errors(folder):
        # listed before the manifest is read: a file that an open writer commits in between is then in the manifest
        present = sorted(place.glob(f"*{PARQUET}"))
    listed = manifest.current(folder, place)
    if listed.problem:
        _refuse_or_warn(damaged, f"{folder}: {listed.problem}")
    names = {shard.file for shard in listed.shards}
    for extra in present:
        if extra.name not in names and extra.name not in listed.replaced:
            _refuse_or_warn(uncommitted, f"{extra} is not committed")
    found = []
    for shard in listed.shards:
        if problem := _problem(place / shard.file, shard):
            _refuse_or_warn(damaged, problem)
        else:
            found.append(StepFile(str(place / shard.file), shard))
    return found


def _problem(file: Path, shard: Shard) -> str | None:
    """Return the problem that a committed file's size shows, or None."""
    try:
        size = shards.file_size(file)
    except InputError as error:
        return str(error)
    return None if size == shard.bytes else f"{file} is damaged: expected {shard.bytes:,} bytes, received {size:,}"


def _refuse_or_warn(choice: Choice, line: str) -> None:
    if choice == "refuse":
        raise InputError(line)
    warnings.warn(f"{line}; skipped", StepTableWarning, stacklevel=7)


def _remote_run(url: str, options: Mapping[str, Any]) -> list[StepFile]:
    """Return the files of a run at the URL of its folder or of its `steps/`."""
    run = url.rstrip("/").removesuffix(f"/{STEPS}")
    name = f"{run}/{manifest.NAME}"
    with errors(name):
        listed = manifest.decode(remote.read_lines(name, manifest.MOST_BYTES, options))
    if listed.problem:
        raise InputError(f"{url}: {listed.problem}")
    return [StepFile(f"{run}/{STEPS}/{shard.file}", shard) for shard in listed.shards]


def shared_depth(sources: list[list[str]], options: Mapping[str, Any], *, plain: bool) -> int | None:
    """Return the depth of hashes that all sources have, or None if their columns are the same.

    The files of one source have the same columns.
    """
    plain_files = {source[0] for source in sources if plain and is_plain(source[0])}
    seen = [_columns(source[0], options, versioned=source[0] not in plain_files) for source in sources]
    other = next((number for number, columns in enumerate(seen) if columns != seen[0]), None)
    if other is None:
        return None
    if plain_files:
        raise InputError(
            f"{sources[0][0]} and {sources[other][0]} have different columns or types; expected the same in all files "
            "that are read together"
        )
    return min(schema.stored_depth(one) for one in seen)


def scan_files(files: Sequence[str], depth: int | None, options: Mapping[str, Any]) -> pl.LazyFrame:
    """Return one frame over files, with the columns of this depth if it is not None."""
    schemas: dict[str, Any] = {}
    if depth is not None:
        schemas = {"schema": schema.polars_schema(depth), "missing_columns": "insert", "extra_columns": "ignore"}
    return pl.scan_parquet(list(files), storage_options=dict(options) or None, glob=False, **schemas)


def is_plain(file: str) -> bool:
    """Return whether a Parquet file is local, in no run folder, and without the metadata of a step table.

    Raises:
        InputError: The file cannot be read.
    """
    if "://" in file or run_of_file(Path(file)) is not None:
        return False
    with errors(file):
        return shards.VERSION_KEY not in pl.read_parquet_metadata(file)


def _columns(file: str, options: Mapping[str, Any], *, versioned: bool) -> dict[str, pl.DataType]:
    with errors(file):
        if versioned:
            shards.check_version(pl.read_parquet_metadata(file, storage_options=dict(options) or None), file)
        return dict(pl.scan_parquet(file, storage_options=dict(options) or None, glob=False).collect_schema())


@contextmanager
def errors(what: object) -> Iterator[None]:
    """Convert the exceptions of reading a damaged file to a one-line error.

    Raises:
        InputError: The block raised an OSError, a ValueError or an error of Polars.
    """
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, *shards.POLARS_ERRORS) as error:
        raise InputError(f"{what} cannot be read: {shards.first_line(error)}") from error
