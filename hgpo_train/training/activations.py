"""Bytes that one forward and backward pass of the learner needs beside weights, gradients and moments.

The pass is that of `hgpo_train.training.update.logprobs.ResponseScorer` under autocast, with attention that stores no
matrix of length × length (SDPA's fused kernels, flash attention). Per token, a layer needs a number of bytes for each
unit of its widths. These numbers are linear in the widths; they were determined by counting the storages that are alive
in a pass with fake tensors (`benchmarks/memory_plan.py`), for models of other widths than those that it prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from hgpo_train.models.shapes import ModelShape
    from hgpo_train.training.config import Config


class _Layer(NamedTuple):
    """Bytes per token and per unit of each width of a layer and of the adapters' rank, and further bytes per token."""

    hidden: float
    intermediate: float
    query: float
    rank: float = 0.0
    fixed: float = 0.0

    def bytes(self, shape: ModelShape, rank: int) -> float:
        return (
            self.hidden * shape.hidden
            + self.intermediate * shape.intermediate
            + self.query * shape.query
            + self.rank * rank
            + self.fixed
        )


_STORED: Final = {
    ("weights", "bfloat16"): _Layer(28, 8, 8),
    ("adapters", "bfloat16"): _Layer(18, 8, 10, 144),
    ("weights", "float32"): _Layer(28, 16, 16),
    ("adapters", "float32"): _Layer(18, 16, 16, 144),
}
"""What each layer stores for the backward pass, without gradient checkpointing."""

_WORKING: Final = {
    ("weights", "bfloat16"): _Layer(25, 0.5, 0),
    ("adapters", "bfloat16"): _Layer(16, 6, 0),
    ("weights", "float32"): _Layer(8, 8, 0),
    ("adapters", "float32"): _Layer(8, 8, 0),
}
"""What the layer at work needs beyond that, at the peak of the backward pass."""

_RECOMPUTED: Final = {
    ("weights", "bfloat16"): _Layer(30, 12, 8),
    ("adapters", "bfloat16"): _Layer(28, 14, 10, 14, 3640),
    ("weights", "float32"): _Layer(30, 24, 16),
    ("adapters", "float32"): _Layer(16, 24, 16, 24, 6200),
}
"""What the layer at work needs at the peak of the backward pass with gradient checkpointing, with recomputed values."""

_LOGIT_BYTES: Final = 20
"""Bytes per logit of a chunk in the backward pass: five float32 tensors."""


def activation_bytes(config: Config, shape: ModelShape) -> int:
    """Return the peak of a micro-batch beyond weights, gradients and moments, in bytes.

    The micro-batch has `update.micro_batch_tokens` tokens. The peak is the largest of four
    moments: the end of the forward pass (autocast keeps a copy of every trained weight in the compute dtype until
    then), the output layer's backward pass, the backward pass of the last layer, and that of the input embedding.

    Args:
        config: The run's configuration.
        shape: The sizes of its model.
    """
    model, update = config.model, config.update
    kind = ("adapters" if model.lora.rank else "weights", model.compute_dtype)
    tokens, rank = update.micro_batch_tokens, model.lora.rank
    full, half = not model.lora.rank, model.compute_dtype == "bfloat16"
    if model.gradient_checkpointing:
        residual = 2 if half and not full else 4  # the input of each layer, which is stored
        stored = float(tokens * shape.layers * shape.hidden * residual)
        layer = tokens * _RECOMPUTED[kind].bytes(shape, rank)
    else:
        stored = tokens * shape.layers * _STORED[kind].bytes(shape, rank)
        layer = tokens * _WORKING[kind].bytes(shape, rank)
    logits = _LOGIT_BYTES * shape.vocabulary * (min(update.logit_chunk, tokens) or tokens)
    cast = 2 * shape.parameters if full and half else 0
    forward = stored + tokens * (10 * shape.hidden + (6 if half else 12) * shape.intermediate) + cast
    head = stored + tokens * 4 * shape.hidden + logits + (8 * shape.embedding if full else 0)
    # The gradient of tied embeddings waits for its second part until the end of the backward pass.
    last_layer = stored + layer + (4 * shape.embedding if full and shape.tied else 0)
    embedding = (12 if shape.tied else 8) * shape.embedding if full else 0
    return int(max(forward, head, last_layer, embedding) + _mask_bytes(config))


def _mask_bytes(config: Config) -> int:
    """Return the bytes of the mask of packed rows: without variable-length kernels it is a matrix."""
    update = config.update
    if update.layout == "padded" or config.model.attention != "sdpa":
        return 0
    return 3 * update.micro_batch_tokens**2  # booleans, and the additive mask in the compute dtype
