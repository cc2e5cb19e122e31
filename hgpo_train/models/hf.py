"""Type aliases and helpers for Transformers' objects, whose classes a strict type checker cannot check."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Model: TypeAlias = Any
"""A causal language model of Transformers, with or without peft's wrapper."""

Tokenizer: TypeAlias = Any
"""A tokenizer of Transformers."""


def unwrap_peft(model: Model) -> Model:
    """Return the causal language model without peft's wrapper. Its layers still contain the adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def vocabulary_size(model: Model) -> int:
    """Return the number of token ids of a model: the rows of its input embedding, which can exceed its tokenizer's."""
    rows: int = unwrap_peft(model).get_input_embeddings().weight.shape[0]
    return rows


def checkpoint_layers(model: Model) -> None:
    """Recompute each layer in the backward pass instead of storing its activations."""
    plain = unwrap_peft(model)
    # Transformers 5.2x renames the method; the old name still works, with a warning.
    enable = getattr(
        plain, "activation_checkpointing_enable", plain.gradient_checkpointing_enable
    )
    enable({"use_reentrant": False})


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
