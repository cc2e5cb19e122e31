"""Log-probabilities and entropies of response tokens, computed without all logits in memory.

With a vocabulary of 151,936 the float32 logits of one token take 0.6 MB, and a backward pass needs several such
tensors, so a batch of 4,096-token sequences does not fit into memory. Two measures reduce this. The head runs only at
positions that predict a response token. It runs in chunks whose logits are discarded and recomputed in the backward
pass (`torch.utils.checkpoint`), so at most one chunk's logits are in memory at a time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch.utils.checkpoint import checkpoint

from hgpo_train.models.hf import unwrap_peft
from hgpo_train.models.packed_attention import last_hidden_states

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from hgpo_train.models.hf import Model


def head_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    target: Tensor,
    *,
    temperature: float,
    entropy_gradient: bool,
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


def response_logprobs(
    model: Model,
    input_ids: Tensor,
    position_ids: Tensor,
    source: Tensor,
    target: Tensor,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    chunk: int | Literal["auto"] = "auto",
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies of given tokens under a causal language model.

    Args:
        model: The model, bare or wrapped by peft.
        input_ids: As of `batches.MicroBatch`, like the next three.
        position_ids: Positions.
        source: Where the tokens are predicted.
        target: The tokens.
        temperature: Temperature of the rollout, so that log-probabilities are those of the sampled distribution.
        entropy_gradient: Whether entropies carry a gradient; False needs less memory.
        chunk: Number of positions whose logits are in memory at a time; 0 computes all logits together, auto is 128.

    Returns:
        Log-probabilities and entropies in nats, float32 of shape (tokens,).
    """
    hidden = last_hidden_states(model, input_ids, position_ids).flatten(0, 1)[source]
    output_layer = unwrap_peft(model).get_output_embeddings()
    head = partial(
        head_logprobs,
        output_layer,
        temperature=temperature,
        entropy_gradient=entropy_gradient,
    )
    if chunk == "auto":
        chunk = 128
    size = chunk or len(target)
    parts = []
    for part, tokens in zip(
        torch.split(hidden, size), torch.split(target, size), strict=True
    ):
        if chunk and torch.is_grad_enabled():
            parts.append(
                checkpoint(
                    head, part, tokens, use_reentrant=False, preserve_rng_state=False
                )
            )
        else:
            parts.append(head(part, tokens))
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)
