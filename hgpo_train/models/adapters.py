"""Low-rank adapters of peft: new ones for training, and trained ones merged into their model."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from hgpo_envs.errors import InputError
from hgpo_train.models.hf import Model, first_line, unwrap_peft

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_train.models.config import LoraConfig


def add_adapters(model: Model, config: LoraConfig, seed: int = 0) -> Model:
    """Add trainable low-rank adapters to a model and freeze its own weights. Global random state is unchanged.

    Raises:
        InputError: The model has none of the target layers, or a target is an input or output layer that are tied.
    """
    from peft import LoraConfig as PeftLoraConfig
    from peft import get_peft_model

    targets = (
        config.targets if isinstance(config.targets, str) else list(config.targets)
    )
    peft_config = PeftLoraConfig(
        task_type="CAUSAL_LM",
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=targets,
    )
    name = type(model).__name__
    tied = _has_tied_layers(model)
    linear = {
        layer.rpartition(".")[2]
        for layer, part in model.named_modules()
        if isinstance(part, torch.nn.Linear)
    }
    try:
        with torch.random.fork_rng(devices=[]), _quiet_peft():
            torch.manual_seed(seed)
            adapted = get_peft_model(model, peft_config)
    except ValueError as error:
        raise InputError(
            f"cannot add adapters to model.lora.targets {targets}: {first_line(error)}"
        ) from error
    _check_adapted(adapted, "model.lora.targets", tied=tied)
    layers = [f".{layer}" for layer in adapted.targeted_module_names]
    listed = [] if isinstance(targets, str) else targets
    missing = [
        target
        for target in listed
        if not any(layer.endswith(f".{target}") for layer in layers)
    ]
    if missing:
        warnings.warn(
            f"model.lora.targets: {name} has no layers {', '.join(missing)}, so they get no adapters (linear layers: "
            f'{", ".join(sorted(linear))}); name others, or set "all-linear"',
            stacklevel=2,
        )
    return adapted


def merge_adapters(model: Model, adapters: str) -> Model:
    """Return a model with adapters merged into its weights."""
    from peft import PeftModel

    tied = _has_tied_layers(model)
    try:
        with _quiet_peft():
            adapted = PeftModel.from_pretrained(model, adapters)
            _check_adapted(adapted, f"the adapters of {adapters!r}", tied=tied)
            merged: Model = adapted.merge_and_unload()
    except InputError:
        raise
    except Exception as error:  # damaged files can raise any exception of their parsers
        raise InputError(
            f"cannot load the adapters of {adapters!r}: {first_line(error)}"
        ) from error
    return merged.requires_grad_(True)


def _check_adapted(model: Model, where: str, *, tied: bool) -> None:
    """Raise `InputError` if adapters belong to a tied input or output layer: merging them would change both."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    plain = unwrap_peft(model)
    layers = plain.get_input_embeddings(), plain.get_output_embeddings()
    for name, module in plain.named_modules():
        if (
            tied
            and module in layers
            and isinstance(module, BaseTunerLayer | ModulesToSaveWrapper)
        ):
            raise InputError(
                f"{where} change {name!r}, but input and output layer of this model are the same weights "
                "(tie_word_embeddings), so that the merged adapters would change both; leave it out of the targets"
            )


def _has_tied_layers(model: Model) -> bool:
    output = model.get_output_embeddings()
    return output is not None and output.weight is model.get_input_embeddings().weight


@contextmanager
def _quiet_peft() -> Iterator[None]:
    with warnings.catch_warnings():
        # peft still reads it
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        # refused by `_check_adapted`
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")
        yield
