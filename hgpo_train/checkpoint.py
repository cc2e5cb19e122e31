"""Checkpoints: whole or absent, safetensors only, and readable by Transformers and vLLM as they are.

    checkpoints/000010/                 after ten iterations
        model.safetensors …             save_pretrained of the model (or of its adapters), with tokenizer and settings
        trainer/optimiser.safetensors   AdamW's moments and steps by parameter; apart, because vLLM loads every
                                        *.safetensors beside the model
        trainer/state.json              how far the run is

A checkpoint is written under another name, synced, and renamed; what was not renamed is swept away at the next start.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from safetensors.torch import load_file, save_file

from hgpo_envs.atomic import sync_folder
from hgpo_envs.errors import InputError
from hgpo_train.hf import no_progress_bars
from hgpo_train.update.optimiser import optimiser_tensors, restore_optimiser

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import Tensor

    from hgpo_train.hf import Model, Tokenizer

_PART: Final = ".part"
_OPTIMISER: Final = "trainer/optimiser.safetensors"
_STATE: Final = "trainer/state.json"


@dataclass(frozen=True, slots=True)
class State:
    """How far a run is.

    Attributes:
        iteration: Iterations that are done.
        tasks_drawn: Tasks of the order that they played.
        environment_steps: Steps that were collected for training.
        versions: Versions of what computed it.
    """

    iteration: int = 0
    tasks_drawn: int = 0
    environment_steps: int = 0
    versions: dict[str, str] = field(default_factory=dict)


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints of a folder, oldest first."""
    whole = (path.parent.parent for path in folder.glob(f"[0-9]*/{_STATE}"))
    return sorted(path for path in whole if not path.name.endswith(_PART))


def save_checkpoint(
    folder: Path, state: State, model: Model, tokenizer: Tokenizer, optimiser: torch.optim.Optimizer, *, keep: int = 0
) -> Path:
    """Writes a checkpoint and removes all but the newest ones.

    Args:
        folder: Of all checkpoints.
        state: How far the run is.
        model: Bare, or wrapped by peft: then its adapters are saved.
        tokenizer: Saved beside it.
        optimiser: Its state is saved by parameter.
        keep: How many to keep; 0 keeps all.

    Returns:
        The checkpoint's folder.
    """
    target = folder / f"{state.iteration:06d}"
    part = target.with_name(target.name + _PART)
    shutil.rmtree(part, ignore_errors=True)
    (part / _STATE).parent.mkdir(parents=True)
    with no_progress_bars():
        model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    save_file(optimiser_tensors(model, optimiser), part / _OPTIMISER)
    (part / _STATE).write_text(json.dumps(asdict(state), indent=1) + "\n", encoding="utf-8")
    _sync(part)
    if target.exists():
        _remove(target)
    part.replace(target)
    sync_folder(folder)
    for old in checkpoints(folder)[:-keep] if keep else []:
        _remove(old)
    return target


def sweep(folder: Path) -> None:
    """Removes what a killed process left half written."""
    for part in folder.glob(f"*{_PART}"):
        shutil.rmtree(part)


def load_checkpoint(folder: Path, model: Model, optimiser: torch.optim.Optimizer) -> State:
    """Puts a checkpoint's weights and moments into a model and an optimiser of the same shapes.

    Raises:
        InputError: The checkpoint is of another model.
    """
    load_weights(folder, model)
    restore_optimiser(model, optimiser, load_file(folder / _OPTIMISER))
    values: dict[str, Any] = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    return State(**values)


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


def newest_model(path: str) -> str:
    """Where a model is: a run's folder stands for its newest checkpoint, anything else for itself."""
    whole = checkpoints(Path(path) / "checkpoints")
    return str(whole[-1]) if whole else path


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    sync_folder(folder)


def _remove(checkpoint: Path) -> None:
    """Takes a checkpoint away at once: renamed first, so that half of one is never seen."""
    part = checkpoint.with_name(checkpoint.name + _PART)
    shutil.rmtree(part, ignore_errors=True)
    checkpoint.replace(part)
    shutil.rmtree(part)


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
