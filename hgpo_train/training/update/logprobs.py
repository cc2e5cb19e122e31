"""Log-probabilities and entropies of response tokens, without ever holding all logits.

At a vocabulary of 151,936 the float32 logits of one token take 0.6 MB, and a backward pass holds several such tensors:
a batch of 4,096-token sequences does not fit. Two things cure it: the head runs only at positions that predict a
response token, and it runs in chunks whose logits are thrown away and made again in the backward pass
(`torch.utils.checkpoint`), so at most one chunk's logits exist at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """The values log softmax(z / T)[y] and the entropy of softmax(z / T), z = head(hidden), in float32.

    Args:
        head: The output embedding: (tokens, width) to (tokens, vocabulary).
        hidden: Last hidden states, shape (tokens, width).
        target: int64 of shape (tokens,), the tokens y.
        temperature: T, the rollout's; log-probabilities are those of the distribution that was sampled from.
        entropy_gradient: False computes the entropy as a figure only, which spares memory.

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
    """`head_logprobs` over chunks of positions, each recomputed in the backward pass; `chunk` 0 takes all at once."""
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


class ResponseScorer(nn.Module):
    """A causal language model that answers one question: how likely are these tokens at these positions?

    All of it is one `forward`, so that a wrapper (autocast, a sharding of accelerate) sees a single module.
    """

    def __init__(self, model: Model, *, chunk: int = 128) -> None:
        super().__init__()
        self.model = model
        self.chunk = chunk
        if getattr(unwrap_peft(model).config, "final_logit_softcapping", None):
            raise InputError(
                f"{type(unwrap_peft(model)).__name__} caps logits after the head, which the log-softmax here does not; "
                "expected a model without final_logit_softcapping, such as the Qwen family"
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
        """Scores tokens.

        Rows are padded on the right, so the causal mask alone hides the padding; packed sequences restart their
        positions at 0, which Transformers turns into a block-diagonal mask.

        Args:
            input_ids: int64 of shape (rows, length).
            position_ids: int64 of the same shape, from 0 in every sequence.
            source: int64 of shape (tokens,), places in the flattened (rows · length) whose output predicts a token.
            target: int64 of shape (tokens,), the tokens.
            temperature: Of the rollout.
            entropy_gradient: Whether entropies carry a gradient.

        Returns:
            Log-probabilities and entropies, float32 of shape (tokens,).
        """
        model = unwrap_peft(self.model)
        output = model.get_decoder()(input_ids=input_ids, position_ids=position_ids, use_cache=False)
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
