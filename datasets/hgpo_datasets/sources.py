"""The runs and files that a source means: a run, a folder of runs, a file, a pattern, a URL, or several of these.

    RUN/manifest.jsonl                  the committed shards
    RUN/.lock, RUN/.hgpo-*.tmp          the writer's lock, and scratch folders
    RUN/steps/steps-000000.parquet …    the shards, and nothing else

Only shards are in `steps/`, because Polars rejects a folder with other files.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, TypeVar

from hgpo_datasets import manifest
from hgpo_envs.errors import InputError, nearest_path
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

T = TypeVar("T")
Source = str | os.PathLike[str]

STEPS: Final = "steps"
"""Name of the folder of a run's shards."""
PARQUET: Final = ".parquet"
_TEXT_FORMATS: Final = {".json", ".jsonl", ".csv", ".tsv", ".txt"}


@dataclass(frozen=True, slots=True)
class Part:
    """One run, one file, or one URL.

    Attributes:
        path: Folder of a run, or a file; the URL as given.
        kind: `run`, `file` or `url`.
        source: The source that it was found in, for messages.
    """

    path: str
    kind: str
    source: str


def is_run(folder: Path) -> bool:
    """Return whether a folder contains a manifest."""
    return os.path.lexists(folder / manifest.NAME)


def run_at(folder: Path) -> Path | None:
    """Return the run that a folder means: the folder, or its parent if it is `steps/`; None for other folders."""
    return folder if is_run(folder) else run_with_steps(folder)


def run_with_steps(folder: Path) -> Path | None:
    """Return the run whose `steps/` the folder is, or None."""
    # the real path has a parent, also for "." and links
    candidates = () if is_run(folder) else (folder, real(folder))
    return next(
        (
            steps.parent
            for steps in candidates
            if steps.name == STEPS and is_run(steps.parent)
        ),
        None,
    )


def run_of_file(file: Path) -> Path | None:
    """Return the run whose shards are in the file's folder, or None."""
    return run_with_steps(file.parent)


def real(path: Path) -> Path:
    """Return the path without links. Unlike `Path.resolve`, this does not raise for links that form a loop."""
    return Path(os.path.realpath(path))


def folders_below(folder: Path, choose: Callable[[Path], T | None]) -> Iterator[T]:
    """Search a folder and its subfolders for the topmost folders of a kind, in the order of their names.

    Hidden folders, which include scratch folders, are skipped. Links to folders are followed once.

    Args:
        folder: The folder.
        choose: Returns the value to yield for a folder of this kind, which is then not searched; None for others.

    Raises:
        InputError: The folder cannot be read.
    """
    seen: set[Path] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        if (value := choose(here)) is not None:
            yield value
            continue
        if (target := real(here)) in seen:
            continue
        seen.add(target)
        try:
            inside = sorted(
                (path for path in here.iterdir() if path.name[:1] != "."), reverse=True
            )
        except OSError as error:
            if here == folder:
                raise InputError(
                    f"{folder} cannot be read: {error.strerror}"
                ) from error
            continue
        waiting += [path for path in inside if path.is_dir()]


def runs_below(folder: Path) -> list[Path]:
    """Return the runs that a folder means or contains at any depth. Runs inside other runs are left out."""
    return list(folders_below(folder, run_at))


def parts_of(sources: Iterable[Source]) -> list[Part]:
    """Return the runs, files and URLs that sources mean, each once, and no files of these runs.

    Raises:
        InputError: A source does not exist, contains no runs, or contains both runs and other Parquet files.
    """
    # A file is left out if its run is read anyway; two names of one place are read once.
    every = [part for source in sources for part in _parts(os.fspath(source))]
    runs = {str(real(Path(part.path))) for part in every if part.kind == "run"}
    parts: dict[str, Part] = {}
    for part in every:
        owner = run_of_file(Path(part.path)) if part.kind == "file" and runs else None
        if owner is None or str(real(owner)) not in runs:
            parts.setdefault(
                part.path if part.kind == "url" else str(real(Path(part.path))), part
            )
    return list(parts.values())


