"""Verifies whatever this package leaves on disk: step tables, checkpoints, and training runs with both."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import hgpo_datasets
from hgpo_datasets import Problem, VerifyReport
from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import MANIFEST, STATE, list_checkpoints, verify_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TABLES = ("steps", "evaluation")


def verify_run(path: Path) -> Iterator[VerifyReport]:
    """Reports of everything at a path, one after the other.

    Args:
        path: A run's folder, a file of a step table, or a checkpoint. Of a training run: its step tables, its
            checkpoints, its configuration and its metrics.

    Raises:
        InputError: There is no such thing.
    """
    if any(os.path.lexists(path / name) for name in (MANIFEST, STATE)):
        yield verify_checkpoint(path)
    elif any(os.path.lexists(path / name) for name in ("checkpoints", "metrics.jsonl", "config.toml")):
        yield _verify_files(path)
        for table in _TABLES:
            if (path / table).is_dir():
                yield hgpo_datasets.verify(path / table)
        for checkpoint in list_checkpoints(path / "checkpoints"):
            yield verify_checkpoint(checkpoint)
    else:
        yield hgpo_datasets.verify(path)


def _verify_files(folder: Path) -> VerifyReport:
    """The files of a training run beside its tables and checkpoints."""
    from hgpo_train.settings import read_toml
    from hgpo_train.training.run_folder import CONFIG, ORIGIN, read_origin
    from hgpo_train.training.tracking import read_metrics

    report = VerifyReport(str(folder))
    for name, read in ((CONFIG, read_toml), ("metrics.jsonl", read_metrics), (ORIGIN, read_origin)):
        path = folder / name
        if not os.path.lexists(path):
            continue
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                read(path)
            problems = [str(one.message) for one in caught]
            report.files += 1
            report.bytes += path.stat().st_size
        except (InputError, OSError) as error:
            problems = [str(error)]
        report.problems += [Problem("bytes", str(path), problem) for problem in problems]
    return report
