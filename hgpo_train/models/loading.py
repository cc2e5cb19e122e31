"""A model and its tokenizer, loaded from a folder, a run or the hub, and made ready for training."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hgpo_envs.errors import InputError
from hgpo_train.models.adapters import add_adapters, merge_adapters
from hgpo_train.models.chat_format import use_chat_template
from hgpo_train.models.checkpoint_files import BUNDLED, resolve_model
from hgpo_train.models.device import choose_device
from hgpo_train.models.forward_check import check_forward
from hgpo_train.models.hf import (
    Model,
    Tokenizer,
    checkpoint_layers,
    first_line,
    no_progress_bars,
)
from hgpo_train.models.preflight import check_loads_no_code, check_model_source

if TYPE_CHECKING:
    from hgpo_train.models.config import ModelConfig


def load_tokenizer(path: str, chat_template: str = "") -> Tokenizer:
    """Load a tokenizer that can render a chat.

    Args:
        path: A model's folder, a run's folder (its newest checkpoint is used), or a Hugging Face name.
        chat_template: A Jinja file with another chat template; the model's own if empty.

    Raises:
        InputError: The tokenizer cannot be found or loaded, or it has no chat template or no end-of-turn token.
    """
    from transformers import AutoTokenizer

    folder = resolve_model(path)
    # a Hugging Face name has at most one slash
    is_name = path.count("/") <= 1 and not Path(folder).is_dir()
    if is_name:
        check_model_source(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # damaged files can raise any exception of their parsers
        is_there = is_name or Path(folder).exists()
        why = first_line(error) if is_there else "no such folder"
        raise InputError(
            f"cannot load a tokenizer from {path!r} ({why}): expected a model's folder, a run's folder, a Hugging "
            f"Face name, or a bundled model ({', '.join(BUNDLED)})"
        ) from error
    if chat_template:
        use_chat_template(tokenizer, chat_template)
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"the tokenizer of {path!r} has no chat template; use the -Instruct variant of the model, or set "
            "rollout.chat_template to a Jinja file"
        )
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"the tokenizer of {path!r} has no end-of-turn token (eos_token), so no response would end"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(config: ModelConfig, seed: int = 0) -> Model:
    """Load a causal language model for training.

    All weights are float32 masters, and the forward pass runs under autocast. With new adapters (`config.lora`), the
    frozen model is stored in the compute dtype and the adapters in float32. Adapters at the path are merged into their
    model.

    Args:
        config: The model, its device, dtype and adapters.
        seed: Seed of the adapters' initial weights.

    Raises:
        InputError: The model cannot be loaded, its files lack weights, its configuration names code to load, its logits
            are not those of its output layer, or new adapters are wanted beside those at the path.
    """
    from transformers import AutoModelForCausalLM

    # 1. The files: a model, or adapters and the name of the model that they are of.
    folder = resolve_model(config.path)
    base = check_loads_no_code(folder)
    if base is not None and config.lora.rank:
        raise InputError(
            f"model.path: expected a model without adapters, received {config.path!r}; new ones would replace them. "
            "Merge them first (docs/how_to.md, Train adapters), or train all weights with model.lora.rank=0"
        )

    # 2. The weights. Those that are trained, and those that adapters are merged into, are float32.
    is_frozen = config.lora.rank > 0
    dtype = getattr(torch, config.compute_dtype) if is_frozen else torch.float32
    try:
        with no_progress_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                base or folder,
                dtype=dtype,
                attn_implementation=config.attention,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # damaged files can raise any exception of their parsers
        reason = first_line(error)
        if "does not support an attention implementation" in reason:
            reason = f'it has no attention "{config.attention}"; set model.attention = "eager"'
        raise InputError(
            f"cannot load a causal language model from {config.path!r}: {reason}"
        ) from error
    model, found = loaded
    missing = sorted(found["missing_keys"])
    if missing:  # Transformers initializes them with random numbers
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise InputError(
            f"cannot load a causal language model from {config.path!r}: its files contain no weights for "
            f"{missing[0]!r}{more}"
        )
    if base is not None:
        model = merge_adapters(model, folder)
    device = choose_device(config.device)
    # Kernels of Triton, and what names no device, take the current one.
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    model.to(device)

    # 3. What training expects of the model, tried on random tokens.
    if check_forward(model):
        warnings.warn(
            f"the dropout of {config.path}, or its routers' noise, is set to 0: with it the update would compute other "
            "probabilities than the rollout sampled from",
            stacklevel=2,
        )
    return prepare_for_training(model, config, seed)


def prepare_for_training(model: Model, config: ModelConfig, seed: int = 0) -> Model:
    """Add new adapters to a model, and recompute its layers in the backward pass, if the configuration says so."""
    if config.lora.rank:
        model = add_adapters(model, config.lora, seed)
    if config.gradient_checkpointing:
        checkpoint_layers(model)
    return model