def names_apart(names: Sequence[str], folders: Sequence[PurePath]) -> list[str]:
    """Return names of runs that tell them apart.

    A name that runs in several folders have becomes the shortest end of the folder's path that no other run has.

    >>> names_apart(["run", "run", "best"], [PurePath("/a/run"), PurePath("/b/run"), PurePath("/b/best")])
    ['a/run', 'b/run', 'best']
    """
    ends = {}
    for folder in folders:
        parts = folder.parts
        ends[folder] = [
            PurePath(*parts[first:]).as_posix() for first in reversed(range(len(parts)))
        ]
    of_name = Counter(name for name, _ in set(zip(names, folders, strict=True)))
    taken = Counter(end for several in ends.values() for end in several)
    taken.update(set(names))
    apart = []
    for name, folder in zip(names, folders, strict=True):
        free = (end for end in ends[folder] if taken[end] == 1)
        apart.append(name if of_name[name] == 1 else next(free, name))
    return apart


def is_pattern(source: str) -> bool:
    """Return whether a source is a glob pattern and not an existing path."""
    return (
        "://" not in source and glob.has_magic(source) and not os.path.lexists(source)
    )


def matching(pattern: str) -> list[Path]:
    """Return the paths that a glob pattern matches, sorted. Its leading folders that exist are names, not patterns."""
    parts = Path(pattern).parts
    names = next(
        (
            number
            for number in range(len(parts), 0, -1)
            if os.path.lexists(Path(*parts[:number]))
        ),
        0,
    )
    folder = glob.escape(str(Path(*parts[:names]))) if names else ""
    pattern = os.path.join(folder, *parts[names:])  # noqa: PTH118
    # glob.glob, because Path.glob accepts no absolute patterns
    names_found = glob.glob(pattern, recursive=True)  # noqa: PTH207
    return sorted(Path(name) for name in names_found)


def check_text(path: Path) -> None:
    """Raise InputError unless a path is valid UTF-8, because Polars cannot open other paths."""
    if clean_text(str(path)) != str(path):
        raise InputError(f"{clean_text(str(path))}: expected a UTF-8 path; rename it")


def _parts(source: str) -> list[Part]:
    if "://" in source and not source.startswith("file://"):
        return [Part(source, "url", source)]
    path = Path(source.removeprefix("file://"))
    if source[:1] == "~":  # a name here, but Polars takes it for the home folder
        path = path.absolute()
    if is_run(path):
        check_text(path)
        return [Part(str(path), "run", source)]
    matches = [path] if os.path.lexists(path) else matching(str(path))
    for match in matches:
        check_text(match)
    folders = [match for match in matches if match.is_dir()]
    files = [match for match in matches if not match.is_dir()]
    # a folder can be matched in several ways, for example by its own name and through its parent
    runs = {
        real(run): run
        for folder in reversed(folders)
        for run in reversed(runs_below(folder))
    }
    topmost = sorted(
        run for path, run in runs.items() if runs.keys().isdisjoint(path.parents)
    )
    tables = [file for file in files if file.suffix == PARQUET]
    if topmost:
        others = [
            table for table in tables if runs.keys().isdisjoint(real(table).parents)
        ]
        if others:
            pair = f"runs ({topmost[0]} …) and Parquet files outside of them ({others[0]} …)"
            raise InputError(f"{source} matches {pair}; pass the runs or the files")
        return [Part(str(run), "run", source) for run in topmost]
    if not matches:
        more = (
            "; the pattern matches nothing"
            if is_pattern(source)
            else nearest_path(path)
        )
        raise InputError(f"{source}: no such file or run{more}")
    if not files:
        holders = folders_below(
            folders[0],
            lambda folder: folder if any(folder.glob(f"*{PARQUET}")) else None,
        )
        raise InputError(
            f"{source} is not a run, and contains none: it has no {manifest.NAME}; to read Parquet files without a "
            f"manifest, pass a pattern ({next(holders, folders[0])}/*{PARQUET})"
        )
    if not tables and files[0].suffix in _TEXT_FORMATS:
        raise InputError(
            f"{files[0]}: expected a Parquet file; convert it (docs/how_to.md, “Import rollouts”)"
        )
    return [Part(str(file), "file", source) for file in tables or files]
