"""Names for Transformers' objects, whose classes a strict type checker cannot follow."""

from __future__ import annotations

from typing import Any, TypeAlias

Model: TypeAlias = Any
"""A causal language model of Transformers, bare or wrapped by peft."""

Tokenizer: TypeAlias = Any
"""A tokenizer of Transformers."""


def bare(model: Model) -> Model:
    """The causal language model itself, without peft's wrapper; its layers hold the adapters all the same."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
