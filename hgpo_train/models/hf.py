"""Type aliases and helpers for Transformers' objects, whose classes a strict type checker cannot check."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

Model: TypeAlias = Any
"""A causal language model of Transformers, with or without peft's wrapper."""

Tokenizer: TypeAlias = Any
"""A tokenizer of Transformers."""


def unwrap_peft(model: Model) -> Model:
    """Return the causal language model without peft's wrapper. Its layers still contain the adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def size_of(config: Any, *names: str) -> int | None:  # noqa: ANN401
    """Return the first of these sizes that a configuration has; None if it has none of them.

    Where it has a list of them, or one for each layer, it is the largest.

    Args:
        config: The configuration of a language model of Transformers (`get_text_config`).
        names: Names of sizes, such as `head_dim`.
    """
    for name in names:
        try:
            value = getattr(config, name, None)
        except RuntimeError:  # of configurations whose layers have their own
            value = [getattr(layer, name) for layer in config.per_layer_config]
        if isinstance(value, list | tuple):
            value = max(value, default=None)
        if value:
            return int(value)
    return None


def head_width(config: Any) -> int:  # noqa: ANN401
    """Return the width of an attention head; that of all of them for a model without attention."""
    heads = size_of(config, "num_attention_heads") or 1
    return size_of(config, "head_dim") or int(config.hidden_size) // heads


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


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Disable the progress bars of Transformers, which would overwrite those of HGPO, within the block."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def first_line(error: Exception) -> str:
    """Return the first line of a library's error, with the name of its type if that tells more than the message."""
    first = str(error).strip().partition("\n")[0]
    is_message = first and isinstance(error, OSError | ValueError | ImportError)
    return first if is_message else f"{type(error).__name__}: {first}"
