"""Attention of packed rows by torch's own kernel (`torch.nn.attention.varlen`), which needs no other package.

Transformers passes the bounds of packed sequences to the registered attention function. Rows that are not packed, those
of a generation too, take Transformers' `sdpa`.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

from hgpo_train.models.hf import Model, unwrap_peft

PACKED_SDPA: Final = "hgpo_packed_sdpa"
"""The name under which the attention function is registered in Transformers."""
_GROUPED: Final[dict[str, Any]] = (
    {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
)
"""Of torch 2.12 and newer; before, keys and values are repeated for the queries of their group."""


def packed_bounds(position_ids: Tensor) -> dict[str, Any]:
    """Return where packed sequences begin and end: Transformers' `FlashAttentionKwargs`.

    `position_ids`, of shape (1, length), start at 0 in every sequence.
    """
    starts = (position_ids[0] == 0).nonzero().flatten()
    bounds = nn.functional.pad(starts, (0, 1), value=position_ids.shape[1]).to(
        torch.int32
    )
    longest = int(bounds.diff().max())
    return {
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def has_packed_kernel(model: Model) -> bool:
    """Return whether the attention of a model is a kernel that computes packed rows from their bounds."""
    attention = getattr(unwrap_peft(model).config, "_attn_implementation", None) or ""
    return "flash_attention" in attention or attention == PACKED_SDPA


def last_hidden_states(
    model: Model, input_ids: Tensor, position_ids: Tensor | None = None
) -> Tensor:
    """Return the last hidden states of the decoder, of shape (rows, length, width).

    No attention mask is needed. Padding is on the right, where the causal mask hides it. Packed sequences restart
    their positions at 0, from which Transformers derives a block-diagonal mask of length² entries. Kernels for packed
    rows need no mask but the bounds of the sequences, which are computed here once instead of in every layer.

    Args:
        model: A causal language model of Transformers, bare or wrapped by peft.
        input_ids: Token ids, int64 of shape (rows, length).
        position_ids: Positions, of the same shape; None counts from 0 in every row.
    """
    plain = unwrap_peft(model)
    if position_ids is None:
        position_ids = torch.arange(
            input_ids.shape[1], device=input_ids.device
        ).expand_as(input_ids)
    bounds: dict[str, Any] = {}
    if has_packed_kernel(model) and len(position_ids) == 1:
        bounds = packed_bounds(position_ids)
    output = plain.get_decoder()(
        input_ids=input_ids, position_ids=position_ids, use_cache=False, **bounds
    )
    states: Tensor = output.last_hidden_state
    return states


def enable_packed_kernel(model: Model, dtype: torch.dtype) -> bool:
    """Return whether a kernel computes packed rows without a mask of length² entries, and enable torch's own.

    Args:
        model: A causal language model of Transformers, bare or wrapped by peft, on its device.
        dtype: The dtype that autocast computes in.
    """
    plain = unwrap_peft(model)
    if has_packed_kernel(model):
        return True
    device = next(plain.parameters()).device
    if (
        getattr(plain.config, "_attn_implementation", None) != "sdpa"
        or dtype != torch.bfloat16
    ):
        return False
    # Torch's kernel is of NVIDIA GPUs, from Ampere on.
    if (
        device.type != "cuda"
        or torch.version.cuda is None
        or torch.cuda.get_device_capability(device) < (8, 0)
    ):
        return False
    use_packed_kernel(plain)
    return True


def use_packed_kernel(model: Model) -> None:
    """Make a bare model compute packed rows with torch's kernel."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PACKED_SDPA, _attention)
    AttentionMaskInterface.register(PACKED_SDPA, _mask)
    model.set_attn_implementation(PACKED_SDPA)


def disable_packed_kernel(model: Model) -> None:
    """Make a model compute its attention by `sdpa` again, if it took torch's kernel for packed rows."""
    plain = unwrap_peft(model)
    if getattr(plain.config, "_attn_implementation", None) == PACKED_SDPA:
        plain.set_attn_implementation("sdpa")


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a layer, from (rows, heads, length, width) to (rows, length, heads, width)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    bounds = options.get("cu_seq_lens_q")
    if bounds is None:
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return output, None
    # Rotary embeddings are float32 under autocast, which casts the arguments of `sdpa` but not of this kernel.
    query, key, value = (
        part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value)
    )
    longest = options["max_length_q"]
    window = options.get("sliding_window")
    if not _GROUPED:
        key, value = (
            part.repeat_interleave(query.shape[1] // part.shape[1], dim=1)
            for part in (key, value)
        )
    attended: Any = varlen_attn(
        query,
        key,
        value,
        bounds,
        bounds,
        longest,
        longest,
        scale=options.get("scaling"),
        window_size=(-1 if window is None else window - 1, 0),
        **_GROUPED,
    )
    return attended[None], None


def _mask(**options: Any) -> Tensor | None:
    """Return the mask of `sdpa`; none for packed rows, which Transformers recognizes by their positions."""
    from transformers.masking_utils import sdpa_mask

    is_packed = (
        options["attention_mask"] is None and not options["allow_is_causal_skip"]
    )
    return None if is_packed else sdpa_mask(**options)
