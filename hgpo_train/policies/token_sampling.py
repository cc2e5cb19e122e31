"""Sampling from a causal language model in process: prefill, then one token per step for a whole batch.

Every request has its own stream of uniform numbers, and tokens are drawn by inverting the cumulative distribution. A
response therefore depends only on its prompt and seed, up to the rounding of matrix products of different shapes. For
small models this loop spends less time outside matrix products than Transformers' `generate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from hgpo_train.models.hf import unwrap_peft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from hgpo_train.models.hf import Model


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Options of sampling.

    Attributes:
        max_new_tokens: Maximum length of a response, in tokens.
        temperature: Sampling temperature. 0 selects the most likely token and reports log-probabilities at
            temperature 1.
        stop: Ids of tokens that end a response; the response includes the one that ended it.
        top_p: Draw only from the smallest set of most likely tokens that reaches this probability.
        max_batch_tokens: Maximum of rows · (prompt + response) tokens in one batch, which bounds memory.
    """

    max_new_tokens: int
    temperature: float
    stop: tuple[int, ...]
    top_p: float = 1.0
    max_batch_tokens: int = 131_072


class SampledResponse(NamedTuple):
    """One sampled response.

    Attributes:
        tokens: Token ids, int32 of shape (length,).
        logprobs: Log-probabilities under the distribution that was sampled from, float32 of shape (length,).
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]


def sample_responses(
    model: Model, prompts: Sequence[Sequence[int]], seeds: Sequence[int], options: SamplingOptions
) -> list[SampledResponse]:
    """Sample a response to each prompt.

    Args:
        model: A causal language model.
        prompts: Token ids, at least one per prompt.
        seeds: One seed per prompt; the same prompt, weights and seed give the same response.
        options: Options of sampling.

    Returns:
        Responses in the order of the prompts.
    """
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
    responses: dict[int, SampledResponse] = {}
    first = 0
    while first < len(order):
        width = len(prompts[order[first]]) + options.max_new_tokens
        batch = order[first : first + max(1, options.max_batch_tokens // width)]
        drawn = _sample_batch(model, [prompts[i] for i in batch], [seeds[i] for i in batch], options)
        responses |= dict(zip(batch, drawn, strict=True))
        first += len(batch)
    return [responses[i] for i in range(len(prompts))]


@torch.no_grad()
def _sample_batch(
    model: Model, prompts: list[Sequence[int]], seeds: list[int], options: SamplingOptions
) -> list[SampledResponse]:
    from transformers import DynamicCache

    plain = unwrap_peft(model)
    plain.eval()
    decoder, head, device = plain.get_decoder(), plain.get_output_embeddings(), plain.device
    lengths = np.array([len(prompt) for prompt in prompts])
    rows, width = len(prompts), int(lengths.max())
    padded = np.zeros((rows, width), np.int64)
    there = np.arange(width) < lengths[:, None]
    padded[there] = np.concatenate([np.asarray(prompt, np.int64) for prompt in prompts])
    uniform = np.stack([np.random.Generator(np.random.PCG64(seed)).random(options.max_new_tokens) for seed in seeds])

    # Prompts are padded on the right: in the prefill the causal mask hides the padding, afterwards `mask` does.
    cache = DynamicCache(config=plain.config)
    hidden = decoder(input_ids=torch.from_numpy(padded).to(device), past_key_values=cache, use_cache=True)[0]
    hidden = hidden[torch.arange(rows), torch.from_numpy(lengths - 1).to(device)]
    mask = torch.from_numpy(np.pad(there, ((0, 0), (0, options.max_new_tokens)), constant_values=True)).to(device)
    positions = torch.from_numpy(lengths).to(device)
    stop = torch.tensor(options.stop, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    tokens, logprobs, alive = [], [], []
    for step in range(options.max_new_tokens):
        token, logprob = sample_tokens(
            head(hidden), torch.from_numpy(uniform[:, step]).to(device), options.temperature, options.top_p
        )
        tokens.append(token)
        logprobs.append(logprob)
        alive.append(~ended)
        ended = ended | torch.isin(token, stop)
        if step + 1 == options.max_new_tokens or bool(ended.all()):
            break
        hidden = decoder(
            input_ids=token[:, None],
            attention_mask=mask[:, : width + step + 1],
            position_ids=(positions + step)[:, None],
            past_key_values=cache,
            use_cache=True,
        )[0][:, -1]
    count = torch.stack(alive, 1).sum(1).tolist()
    all_tokens, all_logprobs = torch.stack(tokens, 1).int().cpu().numpy(), torch.stack(logprobs, 1).cpu().numpy()
    return [SampledResponse(all_tokens[row, :n], all_logprobs[row, :n]) for row, n in enumerate(count)]


def sample_tokens(logits: Tensor, uniform: Tensor, temperature: float, top_p: float = 1.0) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution of softmax(logits / temperature).

    Args:
        logits: Logits of shape (rows, vocabulary).
        uniform: Uniform random numbers in [0, 1), float64 of shape (rows,).
        temperature: Sampling temperature; 0 selects the most likely token.
        top_p: Draw only from the smallest set of most likely tokens that reaches this probability; their
            probabilities are normalized to a sum of 1.

    Returns:
        Token ids, int64 of shape (rows,), and their log-probabilities, float32 of shape (rows,).

    >>> token, logprob = sample_tokens(torch.log(torch.tensor([[0.25, 0.75]])), torch.tensor([0.3]).double(), 1.0)
    >>> token.item(), round(logprob.exp().item(), 4)
    (1, 0.75)
    """
    logprob = torch.log_softmax(logits.float() / (temperature or 1.0), -1)
    if top_p < 1.0:
        logprob = _nucleus(logprob, top_p)
    if temperature == 0:
        token = logprob.argmax(-1, keepdim=True)
    else:
        total = logprob.double().exp().cumsum(-1)
        # right=True skips all cumulative values ≤ u · total, so a token of probability zero is never drawn.
        token = torch.searchsorted(total, (uniform * total[:, -1])[:, None], right=True)
        token = token.clamp(max=logits.shape[-1] - 1)
    return token.squeeze(-1), logprob.gather(-1, token).squeeze(-1)


def _nucleus(logprob: Tensor, top_p: float) -> Tensor:
    """Return normalized log-probabilities of the most likely tokens that reach `top_p`, minus infinity elsewhere."""
    ordered, order = logprob.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    kept = torch.zeros_like(logprob, dtype=torch.bool).scatter(-1, order, before < top_p)
    return torch.log_softmax(logprob.masked_fill(~kept, -torch.inf), -1)
