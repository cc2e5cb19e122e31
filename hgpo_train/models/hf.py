"""Names for Transformers' objects, whose classes a strict type checker cannot follow."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Model: TypeAlias = Any
"""A causal language model of Transformers, bare or wrapped by peft."""

Tokenizer: TypeAlias = Any
"""A tokenizer of Transformers."""


def unwrap_peft(model: Model) -> Model:
    """The causal language model itself, without peft's wrapper; its layers hold the adapters all the same."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keeps Transformers from drawing progress bars into ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
