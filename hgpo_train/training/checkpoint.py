"""Saving and loading checkpoints, whose files `hgpo_train.models.checkpoint_files` describes and verifies."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import torch
from safetensors.torch import load_file, save_file

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder, remove_folder
from hgpo_envs.plugins import installed_version
from hgpo_train.models.chat_format import end_tokens
from hgpo_train.models.checkpoint_files import (
    OPTIMISER,
    STATE,
    CheckpointWarning,
    TrainingState,
    is_removable,
    list_checkpoints,
    newest_valid_checkpoint,
    read_json,
    rename_damaged,
    write_manifest,
)
from hgpo_train.models.hf import no_progress_bars
from hgpo_train.training.config import CheckpointConfig
from hgpo_train.training.update.optimiser import optimiser_tensors, restore_optimiser

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from hgpo_train.models.hf import Model, Tokenizer

KEEP_ALL: Final = CheckpointConfig(keep=0)


def save_checkpoint(
    folder: Path,
    state: TrainingState,
    model: Model,
    tokenizer: Tokenizer,
    optimiser: torch.optim.Optimizer,
    kept: CheckpointConfig = KEEP_ALL,
) -> Path:
    """Write a checkpoint and remove those that it supersedes, but never what training did not write.

    A checkpoint of the same iteration is replaced; any other file or folder of that name is renamed.

    Args:
        folder: The folder that contains all checkpoints of the run.
        state: The run's progress.
        model: A bare model, or one wrapped by peft, of which only the adapters are saved.
        tokenizer: The model's tokenizer.
        optimiser: The optimiser.
        kept: How many checkpoints are kept, and which of them keep the optimiser's state. All by default.

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
        settings = getattr(model, "generation_config", None)
        if settings is not None:
            # Other programs that generate with this model stop where rollouts do.
            ends = end_tokens(tokenizer, model)
            settings.eos_token_id = list(ends) if len(ends) > 1 else ends[0]
        try:
            with no_progress_bars():
                model.save_pretrained(scratch)
            tokenizer.save_pretrained(scratch)
            save_file(optimiser_tensors(model, optimiser), scratch / OPTIMISER)
        except Exception as error:
            # safetensors and tokenizers wrap operating system errors in their own types
            found = re.search(r"\(os error (\d+)\)", str(error))
            if found is None or isinstance(error, OSError):
                raise
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(target)) from error
        (scratch / STATE).write_bytes(
            msgspec.json.format(msgspec.json.encode(state), indent=1)
        )
        write_manifest(scratch)
    _remove_superseded(folder, target, kept, state.best)
    return target


def _remove_superseded(
    folder: Path,
    current: Path,
    kept: CheckpointConfig,
    best: int,
) -> None:
    """Remove all but the best and the newest `kept.keep` checkpoints, and the optimiser's state where it is unused."""
    checkpoints = list_checkpoints(folder)
    superseded = checkpoints[: -kept.keep] if kept.keep else []
    for old in checkpoints:
        if old == current or not is_removable(old):
            continue
        if old in superseded and int(old.name) != best:
            remove_folder(old)
        elif old in superseded or kept.optimiser == "last":
            (old / OPTIMISER).unlink(missing_ok=True)


def resume_checkpoint(
    folder: Path, model: Model, optimiser: torch.optim.Optimizer, kept: CheckpointConfig
) -> TrainingState:
    """Load the newest valid checkpoint of a run, and remove those that a killed process left behind.

    Newer checkpoints, which are damaged, are renamed. Arguments are those of `save_checkpoint`.

    Returns:
        The state to continue from; of iteration 0 if there is no checkpoint. Changed versions are warned about.

    Raises:
        InputError: As `newest_valid_checkpoint` and `load_checkpoint`.
    """
    # the packages that affect the weights
    names = ("hgpo", "torch", "transformers", "peft", "polars")
    versions = {name: installed_version(name) or "not installed" for name in names}
    newest = newest_valid_checkpoint(folder, to_resume=True)
    if newest is None:
        return TrainingState(versions=versions)
    state = load_checkpoint(newest, model, optimiser)
    for name, version in versions.items():
        before = state.versions.get(name, version)
        if before != version:
            message = f"the run was computed with {name} {before} and is resumed with {version}: results may differ"
            warnings.warn(message, CheckpointWarning, stacklevel=3)
    _remove_superseded(folder, newest, kept, state.best)
    return replace(state, versions=versions)


def load_checkpoint(
    folder: Path,
    model: Model,
    optimiser: torch.optim.Optimizer,
) -> TrainingState:
    """Load a checkpoint's weights and moments into a model, or its adapters, and an optimiser of the same shapes.

    The files are not verified here; `resume_checkpoint` does.

    Raises:
        InputError: The checkpoint belongs to another model, or contains no weights.
    """
    if not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{folder} contains no weights (*.safetensors); expected a checkpoint of hgpo train or hgpo sft"
        )
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        tensors: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(file)
        _check_same(folder, tensors, get_peft_model_state_dict(model))
        set_peft_model_state_dict(model, tensors)
    else:
        # The names in the files are those of the published model, which can be others (experts, tied layers).
        with no_progress_bars():
            saved = type(model).from_pretrained(folder, dtype=torch.float32)
        tensors = saved.state_dict()
        _check_same(folder, tensors, model.state_dict())
        model.load_state_dict(tensors)
    restore_optimiser(model, optimiser, load_file(folder / OPTIMISER))
    return read_json(folder / STATE, TrainingState)


def _check_same(
    folder: Path,
    saved: dict[str, Tensor],
    expected: dict[str, Tensor],
) -> None:
    for name in sorted(saved.keys() | expected.keys()):
        ours = list(expected[name].shape) if name in expected else "none"
        theirs = list(saved[name].shape) if name in saved else "none"
        if ours != theirs:
            raise InputError(
                f"{folder} belongs to another model: expected {name!r} of shape {ours}, received {theirs}; "
                "check model.path"
            )
