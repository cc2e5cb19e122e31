"""Verification of everything that this package writes: step tables, checkpoints and training runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import hgpo_datasets
from hgpo_datasets import VerifyReport
from hgpo_datasets.manifest import NAME
from hgpo_datasets.row_tables import verify_tables
from hgpo_datasets.sources import (
    PARQUET,
    STEPS,
    folders_below,
    is_pattern,
    matching,
    run_at,
)
from hgpo_envs.errors import InputError
from hgpo_envs.files.sealed import is_sealed
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.advantages.advantage_tables import FOLDER as ADVANTAGES
from hgpo_train.models.checkpoint_files import (
    MANIFEST,
    STATE,
    list_checkpoints,
    verify_checkpoint,
)
from hgpo_train.scores.tables import FOLDER as SCORES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TRAINING: Final = ("checkpoints", "metrics.jsonl", "config.toml")
_SEALED: Final = (
    "config.toml",
    "metrics.jsonl",
    "sessions.json",
    "summary.json",
    "certificate.json",
)
_LARGEST: Final = 4 << 30
"""Size limit of these files in bytes."""


def verify_run(path: Path, processes: int | None = 1) -> Iterator[VerifyReport]:
    """Verify everything at a path and yield a report of each part.

    Args:
        path: A step table or one of its files, a checkpoint, a training run's folder, a folder that contains any of
            these at any depth, or a glob pattern. Of a training run, the step tables, checkpoints, configuration
            and metrics are verified.
        processes: As in `hgpo_datasets.verify`.

    Raises:
        InputError: The path does not exist or contains none of these.
    """
    paths = [path]
    if is_pattern(str(path)):
        paths = [
            match
            for match in matching(str(path))
            if match.is_dir() or match.suffix == PARQUET
        ]
    parts: dict[Path, Path] = {}  # each once
    for each in paths:
        for part in folders_below(each, _part) if each.is_dir() else [each]:
            parts.setdefault(part.resolve(), part)
    topmost = [
        part for real, part in parts.items() if parts.keys().isdisjoint(real.parents)
    ]
    # a path without parts is an error, which names what is there
    for part in topmost or [path]:
        if _has(part, MANIFEST, STATE):
            yield verify_checkpoint(part)
        elif _has(part, *_TRAINING):
            for folder in (part, part / "evaluation"):
                yield from _verify_stage(folder, processes)
            yield from map(verify_checkpoint, list_checkpoints(part / "checkpoints"))
        else:
            yield _verify_files(part, hgpo_datasets.verify(part, processes=processes))


def _verify_stage(folder: Path, processes: int | None) -> Iterator[VerifyReport]:
    """Verify the files of a training run, or of its evaluations, which may be missing, but for its checkpoints."""
    run = run_at(folder)
    if run is not None:
        yield _verify_files(folder, hgpo_datasets.verify(run, processes=processes))
    elif folder.is_dir():
        report = VerifyReport(str(folder))
        # without its manifest, a step table looks like none
        if os.path.lexists(folder / STEPS):
            report.add("missing", folder / NAME, f"missing, but there is {STEPS}/")
        yield _verify_files(folder, report)


def _part(folder: Path) -> Path | None:
    return (
        folder
        if _has(folder, MANIFEST, STATE, *_TRAINING) or run_at(folder) is not None
        else None
    )


def _has(folder: Path, *names: str) -> bool:
    return any(os.path.lexists(folder / name) for name in names)


def _verify_files(folder: Path, report: VerifyReport) -> VerifyReport:
    """Verify a run's files other than its step table and checkpoints, which have their checks inside."""
    for name in (SCORES, ADVANTAGES):
        verify_tables(folder, name, report)
    for name in _SEALED:
        path = folder / name
        if not os.path.lexists(path):
            continue
        try:
            data = read_bytes(path, _LARGEST)
        except InputError as error:
            report.add("unreadable", path, str(error))
            continue
        report.files += 1
        report.bytes += len(data)
        parts = [data]
        if name.endswith(".jsonl"):
            *lines, rest = data.split(b"\n")
            parts = [line + b"\n" for line in lines]
            # After a kill the rest is the beginning of a line. A whole line there has a line end that was changed.
            if is_sealed(rest[:-1] + b"\n"):
                parts.append(rest)
        for number, part in enumerate(parts, 1):
            if not is_sealed(part):
                report.add(
                    "bytes",
                    path,
                    f"line {number} of {len(parts)} has another check: it was changed",
                )
    return report
