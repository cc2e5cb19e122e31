"""Where the files of a run are, and which runs a folder means.

    RUN/manifest.jsonl                  the committed shards
    RUN/.lock, RUN/.hgpo-*.tmp          the writer's lock, and scratch folders
    RUN/steps/steps-000000.parquet …    the shards, and nothing else

Only shards are in `steps/`, because Polars rejects a folder with other files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from hgpo_datasets import manifest
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

STEPS: Final = "steps"
"""Name of the folder of a run's shards."""
MOST_FOLDERS: Final = 100_000
"""Largest number of folders that are searched for runs."""


def real(path: Path) -> Path:
    """Return the path without links. Unlike `Path.resolve`, this does not raise for links that form a loop."""
    return Path(os.path.realpath(path))


def is_run(folder: Path) -> bool:
    """Return whether a folder contains a manifest."""
    return os.path.lexists(folder / manifest.NAME)


def run_at(folder: Path) -> Path | None:
    """Return the run that a folder means: the folder, or its parent if it is `steps/`; None for other folders."""
    return folder if is_run(folder) else run_with_steps(folder)


def run_of_file(file: Path) -> Path | None:
    """Return the run whose shards are in the file's folder, or None."""
    return run_with_steps(file.parent)


def run_with_steps(folder: Path) -> Path | None:
    """Return the run whose `steps/` the folder is, or None."""
    if is_run(folder):
        return None
    for steps in (folder, real(folder)):  # the real path has a parent, also for "." and for links
        if steps.name == STEPS and is_run(steps.parent):
            return steps.parent
    return None


def folders_below(folder: Path, choose: Callable[[Path], T | None]) -> Iterator[T]:
    """Search a folder and its subfolders for the topmost folders of a kind, in the order of their names.

    Hidden folders, which include scratch folders, are skipped. Links to folders are followed once.

    Args:
        folder: The folder.
        choose: Returns a value for a folder of this kind, which is then not searched, and None for other folders.

    Yields:
        The values.

    Raises:
        InputError: There are too many folders to search, or the folder cannot be read.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        if (value := choose(here)) is not None:
            yield value
            continue
        try:
            status = here.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            inside = sorted((path for path in here.iterdir() if path.name[:1] != "."), reverse=True)
        except OSError as error:
            if here == folder:
                raise InputError(f"{folder} cannot be read: {error.strerror}") from error
            continue
        if len(seen) > MOST_FOLDERS:
            raise InputError(f"{folder} contains more than {MOST_FOLDERS:,} folders; pass the runs in it")
        waiting += [path for path in inside if path.is_dir()]


def runs_below(folder: Path) -> list[Path]:
    """Return the runs that a folder means or contains at any depth. Runs inside other runs are left out.

    Raises:
        InputError: See `folders_below`.
    """
    return list(folders_below(folder, run_at))


def is_inside(run: Path, others: set[Path]) -> bool:
    """Return whether a run is in the folder of another run, for example the evaluation of a training run.

    Args:
        run: A run.
        others: Paths of runs as from `real`.
    """
    place = real(run)
    owners = (run_at(parent) for parent in place.parents)
    return any(owner is not None and owner != place and real(owner) in others for owner in owners)
