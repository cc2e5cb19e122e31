"""Log-probabilities and entropies of response tokens, computed without all logits in memory.

With a vocabulary of 151,936 the float32 logits of one token take 0.6 MB, and a backward pass needs several such
tensors, so a batch of 4,096-token sequences does not fit into memory. Two measures reduce this. The head runs only at
positions that predict a response token. It runs in chunks whose logits are discarded and recomputed in the backward
pass (`torch.utils.checkpoint`), so at most one chunk's logits are in memory at a time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hgpo_train.models.hf import unwrap_peft
from hgpo_train.models.packed_attention import PACKED_SDPA

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from hgpo_train.models.hf import Model


def head_logprobs(
    head: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor, *, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return log softmax(z / T)[y] and the entropy of softmax(z / T), where z = head(hidden), at least in float32.

    `hidden`, of shape (tokens, width), are the last hidden states; `target` is y.
    """
    logits = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    log_partition = logits.logsumexp(-1)
    logprob = logits.gather(-1, target[:, None]).squeeze(-1) - log_partition
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        probability = (logits - log_partition[:, None]).exp()
        entropy = log_partition - (probability * logits).sum(-1)
    return logprob, entropy


def packed_bounds(position_ids: Tensor) -> dict[str, Any]:
    """Return where packed sequences begin and end: Transformers' `FlashAttentionKwargs`.

    `position_ids`, of shape (1, length), start at 0 in every sequence.
    """
    starts = (position_ids[0] == 0).nonzero().flatten()
    bounds = nn.functional.pad(starts, (0, 1), value=position_ids.shape[1]).to(torch.int32)
    longest = int(bounds.diff().max())
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


def response_logprobs(
    model: Model,
    input_ids: Tensor,
    position_ids: Tensor,
    source: Tensor,
    target: Tensor,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    chunk: int = 128,
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies of given tokens under a causal language model.

    No attention mask is needed. Padding is on the right, where the causal mask hides it. Packed sequences restart
    their positions at 0, from which Transformers derives a block-diagonal mask of length² entries. Kernels for packed
    rows need no mask but the bounds of the sequences, which are computed here once instead of in every layer.

    Args:
        model: The model, bare or wrapped by peft.
        input_ids: As of `batches.MicroBatch`, like the next three.
        position_ids: Positions.
        source: Where the tokens are predicted.
        target: The tokens.
        temperature: Temperature of the rollout, so that log-probabilities are those of the sampled distribution.
        entropy_gradient: Whether entropies carry a gradient; False needs less memory.
        chunk: Number of positions whose logits are in memory at a time; 0 computes all logits together.

    Returns:
        Log-probabilities and entropies in nats, float32 of shape (tokens,).
    """
    plain = unwrap_peft(model)
    attention = getattr(plain.config, "_attn_implementation", None) or ""
    has_kernel = "flash_attention" in attention or attention == PACKED_SDPA
    bounds = packed_bounds(position_ids) if has_kernel and len(position_ids) == 1 else {}
    output = plain.get_decoder()(input_ids=input_ids, position_ids=position_ids, use_cache=False, **bounds)
    hidden = output.last_hidden_state.flatten(0, 1)[source]
    head = partial(
        head_logprobs, plain.get_output_embeddings(), temperature=temperature, entropy_gradient=entropy_gradient
    )
    parts, size = [], chunk or len(target)
    for part, tokens in zip(torch.split(hidden, size), torch.split(target, size), strict=True):
        if chunk and torch.is_grad_enabled():
            parts.append(checkpoint(head, part, tokens, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(head(part, tokens))
    return torch.cat([logprob for logprob, _ in parts]), torch.cat([entropy for _, entropy in parts])
