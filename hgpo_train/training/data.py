"""The environment of a configuration and its tasks: bundled, the benchmark's own on this machine, or at a path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.errors import InputError
from hgpo_envs.listing import official_data
from hgpo_train.rollout.env_handle import open_env

if TYPE_CHECKING:
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.training.config import Config, EnvironmentConfig


def env_options(config: Config, split: str) -> dict[str, Any]:
    """Return the keyword arguments of ``gymnasium.make`` for the configured environment and one of its splits.

    Raises:
        InputError: The official data is not there. The error names what downloads it.
    """
    environment = config.environment
    options = {"split": split, **environment.episode_options()}
    if environment.data not in {"bundled", "official"}:
        options["data"] = environment.data
    options |= environment.options
    if environment.data == "official" and "data" not in environment.options:
        options["data"] = _official_data(environment)
    return options


def _official_data(environment: EnvironmentConfig) -> str:
    spec = environment_spec(environment.id)
    path, searched = official_data(spec, environment.split)
    if path is not None:
        return path
    command = f"get them with `{spec.data_command}`, or " if spec.data_command else ""
    raise InputError(
        f"environment.data = official: the official tasks of {spec.name} are not on this machine (searched: "
        f"{', '.join(searched) or 'no places'}); {command}set environment.data to their path, or to bundled"
    )


def open_training_env(config: Config, split: str) -> EnvHandle:
    """Open the configured environment for one of its splits.

    Raises:
        InputError: The environment, its options, its data or its prompt template cannot be used.
    """
    return open_env(config.environment.id, **env_options(config, split))
