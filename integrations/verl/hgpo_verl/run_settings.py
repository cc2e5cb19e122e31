"""HGPO's part of verl's configuration: the section `hgpo` of a launch file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_train.policies.generation import generation_options
from hgpo_train.settings import build
from hgpo_train.training.config import Config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hgpo_train.policies.generation import GenerationOptions

TRAINING: Final = "training"
EVALUATION: Final = "evaluation"
"""What a split's tasks are for: `data.train_files` is ``training:SPLIT``, `data.val_files` ``evaluation:SPLIT``."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the agent loop, the data set and the trainer read.

    Attributes:
        folder: The run's folder, for step tables and checkpoints.
        config: The configuration of the run.
    """

    folder: Path
    config: Config

    @property
    def generation(self) -> GenerationOptions:
        """Options of tokenization."""
        return generation_options(self.config.rollout)


def read_settings(section: Mapping[str, Any]) -> RunSettings:
    """Read the section `hgpo` of verl's configuration.

    Args:
        section: The section as plain dictionaries and lists.

    Raises:
        InputError: A value of the configuration is unknown or out of range.
    """
    return RunSettings(Path(section["folder"]), build(Config, section["configuration"]))
