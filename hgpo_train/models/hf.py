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
