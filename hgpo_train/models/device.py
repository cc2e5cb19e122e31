"""The device that a model computes on."""

from __future__ import annotations

from typing import Final

import torch

from hgpo_envs.errors import InputError

_DRIVERS: Final = {"11": "450 or newer", "12": "525 or newer", "13": "580 or newer"}
"""The NVIDIA driver for Linux that a major version of CUDA needs (its release notes: minor version compatibility)."""


def choose_device(name: str) -> torch.device:
    """Return the named device; ``auto`` selects an accelerator if one is available.

    Raises:
        InputError: The device does not exist or cannot be used.
    """
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            raise InputError(
                f"the device {name!r} cannot be used here: {str(error).splitlines()[0]}"
            ) from error
    accelerator = (
        torch.accelerator.current_accelerator()
        if torch.accelerator.is_available()
        else None
    )
    return accelerator or torch.device("cpu")


def why_no_gpu() -> str:
    """Return why torch has no CUDA device, and what to do about it."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is not built for CUDA: install a build that is (https://pytorch.org)"
    version = torch.version.cuda
    driver = _DRIVERS.get(version.partition(".")[0], "of a newer version")
    return f"torch {torch.__version__} finds no GPU; CUDA {version} needs an NVIDIA driver {driver} (see nvidia-smi)"
