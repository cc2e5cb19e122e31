"""The folder of a training run: which file means what, and where an interrupted run resumes.

    RUN/config.toml             all settings after all overrides; `hgpo train --resume` reads it
    RUN/manifest.jsonl          the committed shards, and what the run was started with: its settings, and fingerprints
                                of the tasks, the prompt template and the model
    RUN/steps/                  collect: the rollouts; `iteration` is the number of iterations trained before
    RUN/scores/000012.parquet   score: of iteration 12, if its estimator or its loss reads scores
    RUN/advantages/000012.parquet   estimate: the advantages that iteration 12 is trained on
    RUN/checkpoints/000012/     update: weights, optimiser and progress after 12 iterations
    RUN/evaluation/             evaluate: the step table of held-out tasks, with `iteration` as in steps/
    RUN/metrics.jsonl           one line per iteration, written before its checkpoint

A run resumes from its newest valid checkpoint, by one rule: the stages of the next iteration are run in order, and one
whose output is there reads it. The lines of metrics of iterations after the checkpoint are written again. All random
numbers are derived from the seed and the iteration, so on a CPU the weights are those of an uninterrupted run.
docs/run_folder.md says how to repair each.
"""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import StepWriter, manifest, scan_steps
from hgpo_datasets.reader import step_files
from hgpo_datasets.sources import is_run
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import (
    make_folder,
    refuse_link,
    remove_abandoned,
    write_file,
)
from hgpo_envs.files.sealed import seal
from hgpo_train.advantages.advantage_tables import FOLDER as ADVANTAGES
from hgpo_train.models.checkpoint_files import list_checkpoints
from hgpo_train.scores.tables import FOLDER as SCORES
from hgpo_train.settings import MAY_CHANGE, to_toml
from hgpo_train.training.config import Config
from hgpo_train.training.tracking import METRICS, read_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hgpo_train.training.config import SftConfig

CONFIG: Final = "config.toml"
CHECKPOINTS: Final = "checkpoints"
EVALUATION: Final = "evaluation"
FOLDERS: Final = (CHECKPOINTS, ADVANTAGES, SCORES, EVALUATION, "tensorboard")
"""The folders in which training writes, besides that of the step table."""


def check_new(
    folder: Path,
    *,
    resume: bool,
    from_table: bool = False,
) -> None:
    """Raise `InputError` if a folder contains a run, unless it is to be resumed, with tables (--steps) or without."""
    header = manifest.read(folder).header if is_run(folder) else None
    if header is not None and not resume:
        raise InputError(
            f"{folder} already contains a run; resume it with --resume, or choose another --out"
        )
    # The other commands also store the environment or the demonstrations.
    is_of_table = header is not None and header.config.keys() == {"model", "training"}
    if is_of_table and not from_table:
        raise InputError(
            f"{folder} was trained on saved tables; resume it with --steps and --advantages, or choose another --out"
        )


def open_run(
    folder: Path,
    config: Config | SftConfig,
    inputs: Mapping[str, Any],
) -> StepWriter:
    """Open a training run's folder, locked until the writer of its step table is closed.

    Args:
        folder: The folder; created if it is missing.
        config: The run's configuration.
        inputs: What the configuration refers to by name: tasks, prompt template, model.

    Raises:
        InputError: Another process has the run open, or the folder contains a run with other settings or inputs. Its
            files are then unchanged.
    """
    for name in FOLDERS:
        refuse_link(folder / name)
    # first, so that a run that is killed before its engine has started can be resumed
    if not is_run(folder):
        make_folder(folder)
        write_config(folder, config)
    writer = StepWriter(folder, config={**inputs, "training": fixed_settings(config)})
    for name in (CHECKPOINTS, ADVANTAGES, SCORES):
        remove_abandoned(folder / name)
    return writer


def write_config(folder: Path, config: Config | SftConfig) -> None:
    """Store a run's settings, without secrets."""
    write_file(folder / CONFIG, seal(to_toml(config).encode()))


def fixed_settings(config: Config | SftConfig) -> dict[str, Any]:
    """Return the settings that a run is resumed with unchanged, by `section.field`.

    These are all but the fields marked with `MAY_CHANGE`. The length of the training may change, too, unless the
    learning rate falls to 0 by its end.
    """
    stored = asdict(config)
    fixed: dict[str, Any] = {}
    for section in fields(config):
        settings = getattr(config, section.name)
        if not is_dataclass(settings):
            if section.metadata != MAY_CHANGE:
                fixed[section.name] = stored[section.name]
            continue
        for each in fields(settings):
            if each.metadata != MAY_CHANGE:
                fixed[f"{section.name}.{each.name}"] = stored[section.name][each.name]
    length = "iterations" if isinstance(config, Config) else "update.epochs"
    if config.optimiser.schedule == "constant":
        del fixed[length]
    return fixed


def describe_interrupted(folder: Path) -> str:
    """Return what an interrupted run has kept, and what is repeated when it is resumed, as sentences."""
    checkpoints = list_checkpoints(folder / CHECKPOINTS)
    saved = int(checkpoints[-1].name) if checkpoints else 0
    trained = max(
        (line["iteration"] for line in read_metrics(folder / METRICS)), default=0
    )
    running = max(saved, trained)

    steps = folder / "steps"
    kept = 0
    if steps.is_dir() and step_files(steps):
        # its number in the table, from 0
        here = scan_steps(steps).filter(pl.col("iteration") == running)
        kept = here.select("trajectory", "group", "task_id").unique().collect().height

    checkpoint = f"checkpoint {saved}, " if saved else ""
    updates = (
        f"the updates of iterations {saved + 1} to {running} from their rollouts, and "
        if running > saved
        else ""
    )
    return (
        f"Kept: {checkpoint}the rollouts of finished groups, {kept} of iteration {running + 1}. Resuming repeats "
        f"{updates}the rest of iteration {running + 1}."
    )
