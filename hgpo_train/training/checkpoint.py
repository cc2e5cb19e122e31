"""Checkpoints: complete or absent, safetensors only, and readable by Transformers and vLLM as they are.

What is in one, and how it is verified: `hgpo_train.models.checkpoint_files`.
"""

from __future__ import annotations

import errno
import os
import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hgpo_envs.atomic import new_folder, remove_folder
from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import (
    OPTIMISER,
    CheckpointWarning,
    TrainingState,
    is_removable,
    list_checkpoints,
    read_state,
    rename_damaged,
    write_manifest,
    write_state,
)
from hgpo_train.models.hf import no_progress_bars
from hgpo_train.training.update.optimiser import optimiser_tensors, restore_optimiser

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch
    from torch import Tensor

    from hgpo_train.models.hf import Model, Tokenizer


def save_checkpoint(
    folder: Path,
    state: TrainingState,
    model: Model,
    tokenizer: Tokenizer,
    optimiser: torch.optim.Optimizer,
    *,
    keep: int = 0,
) -> Path:
    """Writes a checkpoint and removes all but the newest ones.

    A checkpoint of the same iteration is replaced. Whatever else has its name is renamed (`rename_damaged`), and
    folders that hold something else than a checkpoint are never removed.

    Args:
        folder: Of all checkpoints.
        state: How far the run is.
        model: Bare, or wrapped by peft: then its adapters are saved.
        tokenizer: Saved beside it.
        optimiser: Its state is saved by parameter.
        keep: How many to keep; 0 keeps all.

    Returns:
        The checkpoint's folder.

    Raises:
        OSError: The disk is full, or the folder cannot be written. The checkpoints are as before.
    """
    target = folder / f"{state.iteration:06d}"
    if os.path.lexists(target) and not is_removable(target):
        kept = rename_damaged(target)
        warnings.warn(f"{target} is no checkpoint of this run; renamed to {kept.name}", CheckpointWarning, stacklevel=2)
    with new_folder(target, replace=is_removable) as made:
        (made / OPTIMISER).parent.mkdir()
        try:
            with no_progress_bars():
                model.save_pretrained(made)
            tokenizer.save_pretrained(made)
            save_file(optimiser_tensors(model, optimiser), made / OPTIMISER)
        except Exception as error:  # safetensors and tokenizers hide errors of the operating system in their own
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is not None and not isinstance(error, OSError):
                raise OSError(int(number[1]), os.strerror(int(number[1])), str(target)) from error
            if isinstance(error, SafetensorError):
                raise OSError(errno.EIO, str(error), str(target)) from error
            raise
        write_state(made, state)
        write_manifest(made)
    remove_superseded(folder, target, keep)
    return target


def remove_superseded(folder: Path, current: Path, keep: int) -> None:
    """Removes all but the newest checkpoints.

    A run that is resumed does this, too: its process may have been killed between saving and removing.

    Args:
        folder: Of all checkpoints.
        current: The checkpoint that was just saved or loaded; it stays.
        keep: How many to keep; 0 keeps all.

    Raises:
        OSError: The folder cannot be written.
    """
    for old in [path for path in list_checkpoints(folder) if is_removable(path)][:-keep] if keep else []:
        if old != current:
            remove_folder(old)


def load_checkpoint(folder: Path, model: Model, optimiser: torch.optim.Optimizer) -> TrainingState:
    """Puts a checkpoint's weights and moments into a model and an optimiser of the same shapes.

    Its files are not verified here: `hgpo_train.models.checkpoint_files.checkpoint_to_resume` does it.

    Raises:
        InputError: The checkpoint is of another model.
    """
    load_weights(folder, model)
    restore_optimiser(model, optimiser, load_file(folder / OPTIMISER))
    return read_state(folder)


def load_weights(folder: Path, model: Model) -> None:
    """Puts a checkpoint's weights into a model (or its adapters) of the same shapes.

    Raises:
        InputError: The checkpoint is of another model.
    """
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    if not tensors:
        raise InputError(f"{folder} holds no weights (*.safetensors); expected a checkpoint of hgpo train or hgpo sft")
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        _check_same(folder, tensors, get_peft_model_state_dict(model))
        set_peft_model_state_dict(model, tensors)
        return
    own = model.state_dict()
    tied = {name for name in own if name not in tensors and name in (getattr(model, "_tied_weights_keys", None) or {})}
    _check_same(folder, tensors, {name: value for name, value in own.items() if name not in tied})
    model.load_state_dict(tensors, strict=False)


def _check_same(folder: Path, saved: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    if odd := sorted(saved.keys() ^ expected.keys()):
        where = "the checkpoint" if odd[0] in saved else "the model"
        raise InputError(f"{folder} is a checkpoint of another model: only {where} has {odd[0]!r}; check model.path")
    for name, value in saved.items():
        if value.shape != expected[name].shape:
            raise InputError(
                f"{folder} is a checkpoint of another model: {name!r} is {list(value.shape)} there, "
                f"{list(expected[name].shape)} in the model; check model.path"
            )


def resumed_state(stored: TrainingState, now: TrainingState) -> TrainingState:
    """The state of a run that is resumed, with the versions of today; warns if they are others than they were."""
    for name, version in now.versions.items():
        if (was := stored.versions.get(name, version)) != version:
            warnings.warn(
                f"the run was computed with {name} {was} until now, and is resumed with {version}: results may differ",
                CheckpointWarning,
                stacklevel=3,
            )
    return replace(stored, versions=now.versions, run=now.run)


def versions(names: Iterable[str] = ("hgpo", "torch", "transformers", "peft", "polars")) -> dict[str, str]:
    """The installed versions of packages."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
