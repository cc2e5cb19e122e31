"""Model FLOPs utilisation of the update (PaLM, arXiv 2204.02311, appendix B)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from hgpo_train.models.hf import head_width, size_of, unwrap_peft

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hgpo_train.models.hf import Model

_DENSE_BF16: Final = {
    "H200": 989e12,
    "H100": 989e12,
    "H20": 148e12,
    "B200": 2250e12,
    "A100": 312e12,
    "A800": 312e12,
}
"""Dense bfloat16 peak in FLOP/s by a substring of the device's name, from the manufacturers' data sheets."""
_EXPERTS: Final = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
)
_CHOSEN: Final = ("num_experts_per_tok", "moe_k", "moe_topk")
"""The names of the number of experts, and of those that a token takes, in configurations of Transformers."""


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the device's dense peak in FLOP/s, or None where it is unknown (CPUs, float32, other devices)."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _DENSE_BF16.items() if part in name), None)


def model_flops(
    model: Model,
    length: NDArray[np.int64],
    response_length: NDArray[np.int64],
) -> float:
    """Return the FLOPs of one forward and backward pass over sequences, without recomputation and padding.

    Per token: 6 · (weights of the layers), and 12 · layers · heads · head_dim · length / 2 for causal attention. Per
    *response* token: 6 · (weights of the head), because the head runs only there. With adapters the factor 6 of weights
    is 4, because frozen weights need no gradient. Of a mixture, the share of experts that a token takes is counted.

    Args:
        model: A causal language model, bare or wrapped by peft.
        length: int64 of shape (sequences,), tokens of each sequence.
        response_length: int64, response tokens of any parts of them.
    """
    plain = unwrap_peft(model)
    config = plain.config.get_text_config()

    # 1. Weights of the layers that a token takes. The decoder contains the input embedding, which is only looked up.
    experts = _first_number(config, _EXPERTS) or 0
    chosen = _first_number(config, _CHOSEN) or experts
    layers = -plain.get_input_embeddings().weight.numel()
    for name, parameter in plain.get_decoder().named_parameters():
        # Transformers stores the experts of a layer as one tensor whose first dimension is their number.
        is_stacked = parameter.dim() == 3 and len(parameter) == experts
        is_expert = experts and (".experts." in name or is_stacked)
        layers += parameter.numel() * (chosen / experts if is_expert else 1)

    # 2. Attention, whose cost grows with the square of the length. Keys and values of latent attention (DeepSeek) have
    # different widths.
    value_dim = getattr(config, "v_head_dim", None)
    key_dim = getattr(config, "qk_head_dim", None)
    head_dim: float = head_width(config)
    if value_dim is not None and key_dim is not None:
        head_dim = (key_dim + value_dim) / 2
    squared = float((length.astype("float64") ** 2).sum())
    attention = (
        6.0
        * config.num_hidden_layers
        * (size_of(config, "num_attention_heads") or 1)
        * head_dim
        * squared
    )

    # 3. Weights, per token and per response token. Adapters are those whose trained weights are a small part.
    total = sum(parameter.numel() for parameter in plain.parameters())
    trained = sum(
        parameter.numel() for parameter in plain.parameters() if parameter.requires_grad
    )
    per_weight = 6.0 if trained > 0.5 * total else 4.0
    head = plain.get_output_embeddings().weight.numel()
    weights = layers * float(length.sum()) + head * float(response_length.sum())
    return float(per_weight * weights + attention)


def _first_number(config: object, names: Sequence[str]) -> int | None:
    """Return the first of these settings of a model that is a number; in some models they are lists or null."""
    values = [getattr(config, name, None) for name in names]
    return next((value for value in values if isinstance(value, int) and value), None)
