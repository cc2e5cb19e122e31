"""Where the files of a run are, and which runs a folder means.

    RUN/manifest.jsonl                  the committed shards
    RUN/.lock, RUN/.hgpo-*.tmp          the writer's lock, and scratch folders
    RUN/steps/steps-000000.parquet …    the shards, and nothing else

Runs of the first version have their shards beside the manifest. Their training runs contain the step table as a run of
its own, `TRAINING/steps`.
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
_TRAINING: Final = "config.toml"
"""A file in every training run's folder."""
MOST_FOLDERS: Final = 100_000
"""Largest number of folders that are searched for runs."""


def real(path: Path) -> Path:
    """Return the path without links. Unlike `Path.resolve`, this does not raise for links that form a loop."""
    return Path(os.path.realpath(path))


def is_run(folder: Path) -> bool:
    """Return whether a folder contains a manifest."""
    return os.path.lexists(folder / manifest.NAME)


def shard_folder(run: Path) -> Path:
    """Return the folder of a run's shards: `steps/`, or the run's folder for runs of the first version."""
    steps = run / STEPS
    return steps if steps.is_dir() and not is_run(steps) else run


def run_at(folder: Path) -> Path | None:
    """Return the run that a folder means: the folder, its parent if it is `steps/`, or a training run's step table.

    Returns:
        The folder with the manifest, or None. Runs further below are not searched.
    """
    if is_run(folder):
        return folder
    if (owner := run_with_steps(folder)) is not None:
        return owner
    steps = folder / STEPS
    # a run of the present layout that happens to be named "steps" is not a training run's table
    is_table = is_run(steps) and (shard_folder(steps) == steps or os.path.lexists(folder / _TRAINING))
    return steps if is_table else None


def run_of_file(file: Path) -> Path | None:
    """Return the run whose shards are in the file's folder, or None."""
    place = file.parent
    return place if is_run(place) and shard_folder(place) == place else run_with_steps(place)


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
