"""The runs and files that a source means: a run, a folder of runs, a file, a pattern, a URL, or several of these."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hgpo_datasets import manifest, reading
from hgpo_datasets.run_paths import folders_below, is_inside, real, run_of_file, runs_below
from hgpo_envs.errors import InputError
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Source = str | os.PathLike[str]

PARQUET: Final = ".parquet"
_NAMED: Final = 3
"""Number of paths that an error names."""


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


def parts_of(sources: Iterable[Source]) -> list[Part]:
    """Return the runs, files and URLs that sources mean, each once.

    Raises:
        InputError: A source does not exist, contains no runs, or contains both runs and other Parquet files.
    """
    every = [part for source in sources for part in _parts(os.fspath(source))]
    runs = {str(real(Path(part.path))) for part in every if part.kind == "run"}
    return list(_once(every, runs))


def single_run(source: Source) -> Path | None:
    """Return the run that a local source means; None for a file, a URL or several runs.

    Raises:
        InputError: See `parts_of`.
    """
    found = parts_of([source])
    return Path(found[0].path) if len(found) == 1 and found[0].kind == "run" else None


def is_pattern(source: str) -> bool:
    """Return whether a source is a glob pattern and not an existing path."""
    return "://" not in source and glob.has_magic(source) and not os.path.lexists(source)


def _once(parts: Iterable[Part], runs: set[str]) -> Iterator[Part]:
    """Yield each part once, and no files of the runs."""
    seen: set[str] = set()
    for part in parts:
        place = part.path if part.kind == "url" else str(real(Path(part.path)))
        owner = run_of_file(Path(part.path)) if part.kind == "file" and runs else None
        if place not in seen and (owner is None or str(real(owner)) not in runs):
            seen.add(place)
            yield part


def _parts(source: str) -> list[Part]:
    if "://" in source and not source.startswith("file://"):
        return [Part(source, "url", source)]
    local = source.removeprefix("file://")
    reading.check_text(Path(local))
    if is_pattern(local):
        return _matching(local)
    path = Path(local)
    if not path.is_dir():
        if not os.path.lexists(path):
            raise InputError(f"{source}: no such file or run")
        return [Part(str(path), "file", source)]
    if runs := runs_below(path):
        return [Part(str(run), "run", source) for run in runs]
    raise InputError(f"{path} is not a run, and contains none: it has no {manifest.NAME}; {_content_of(path)}")


def _matching(pattern: str) -> list[Part]:
    """Return the runs at or below the matching folders, or the matching files."""
    # glob.glob, because Path.glob accepts no absolute patterns
    matches = sorted(Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207
    for path in matches:
        reading.check_text(path)
    folders = [path for path in matches if path.is_dir()]
    files = [path for path in matches if path not in set(folders)]
    # a folder can be matched in several ways, for example by its own name and through its parent
    found = {real(run): run for folder in reversed(folders) for run in reversed(runs_below(folder))}
    runs = sorted(run for run in found.values() if not is_inside(run, set(found)))
    tables = [path for path in files if path.suffix == PARQUET]
    if runs:
        _check_no_others(pattern, runs, tables)
        return [Part(str(run), "run", pattern) for run in runs]
    if not tables and (folders or not files):
        what = f"{counted(len(folders), 'folder')} without runs" if folders else "nothing"
        raise InputError(f"{pattern}: no such file or run; the pattern matches {what}")
    return [Part(str(path), "file", pattern) for path in tables or files]


def _check_no_others(pattern: str, runs: Sequence[Path], tables: Sequence[Path]) -> None:
    """Raise if there are Parquet files that are no shards of the runs, nor of runs inside them."""
    places = {real(run) for run in runs}
    owners = {path: run_of_file(path) for path in tables}
    others = [
        path
        for path, owner in owners.items()
        if owner is None or (real(owner) not in places and not is_inside(owner, places))
    ]
    if others:
        raise InputError(
            f"{pattern} matches {counted(len(runs), 'run')} ({_named(runs)}) and "
            f"{counted(len(others), 'Parquet file')} outside of them ({_named(others)}); pass the runs or the files"
        )


def _named(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(map(str, paths[:_NAMED])) + more


def _content_of(folder: Path) -> str:
    """Describe a folder without runs, for an error."""
    places = list(folders_below(folder, lambda place: place if any(place.glob(f"*{PARQUET}")) else None))
    if not places:
        return f"found {counted(sum(1 for _ in folder.iterdir()), 'other entry', 'other entries')}"
    tables = counted(sum(1 for place in places for _ in place.glob(f"*{PARQUET}")), "Parquet file")
    more = f" and {counted(len(places) - 1, 'more folder')}" if len(places) > 1 else ""
    hint = f"to read Parquet files without a manifest, pass a pattern ({places[0]}/*{PARQUET})"
    return f"found {tables} in {places[0]}{more}; {hint}"


def describe_empty(parts: Sequence[Part], given: Sequence[Source]) -> str:
    """Return the error for sources whose runs have no committed rows."""
    names = ", ".join(map(str, given)) or "an empty list"
    runs = [part for part in parts if part.kind == "run"]
    if len(runs) <= 1:
        return f"no committed rows in {names}"
    return f"no committed rows in {names}: found {len(runs)} runs, none of them with committed rows"
