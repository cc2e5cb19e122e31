"""A training run's folder: that of a run of rollouts (`hgpo_datasets.StepWriter`), with a configuration."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets import StepWriter, manifest
from hgpo_datasets.sources import is_run
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import make_folder, refuse_link, remove_abandoned, write_file
from hgpo_envs.files.sealed import seal
from hgpo_envs.files.secrets import redact_json
from hgpo_train.settings import build, to_toml

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from hgpo_train.training.config import Config, SftConfig

CONFIG: Final = "config.toml"
FOLDERS: Final = ("checkpoints", "advantages", "scores", "evaluation", "tensorboard")
"""The folders in which training writes, besides that of the step table."""
FREE: Final = frozenset(
    {
        "tracking",
        "update.micro_batch_tokens",
        "update.logit_chunk",
        "update.gap_warning",
        "model.device",
        "model.gradient_checkpointing",
        "model.compile",
    }
)
"""Settings that may change when a run is resumed; they affect the weights only by rounding."""


def check_new(folder: Path, *, resume: bool, alone: bool = False) -> None:
    """Raise `InputError` if a folder contains a run, unless it is to be resumed, as updates alone (--steps) or not."""
    header = manifest.read(folder).header if is_run(folder) else None
    if header is not None and not resume:
        raise InputError(f"{folder} already contains a run; resume it with --resume, or choose another --out")
    if header is not None and header.config.keys() == {"model", "training"} and not alone:
        raise InputError(
            f"{folder} has updates alone; resume it with --steps and --advantages, or choose another --out"
        )


def open_run(folder: Path, config: Config | SftConfig, inputs: Mapping[str, Any], free: Collection[str]) -> StepWriter:
    """Open a training run's folder, locked until the writer of its step table is closed.

    Args:
        folder: The folder; created if it is missing.
        config: The run's configuration.
        inputs: What the configuration refers to by name: tasks, prompt template, model.
        free: Settings (`section` or `section.field`) that may change when a run is resumed.

    Raises:
        InputError: Another process has the run open, or the folder contains a run with other settings or inputs. Its
            files are then unchanged.
    """
    for name in FOLDERS:
        refuse_link(folder / name)
    if not is_run(folder):  # first, so that a run that is killed before its engine has started can be resumed
        make_folder(folder)
        write_config(folder, config)
    writer = StepWriter(folder, run=config.name, config={**inputs, "training": fixed_values(config, free)})
    remove_abandoned(folder / "checkpoints")
    return writer


def write_config(folder: Path, config: Config | SftConfig) -> None:
    """Store a run's settings, without secrets."""
    write_file(folder / CONFIG, seal(to_toml(without_secrets(config)).encode()))


def without_secrets(config: Config | SftConfig) -> Config | SftConfig:
    """Return a configuration as it is stored and printed."""
    return build(type(config), redact_json(asdict(config)))


def fixed_values(config: Config | SftConfig, free: Collection[str]) -> dict[str, Any]:
    """Return all settings except the free ones, by `section.field`."""
    values: dict[str, Any] = {}
    for section, value in asdict(config).items():
        fields = {f"{section}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {}
        values |= {
            name: item
            for name, item in (fields or {section: value}).items()
            if section not in free and name not in free
        }
    return values
