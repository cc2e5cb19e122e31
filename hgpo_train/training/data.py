"""Which set of tasks a configuration means: the bundled one, the benchmark's own on this machine, or a path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.errors import InputError
from hgpo_envs.listing import official_data

if TYPE_CHECKING:
    from hgpo_train.training.config import EnvironmentConfig

BUNDLED: Final = "bundled"
OFFICIAL: Final = "official"


def data_options(environment: EnvironmentConfig) -> dict[str, Any]:
    """Return the keyword arguments of ``gymnasium.make``, with `data` as `environment.data` selects it.

    Raises:
        InputError: The official data is not on this machine. The error names the command that downloads it.
    """
    options = dict(environment.options)
    if "data" in options or environment.data == BUNDLED:
        return options
    if environment.data != OFFICIAL:
        return {**options, "data": environment.data}
    spec = environment_spec(environment.id)
    found, looked = official_data(spec, environment.split)
    if found is not None:
        return {**options, "data": found}
    get = f"get them with `{spec.data_command}`, or " if spec.data_command else ""
    raise InputError(
        f"environment.data = {OFFICIAL}: the official tasks of {spec.name} are not on this machine (searched: "
        f"{', '.join(looked) or 'no places'}); {get}set environment.data to their path, or to {BUNDLED} for the small "
        "bundled set"
    )
