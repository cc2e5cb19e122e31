"""Saving and loading checkpoints.

A checkpoint is written atomically, contains only safetensors, JSON and tokenizer files, and can be loaded by
Transformers and vLLM directly. `hgpo_train.models.checkpoint_files` lists its files and verifies them.
"""

from __future__ import annotations

import errno
import os
import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder, remove_folder
from hgpo_envs.plugins import installed_version
from hgpo_train.models.checkpoint_files import (
    OPTIMISER,
    CheckpointWarning,
    TrainingState,
    is_removable,
    list_checkpoints,
    read_state,
    remove_optimiser,
    rename_damaged,
    write_manifest,
    write_state,
)
from hgpo_train.models.hf import no_progress_bars
from hgpo_train.training.update.optimiser import optimiser_tensors, restore_optimiser

if TYPE_CHECKING:
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
    moments: Literal["all", "last"] = "all",
) -> Path:
    """Write a checkpoint and remove all but the newest `keep` checkpoints.

    A checkpoint of the same iteration is replaced. Any other file or folder of that name is renamed
    (`rename_damaged`). Folders that are not checkpoints are never removed.

    Args:
        folder: The folder that contains all checkpoints of the run.
        state: The run's progress.
        model: A bare model, or one wrapped by peft, of which only the adapters are saved.
        tokenizer: The model's tokenizer, saved in the same folder.
        optimiser: The optimiser, whose state is saved by parameter.
        keep: Number of checkpoints to keep; 0 keeps all.
        moments: Which checkpoints keep the optimiser's state. Those without it cannot be resumed from.

    Returns:
        The checkpoint's folder.

    Raises:
        OSError: The disk is full, or the folder cannot be written. Existing checkpoints are unchanged.
    """
    target = folder / f"{state.iteration:06d}"
    if os.path.lexists(target) and not is_removable(target):
        message = f"{target} is not a checkpoint of this run; renamed to {rename_damaged(target).name}"
        warnings.warn(message, CheckpointWarning, stacklevel=2)
    with new_folder(target, replace=is_removable) as scratch:
        (scratch / OPTIMISER).parent.mkdir()
        try:
            with no_progress_bars():
                model.save_pretrained(scratch)
            tokenizer.save_pretrained(scratch)
            save_file(optimiser_tensors(model, optimiser), scratch / OPTIMISER)
        except Exception as error:  # safetensors and tokenizers wrap operating system errors in their own types
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is not None and not isinstance(error, OSError):
                raise OSError(int(number[1]), os.strerror(int(number[1])), str(target)) from error
            if isinstance(error, SafetensorError):
                raise OSError(errno.EIO, str(error), str(target)) from error
            raise
        write_state(scratch, state)
        write_manifest(scratch)
    remove_superseded(folder, target, keep, moments)
    return target


def remove_superseded(folder: Path, current: Path, keep: int, moments: Literal["all", "last"] = "all") -> None:
    """Remove all but the newest `keep` checkpoints, and the optimiser's state of those that need none.

    A resumed run calls this as well, because its process may have been killed between saving and removing.

    Args:
        folder: The folder that contains all checkpoints of the run.
        current: The checkpoint that was just saved or loaded; it is never removed.
        keep: Number of checkpoints to keep; 0 keeps all.
        moments: Which checkpoints keep the optimiser's state.

    Raises:
        OSError: The folder cannot be written.
    """
    own = [path for path in list_checkpoints(folder) if is_removable(path)]
    superseded = own[:-keep] if keep else []
    for old in (path for path in own if path != current):
        if old in superseded:
            remove_folder(old)
        elif moments == "last":
            remove_optimiser(old)


def load_checkpoint(folder: Path, model: Model, optimiser: torch.optim.Optimizer) -> TrainingState:
    """Load a checkpoint's weights and moments into a model and an optimiser of the same shapes.

    The files are not verified here; `hgpo_train.models.checkpoint_files.checkpoint_to_resume` verifies them.

    Raises:
        InputError: The checkpoint belongs to another model.
    """
    load_weights(folder, model)
    restore_optimiser(model, optimiser, load_file(folder / OPTIMISER))
    return read_state(folder)


def load_weights(folder: Path, model: Model) -> None:
    """Load a checkpoint's weights into a model, or into its adapters, of the same shapes.

    Raises:
        InputError: The checkpoint belongs to another model, or contains no weights.
    """
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    if not tensors:
        raise InputError(
            f"{folder} contains no weights (*.safetensors); expected a checkpoint of hgpo train or hgpo sft"
        )
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        _check_same(folder, tensors, get_peft_model_state_dict(model))
        set_peft_model_state_dict(model, tensors)
        return
    own = model.state_dict()
    # Transformers saves tied weights once, under the name of one of the parameters.
    tied = {name for name in own if name not in tensors and name in (getattr(model, "_tied_weights_keys", None) or {})}
    _check_same(folder, tensors, {name: value for name, value in own.items() if name not in tied})
    model.load_state_dict(tensors, strict=False)


def _check_same(folder: Path, saved: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    if odd := sorted(saved.keys() ^ expected.keys()):
        where = "the checkpoint" if odd[0] in saved else "the model"
        raise InputError(f"{folder} belongs to another model: only {where} has {odd[0]!r}; check model.path")
    for name, value in saved.items():
        if value.shape != expected[name].shape:
            raise InputError(
                f"{folder} belongs to another model: expected {name!r} of shape {list(expected[name].shape)}, received "
                f"{list(value.shape)}; check model.path"
            )


def resumed_state(stored: TrainingState, now: TrainingState) -> TrainingState:
    """Return the stored state with the installed versions and run id; warn about each version that has changed."""
    for name, version in now.versions.items():
        if (was := stored.versions.get(name, version)) != version:
            warnings.warn(
                f"the run was computed with {name} {was} and is resumed with {version}: results may differ",
                CheckpointWarning,
                stacklevel=3,
            )
    return replace(stored, versions=now.versions, run=now.run)


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect the weights, or "not installed"."""
    names = ("hgpo", "torch", "transformers", "peft", "polars")
    return {name: installed_version(name) or "not installed" for name in names}
