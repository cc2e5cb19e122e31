"""Log-probabilities and entropies of response tokens, computed without all logits in memory.

With a vocabulary of 151,936 the float32 logits of one token take 0.6 MB, and a backward pass needs several such
tensors, so a batch of 4,096-token sequences does not fit into memory. Two measures reduce this. The head runs only at
positions that predict a response token. It runs in chunks whose logits are discarded and recomputed in the backward
pass (`torch.utils.checkpoint`), so at most one chunk's logits are in memory at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hgpo_envs.errors import InputError
from hgpo_train.models.hf import unwrap_peft

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from hgpo_train.models.hf import Model


def head_logprobs(
    head: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor, temperature: float, *, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return log softmax(z / T)[y] and the entropy of softmax(z / T), where z = head(hidden), in float32.

    Args:
        head: The output embedding, from (tokens, width) to (tokens, vocabulary).
        hidden: Last hidden states, float of shape (tokens, width).
        target: int64 of shape (tokens,), the tokens y.
        temperature: T, the temperature of the rollout, so that log-probabilities are those of the sampled distribution.
        entropy_gradient: Whether the entropy carries a gradient; False needs less memory.

    Returns:
        Log-probabilities and entropies in nats, float32 of shape (tokens,).
    """
    logits = head(hidden).float() / temperature
    log_partition = logits.logsumexp(-1)
    logprob = logits.gather(-1, target[:, None]).squeeze(-1) - log_partition
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        probability = (logits - log_partition[:, None]).exp()
        entropy = log_partition - (probability * logits).sum(-1)
    return logprob, entropy


def chunked_head_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    target: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Return `head_logprobs`, computed in chunks of positions that are recomputed in the backward pass.

    Arguments are those of `head_logprobs`, and `chunk`, the number of positions of a chunk; 0 uses a single one.
    """
    if chunk <= 0:
        return head_logprobs(head, hidden, target, temperature, entropy_gradient=entropy_gradient)

    def one(part: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return head_logprobs(head, part, tokens, temperature, entropy_gradient=entropy_gradient)

    parts = []
    for part, tokens in zip(torch.split(hidden, chunk), torch.split(target, chunk), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(one, part, tokens, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(one(part, tokens))
    return torch.cat([logprob for logprob, _ in parts]), torch.cat([entropy for _, entropy in parts])


def packed_bounds(position_ids: Tensor) -> dict[str, Any]:
    """Return where packed sequences begin and end, as arguments of flash attention's variable-length kernels.

    Args:
        position_ids: int64 of shape (1, length), starting at 0 in every sequence.

    Returns:
        Transformers' `FlashAttentionKwargs`: bounds as int32 of shape (sequences + 1,), and the longest sequence.

    >>> packed_bounds(torch.tensor([[0, 1, 2, 0, 1]]))["cu_seq_lens_q"]
    tensor([0, 3, 5], dtype=torch.int32)
    """
    starts = (position_ids[0] == 0).nonzero().flatten()
    bounds = nn.functional.pad(starts, (0, 1), value=position_ids.shape[1]).to(torch.int32)
    longest = int(bounds.diff().max())
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


def uses_flash_attention(model: Model) -> bool:
    """Return whether a model uses one of Transformers' implementations of flash attention."""
    return "flash_attention" in (getattr(unwrap_peft(model).config, "_attn_implementation", None) or "")


class ResponseScorer(nn.Module):
    """A module that returns the log-probabilities and entropies of given tokens under a causal language model.

    Everything happens in `forward`, so that wrappers (autocast, the sharding of accelerate) apply to a single module.

    Args:
        model: A causal language model, bare or wrapped by peft.
        chunk: Number of positions whose logits are in memory at a time; 0 computes all logits together.

    Raises:
        InputError: The model caps its logits after the head.
    """

    def __init__(self, model: Model, *, chunk: int = 128) -> None:
        super().__init__()
        self.model = model
        self.chunk = chunk
        if getattr(unwrap_peft(model).config, "final_logit_softcapping", None):
            raise InputError(
                f"expected a model without final_logit_softcapping, such as the Qwen family, received "
                f"{type(unwrap_peft(model)).__name__}, whose capped logits are not supported; choose another model.path"
            )

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        source: Tensor,
        target: Tensor,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and entropies of tokens.

        No attention mask is needed. Padding is on the right, where the causal mask hides it. Packed sequences restart
        their positions at 0, from which Transformers derives a block-diagonal mask of length² entries. Flash attention
        needs no mask but the bounds of the sequences, which are computed here once instead of in every layer.

        Args:
            input_ids: int64 of shape (rows, length).
            position_ids: int64 of the same shape, starting at 0 in every sequence.
            source: int64 of shape (tokens,), indices into the flattened `input_ids` whose outputs predict the tokens.
            target: int64 of shape (tokens,), the tokens.
            temperature: Temperature of the rollout.
            entropy_gradient: Whether entropies carry a gradient.

        Returns:
            Log-probabilities and entropies, float32 of shape (tokens,).
        """
        model = unwrap_peft(self.model)
        packed = len(position_ids) == 1 and uses_flash_attention(model)
        bounds = packed_bounds(position_ids) if packed else {}
        output = model.get_decoder()(input_ids=input_ids, position_ids=position_ids, use_cache=False, **bounds)
        states = output.last_hidden_state
        hidden = states.reshape(-1, states.shape[-1])[source]
        return chunked_head_logprobs(
            model.get_output_embeddings(),
            hidden,
            target,
            temperature,
            entropy_gradient=entropy_gradient,
            chunk=self.chunk,
        )
