"""Read step tables: `scan_steps` returns one LazyFrame over runs, files and URLs.

Only files listed in a manifest are read, so a run can be read while a writer is open or after it was killed. Sizes are
compared with the manifest. Changed bytes are not detected here: `hgpo verify` finds them, and opens foreign files in a
process of its own, which a forged one may end.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import unquote

import polars as pl

from hgpo_datasets import manifest, remote, schema, shards
from hgpo_datasets.sources import (
    PARQUET,
    STEPS,
    Part,
    Source,
    names_apart,
    parts_of,
    real,
    run_of_file,
)
from hgpo_envs.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hgpo_datasets.manifest import Header, Shard

Choice = Literal["refuse", "skip"]


@dataclass(frozen=True, slots=True)
class StepFile:
    """A file of a source.

    Attributes:
        path: Its path or URL.
        header: The description of its run; None for a file outside of a run.
        shard: Its line in the manifest; None for a file outside of a run.
        run: What its run is called, if it is read together with another one of its name.
    """

    path: str
    header: Header | None = None
    shard: Shard | None = None
    run: str | None = None

    @property
    def folder(self) -> PurePath:
        """The folder of its run."""
        steps = PurePath(self.path).parent
        return (steps if "://" in self.path else real(Path(steps))).parent


class StepTableWarning(UserWarning):
    """A warning that a file or a run was skipped."""


def scan_steps(
    source: Source | Iterable[Source],
    *,
    damaged: Choice = "refuse",
    plain: bool = False,
) -> pl.LazyFrame:
    """Scan the steps of a run, a folder of runs, a file, a pattern, or a URL as one LazyFrame.

    A query reads only the columns that it uses. The files keep their order; within a file, rows are sorted by
    iteration, task, group, trajectory and step. For runs of different depths, the result has the hashes that all of
    them have. Runs of one name have in the column `run` as much of their folders' paths as tells them apart.

    Args:
        source: A run's folder or its `steps/`, a folder that contains runs at any depth, a Parquet file, a glob
            pattern of these (`runs/*`), the URL of a run or file (`s3://`, `gs://`, `az://`, `hf://`, `https://` …), or
            several of these. A run that is named twice is read once. A run inside another run, such as the evaluation
            of a training run, is read only if it is named itself. Options of object stores are environment variables.
        damaged: Handling of files that are missing or whose size differs from the manifest: `refuse` raises, `skip`
            warns and reads the other files.
        plain: Whether to read Parquet files of other programs as well: local files outside of run folders, without the
            metadata of a step table. Their columns and the order of their rows are unchanged, but texts without the
            UTF-8 mark become texts, and folders such as `task=a` are columns of texts that the files lack.

    Raises:
        InputError: The source has no rows, or contains both runs and other Parquet files; a file is damaged, is no
            step table or has another schema version; or plain files have different columns.

    Warns:
        StepTableWarning: A damaged file, or a shard that is not in the manifest, because its writer is open or was
            killed, was skipped; or some of several runs have no committed rows.
    """
    if damaged not in get_args(Choice):
        raise InputError(unknown("choice for damaged", damaged, get_args(Choice)))
    files = source_files(source, damaged)
    return scan_files(files, shared_depth(files, plain=plain))


def source_files(
    source: Source | Iterable[Source], damaged: Choice = "refuse"
) -> list[StepFile]:
    """Return the files that `scan_steps` reads. The arguments and errors are those of `scan_steps`."""
    several = isinstance(source, Iterable) and not isinstance(source, str | os.PathLike)
    sources: list[Any] = [*source] if several else [source]  # type: ignore[misc]
    for path in sources:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            received = f"{type(path).__name__} {path!r}"
            raise InputError(
                f"expected the path or URL of a run or Parquet file, received {received}"
            )
    parts = [_files(part, damaged) for part in parts_of(sources)]
    empty = parts.count([])
    names = ", ".join(map(str, sources)) or "an empty list"
    if empty == len(parts):
        more = (
            f": found {empty} runs, none of them with committed rows"
            if empty > 1
            else ""
        )
        raise InputError(f"no committed rows in {names}{more}")
    if empty:
        message = f"{names}: {len(parts)} runs, {empty} of them without committed rows"
        warnings.warn(message, StepTableWarning, stacklevel=3)
    return _told_apart(list(itertools.chain.from_iterable(parts)))


def _told_apart(files: list[StepFile]) -> list[StepFile]:
    """Name runs that have one name by their folders."""
    names: dict[PurePath, str] = {}
    for file in files:
        header = file.header
        if header is None and run_of_file(Path(file.path)) is not None:
            header = manifest.read(Path(file.folder)).header
        if header is not None:
            names.setdefault(file.folder, header.run)
    apart = names_apart([*names.values()], [*names])
    others = {
        folder: name
        for folder, name in zip(names, apart, strict=True)
        if name != names[folder]
    }
    if not others:
        return files
    return [replace(file, run=others.get(file.folder)) for file in files]


def step_files(source: Source) -> list[str]:
    """Return the paths of the local files that `scan_steps` reads; none if there are no committed rows."""
    return [file.path for part in parts_of([source]) for file in _files(part, "refuse")]


def _files(part: Part, damaged: Choice) -> list[StepFile]:
    """Return the files of one run, file or URL."""
    if part.kind == "url" and not part.path.endswith(PARQUET):
        return _remote_files(part.path)
    if part.kind != "run":
        if part.kind == "file":
            shards.file_size(Path(part.path))
        return [StepFile(part.path)]

    folder = Path(part.path)
    steps = folder / STEPS
    # listed before the manifest is read: a file that an open writer commits in between is then in the manifest
    present = sorted(steps.glob(f"*{PARQUET}"))
    listed = manifest.current(folder, steps)
    if listed.problem:
        _refuse_or_warn(damaged, f"{folder}: {listed.problem}")
    for extra in present:
        if extra.name not in listed.shards and extra.name not in listed.replaced:
            _refuse_or_warn("skip", f"{extra} is not committed")
    files = []
    for name, shard in listed.shards.items():
        try:
            size = shards.file_size(steps / name)
        except InputError as error:
            _refuse_or_warn(damaged, str(error))
            continue
        if size == shard.bytes:
            files.append(StepFile(str(steps / name), listed.header, shard))
        else:
            expected = f"expected {shard.bytes:,} bytes, received {size:,}"
            _refuse_or_warn(damaged, f"{steps / name} is damaged: {expected}")
    return files


def _refuse_or_warn(choice: Choice, message: str) -> None:
    if choice == "refuse":
        raise InputError(message)
    warnings.warn(f"{message}; skipped", StepTableWarning, stacklevel=5)


def _remote_files(url: str) -> list[StepFile]:
    """Return the files of a run at the URL of its folder or of its `steps/`."""
    run = url.rstrip("/").removesuffix(f"/{STEPS}")
    name = f"{run}/{manifest.NAME}"
    with errors(name):
        listed = manifest.decode(remote.read_lines(name, manifest.MOST_BYTES))
    if listed.problem:
        raise InputError(f"{url}: {listed.problem}")
    files = [
        StepFile(f"{run}/{STEPS}/{name}", listed.header, shard)
        for name, shard in listed.shards.items()
    ]
    # a missing file is an error of the scan, not of a later query
    for file in files[:1]:
        _columns(file.path)
    return files


def shared_depth(files: Sequence[StepFile], *, plain: bool = False) -> int | None:
    """Return the depth of hashes that all files have, or None if their columns are the same.

    Raises:
        InputError: A file is no step table, or files of other programs (`plain`) have different columns.
    """
    alone = [file.path for file in files if file.header is None]
    depths = {file.header.depth for file in files if file.header is not None}
    plain_files = [path for path in alone if plain and is_plain(path)]
    seen = [_columns(path, versioned=path not in plain_files) for path in alone]
    if seen:
        seen += [dict(schema.polars_schema(depth)) for depth in depths]
    if len(depths) < 2 and all(columns == seen[0] for columns in seen):
        return None
    if plain_files:
        other = next(
            (
                path
                for path, columns in zip(alone, seen, strict=False)
                if columns != seen[0]
            ),
            files[-1].path,
        )
        raise InputError(
            f"{alone[0]} and {other} have different columns or types, and cannot be read together"
        )
    return min([*depths] + [schema.stored_depth(columns) for columns in seen])


def scan_files(files: Sequence[StepFile], depth: int | None) -> pl.LazyFrame:
    """Return one frame over files, with the columns of this depth if it is not None."""
    schemas: dict[str, Any] = {}
    if depth is not None:
        schemas = {
            "schema": schema.polars_schema(depth),
            "missing_columns": "insert",
            "extra_columns": "ignore",
        }
    runs = []
    for named, of_run in itertools.groupby(files, key=_named_by_folders):
        paths = [file.path for file in of_run]
        scanned = pl.scan_parquet(paths, glob=False, **schemas)
        literals = {name: pl.lit(value) for name, value in named}
        runs.append(scanned.with_columns(**literals))
    steps = pl.concat(runs)
    if any(file.header is not None for file in files):
        return steps
    # other writers do not mark texts as UTF-8
    texts = {
        pl.Binary(): schema.TEXT,
        pl.List(pl.Binary()): schema.TEXTS,
    }
    with errors(files[0].path):
        columns = steps.collect_schema()
    return steps.cast(
        {name: texts[dtype] for name, dtype in columns.items() if dtype in texts}
    )


def _named_by_folders(file: StepFile) -> tuple[tuple[str, str], ...]:
    """Return the columns of a file that its path tells: `run`, or of another program's, those of its partition."""
    if file.run is not None:
        return (("run", file.run),)
    parts = [part for part in PurePath(file.path).parent.parts if "=" in part]
    if file.header is not None or not parts or not is_plain(file.path):
        return ()
    present = _columns(file.path, versioned=False)
    pairs = [unquote(part).partition("=") for part in parts]
    return tuple((name, value) for name, _, value in pairs if name not in present)


def is_plain(file: str) -> bool:
    """Return whether a Parquet file is local, in no run folder, and without the metadata of a step table."""
    if "://" in file or run_of_file(Path(file)) is not None:
        return False
    with errors(file):
        return shards.VERSION_KEY not in pl.read_parquet_metadata(file)


def _columns(file: str, *, versioned: bool = True) -> dict[str, pl.DataType]:
    with errors(file):
        if versioned:
            shards.check_version(pl.read_parquet_metadata(file), file)
        return dict(pl.scan_parquet(file, glob=False).collect_schema())


@contextmanager
def errors(what: object) -> Iterator[None]:
    """Convert OSError, ValueError and the errors of Polars to an InputError of one line."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, *shards.POLARS_ERRORS) as error:
        raise InputError(
            f"{what} cannot be read: {shards.first_line(error)}"
        ) from error


def header_of(files: Sequence[StepFile]) -> Header | None:
    """Return the description of the run whose files these are; None for files of several runs, or of none."""
    folders = {Path(file.path).parent for file in files}
    return files[0].header if len(folders) == 1 else None
