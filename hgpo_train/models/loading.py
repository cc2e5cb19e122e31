"""Loading of the model to train: float32 weights, adapters by peft."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from hgpo_envs.errors import InputError
from hgpo_train.models.chat_format import use_chat_template
from hgpo_train.models.checkpoint_files import BUNDLED, resolve_model
from hgpo_train.models.forward_check import (
    check_causal,
    check_logits,
    disable_dropout,
)
from hgpo_train.models.hf import Model, Tokenizer, no_progress_bars, unwrap_peft
from hgpo_train.models.preflight import check_loads_no_code, check_model_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_train.models.config import LoraConfig, ModelConfig


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


def compute_dtype(config: ModelConfig) -> torch.dtype:
    """Return the dtype that autocast computes in."""
    return torch.bfloat16 if config.compute_dtype == "bfloat16" else torch.float32


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
    is_folder = path.count("/") > 1  # a Hugging Face name has at most one slash
    if not is_folder:
        check_model_source(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # damaged files can raise any exception of their parsers
        why = (
            "no such folder"
            if is_folder and not Path(path).exists()
            else _first_line(error)
        )
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

    dtype = compute_dtype(config) if config.lora.rank else torch.float32
    folder = resolve_model(config.path)
    base = check_loads_no_code(folder)
    if base is not None and config.lora.rank:
        raise InputError(
            f"model.path: expected a model without adapters, received {config.path!r}; new ones would replace them. "
            "Merge them first (docs/how_to.md, Train adapters), or train all weights with model.lora.rank=0"
        )
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
        reason = _first_line(error)
        if "does not support an attention implementation" in reason:
            reason = f'it has no attention "{config.attention}"; set model.attention = "eager"'
        raise InputError(
            f"cannot load a causal language model from {config.path!r}: {reason}"
        ) from error
    model: Model = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:  # Transformers initializes them with random numbers
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise InputError(
            f"cannot load a causal language model from {config.path!r}: its files contain no weights for "
            f"{missing[0]!r}{more}"
        )
    if base is not None:
        model = _merged(model, folder)
    device = choose_device(config.device)
    # Kernels of Triton, and what names no device, take the current one.
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    model.to(device)
    check_logits(model)
    check_causal(model)
    if disable_dropout(model):
        warnings.warn(
            f"the dropout of {config.path}, or its routers' noise, is set to 0: with it the update would compute other "
            "probabilities than the rollout sampled from",
            stacklevel=2,
        )
    if config.lora.rank:
        model = add_adapters(model, config.lora, seed)
    if config.gradient_checkpointing:
        checkpoint_layers(model)
    return model


def _merged(model: Model, adapters: str) -> Model:
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
            f"cannot load the adapters of {adapters!r}: {_first_line(error)}"
        ) from error
    return merged.requires_grad_(True)


@contextmanager
def _quiet_peft() -> Iterator[None]:
    with warnings.catch_warnings():
        # peft still reads it
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        # refused by `_check_adapted`
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")
        yield


def _has_tied_layers(model: Model) -> bool:
    output = model.get_output_embeddings()
    return output is not None and output.weight is model.get_input_embeddings().weight


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


def checkpoint_layers(model: Model) -> None:
    """Recompute each layer in the backward pass instead of storing its activations.

    Raises:
        InputError: The model cannot do so.
    """
    plain = unwrap_peft(model)
    # Transformers 5.2x renames the method; the old name still works, with a warning.
    enable = getattr(
        plain, "activation_checkpointing_enable", plain.gradient_checkpointing_enable
    )
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise InputError(
            f"setting model.gradient_checkpointing: {type(plain).__name__} cannot recompute its layers; set it to false"
        ) from error


def compile_layers(model: Model) -> None:
    """Compile each layer with `torch.compile`; layers of the same shapes share one compiled function."""
    for layer in unwrap_peft(model).get_decoder().layers:
        layer.compile(dynamic=True)


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
            f"cannot add adapters to model.lora.targets {targets}: {_first_line(error)}"
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


def vocabulary(model: Model) -> int:
    """Return the number of token ids of a model: the rows of its input embedding, which can exceed its tokenizer's."""
    rows: int = unwrap_peft(model).get_input_embeddings().weight.shape[0]
    return rows


def _first_line(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    is_message = first and isinstance(error, OSError | ValueError | ImportError)
    return first if is_message else f"{type(error).__name__}: {first}"
