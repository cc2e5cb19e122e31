"""Sampling from a causal language model in process, with continuous batching (Orca, OSDI 2022).

One token is drawn per step for all running rows. A row that has ended leaves the batch, and waiting requests take its
place. Prompts are computed in chunks of similar lengths, longest first, so little of a chunk is padding.

Every request has its own stream of uniform numbers, and tokens are drawn by inverting the cumulative distribution. A
response therefore depends only on its prompt and seed, up to the rounding of matrix products of different shapes. These
shapes are a function of the arguments of one call: on a CPU, the same call returns the same bytes.

The keys and values of a row are aligned on the right: its newest token is in the last column of the cache, and the
columns before its first token are masked. Columns of one row are therefore contiguous, as sliding windows require.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from hgpo_envs.errors import InputError, one_line
from hgpo_train.models.forward_check import trying
from hgpo_train.models.hf import Model, unwrap_peft
from hgpo_train.models.packed_attention import last_hidden_states

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor
    from transformers import DynamicCache


PREFILL_TOKENS_CPU: Final = 512
"""Tokens of prompts that are computed together on a CPU. The activations of a small model then stay in its caches, and
their memory is reused: up to twice as fast as 8,192 tokens."""
PREFILL_TOKENS: Final = 16_384
"""The same on other devices."""


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
    model: Model,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    options: SamplingOptions,
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
    plain = unwrap_peft(model)
    plain.eval()
    decoder = plain.get_decoder()
    head = plain.get_output_embeddings()
    device = plain.device
    keyword = cache_keyword(type(decoder).forward)

    # Every request has numbers of its own, drawn before anything is computed: which requests share a batch, and when a
    # request joins one, changes none of them.
    longest = options.max_new_tokens
    uniform = np.zeros((len(prompts), longest))
    for row, seed in enumerate(seeds):
        uniform[row] = np.random.Generator(np.random.PCG64(seed)).random(longest)

    tokens = np.zeros((len(prompts), longest), np.int32)
    logprobs = np.zeros((len(prompts), longest), np.float32)
    lengths = np.zeros(len(prompts), np.int64)
    prefill_tokens = PREFILL_TOKENS_CPU if device.type == "cpu" else PREFILL_TOKENS
    waiting = deque(prompt_chunks(prompts, prefill_tokens, options))
    batch: _Batch | None = None
    with torch.inference_mode():
        while waiting or batch is not None:
            # 1. Waiting chunks join the running rows as soon as all fit into memory at their maximum length. Into an
            # empty batch, the first one always does.
            parts = [] if batch is None else [batch]
            while waiting:
                joining = np.concatenate([*(part.rows for part in parts), waiting[0]])
                most = max(len(prompts[row]) for row in joining) + longest
                if parts and len(joining) * most > options.max_batch_tokens:
                    break
                parts.append(prefill(decoder, prompts, waiting.popleft(), device))
            batch = _joined(parts)
            rows = batch.rows
            step = lengths[rows]

            # 2. Draw the next token of every row.
            uniforms = torch.from_numpy(uniform[rows, step]).to(device)
            token, logprob = sample_tokens(
                head(batch.hidden), uniforms, options.temperature, options.top_p
            )
            tokens[rows, step] = token.cpu().numpy()
            logprobs[rows, step] = logprob.cpu().numpy()
            lengths[rows] += 1

            # 3. Rows that have ended leave the batch.
            is_last = lengths[rows] == longest
            running = ~is_last & ~np.isin(tokens[rows, step], options.stop)
            if not running.any():
                batch = None
                continue
            cache = batch.cache
            if not running.all():
                kept = torch.from_numpy(np.flatnonzero(running)).to(device)
                token = token[kept]
                cache.batch_select_indices(kept)

            # 4. The others compute the hidden state of their new token. The cache has all columns, also those that only
            # ended rows have used.
            length = batch.length[running] + 1
            width = cache.get_seq_length() + 1
            is_used = np.arange(width) >= width - length[:, None]
            hidden = decoder(
                input_ids=token[:, None],
                attention_mask=torch.from_numpy(is_used).to(device),
                position_ids=torch.from_numpy(length - 1)[:, None].to(device),
                use_cache=True,
                **{keyword: cache},
            )[0][:, -1]
            batch = _Batch(rows[running], length, hidden, cache)
    responses = []
    for row, count in enumerate(lengths):
        responses.append(SampledResponse(tokens[row, :count], logprobs[row, :count]))
    return responses


@dataclass(frozen=True, slots=True)
class _Batch:
    """The running rows.

    Attributes:
        rows: int64 of shape (rows,), the index of each row's request.
        length: int64 of shape (rows,), the number of a row's tokens in the cache; they are in its last columns.
        hidden: float of shape (rows, width), the last hidden states, from which the next tokens are drawn.
        cache: Keys and values of shape (rows, heads, columns, head size) per layer.
    """

    rows: NDArray[np.int64]
    length: NDArray[np.int64]
    hidden: Tensor
    cache: DynamicCache


def check_sampling(model: Model) -> None:
    """Check on random tokens that sampling reports the model's log-probabilities.

    It moves and joins the keys and values that layers keep. Layers that keep anything else are not supported. The two
    prompts have different lengths, so that rows are moved.

    Raises:
        InputError: It does not, or the model cannot be run with a cache of keys and values.
    """
    options = SamplingOptions(max_new_tokens=4, temperature=1.0, stop=())
    plain = unwrap_peft(model)
    name = type(plain).__name__
    expected = "expected a model whose layers keep keys and values alone"
    advice = "which in-process sampling does not support; use rollout.engine = 'vllm', or another model"
    with trying(model) as trial:
        prompts = [ids.tolist() for ids in trial.sequences]
        try:
            sampled = sample_responses(model, prompts, [0, 1], options)
        except Exception as error:  # of the model's own code
            reason = f"{type(error).__name__}: {one_line(error, 200)}"
            raise InputError(
                f"{expected}, received {name} ({reason}), {advice}"
            ) from error
        for prompt, response in zip(prompts, sampled, strict=True):
            # The same tokens in one forward pass without a cache.
            ids = torch.tensor([[*prompt, *response.tokens]], device=model.device)
            states = last_hidden_states(model, ids)[0, len(prompt) - 1 : -1]
            whole = plain.get_output_embeddings()(states).float().log_softmax(-1)
            logprobs = whole.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu()
            difference = (torch.from_numpy(response.logprobs) - logprobs).abs().max()
            if not difference < trial.tolerance * logprobs.abs().max():
                raise InputError(f"{expected}, received {name}, {advice}")


def prompt_chunks(
    prompts: Sequence[Sequence[int]], max_tokens: int, options: SamplingOptions
) -> list[NDArray[np.int64]]:
    """Divide requests into chunks whose prompts are computed together, the longest prompts first.

    A chunk is a single request; or its distinct prompts have at most `max_tokens` tokens with padding, and its rows
    take at most a quarter of the memory, so that it can join a batch of which some rows have ended. Equal prompts, such
    as the first ones of a group, are adjacent and computed once per chunk.
    """
    # Equal prompts are adjacent in this order, and have the same rank: the number of distinct prompts before them.
    keys = [tuple(prompt) for prompt in prompts]
    order = sorted(range(len(keys)), key=lambda row: (-len(keys[row]), keys[row]))
    ranks = {
        key: rank for rank, key in enumerate(dict.fromkeys(keys[row] for row in order))
    }
    rank = np.array([ranks[keys[row]] for row in order])

    memory = options.max_batch_tokens // 4
    chunks = []
    first = 0
    while first < len(order):
        width = len(keys[order[first]])  # the longest of the chunk
        most_prompts = max(1, max_tokens // width)
        most_rows = max(1, memory // (width + options.max_new_tokens))
        last = int(np.searchsorted(rank, rank[first] + most_prompts))
        last = min(last, first + most_rows)
        chunks.append(np.array(order[first:last]))
        first = last
    return chunks


def prefill(
    decoder: Model,
    prompts: Sequence[Sequence[int]],
    rows: NDArray[np.int64],
    device: torch.device,
) -> _Batch:
    """Compute the keys and values of a chunk's prompts, and the hidden state of each prompt's last token."""
    from transformers import DynamicCache

    # Each distinct prompt is computed once; `source` is the number of each row's prompt.
    chosen = [tuple(prompts[row]) for row in rows]
    distinct = {prompt: index for index, prompt in enumerate(dict.fromkeys(chosen))}
    source = np.array([distinct[prompt] for prompt in chosen])
    length = np.array([len(prompt) for prompt in distinct])
    width = int(length.max())
    padded = np.zeros((len(distinct), width), np.int64)
    is_token = np.arange(width) < length[:, None]
    padded[is_token] = np.concatenate(
        [np.asarray(prompt, np.int64) for prompt in distinct]
    )

    # Here padding is on the right, where the causal mask hides it: attention is faster without another mask.
    cache = DynamicCache()
    ids = torch.from_numpy(padded).to(device)
    keyword = cache_keyword(type(decoder).forward)
    hidden = decoder(input_ids=ids, use_cache=True, **{keyword: cache})[0]
    last = torch.from_numpy(length[source] - 1).to(device)
    row_source = torch.from_numpy(source).to(device)
    hidden = hidden[row_source, last]

    # In the cache it is on the left: a column that is moved to the right of the first one repeats it, and is masked.
    if (length < width).any():
        present = np.maximum(np.arange(width) - (width - length)[:, None], 0)
        columns = torch.from_numpy(present).to(device)[:, None, :, None]
        layers = []
        for keys, values, *_ in cache:
            layers.append(
                (
                    keys.gather(2, columns.expand_as(keys)),
                    values.gather(2, columns.expand_as(values)),
                )
            )
        cache = DynamicCache(layers)
    if len(distinct) < len(rows):
        cache.batch_select_indices(row_source)
    return _Batch(rows, length[source], hidden, cache)


@lru_cache
def cache_keyword(forward: Callable[..., object]) -> str:
    """Return the name of the argument by which a decoder takes its cache. Transformers 5.24 changes it."""
    return "cache" if "cache" in signature(forward).parameters else "past_key_values"


def _joined(parts: list[_Batch]) -> _Batch:
    """Return the rows of all parts as one batch, with only the columns that they use."""
    from transformers import DynamicCache

    if len(parts) == 1:
        return parts[0]
    width = max(int(part.length.max()) for part in parts)
    layers = []
    for of_parts in zip(*(part.cache for part in parts), strict=True):
        keys, values, *_ = zip(*of_parts, strict=True)
        joined = []
        for states in (keys, values):
            # a negative amount of padding removes columns
            padded = [pad(part, (0, 0, width - part.shape[2], 0)) for part in states]
            joined.append(torch.cat(padded))
        layers.append(tuple(joined))
    return _Batch(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.length for part in parts]),
        torch.cat([part.hidden for part in parts]),
        DynamicCache(layers),
    )


def sample_tokens(
    logits: Tensor,
    uniform: Tensor,
    temperature: float,
    top_p: float = 1.0,
) -> tuple[Tensor, Tensor]:
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
    # In float32, whatever the model computes in: the eight bits of bfloat16 are too few for log-probabilities.
    logprob = torch.log_softmax(logits.float() / (temperature or 1.0), -1)
    if top_p < 1.0:
        logprob = nucleus(logprob, top_p)
    if temperature == 0:
        token = logprob.argmax(-1, keepdim=True)
    else:
        # In float64, because the error of a sum over 150,000 tokens would move the bounds between unlikely ones.
        total = logprob.double().exp().cumsum(-1)
        # right=True skips all cumulative values ≤ u · total, so a token of probability zero is never drawn.
        drawn = uniform * total[:, -1]
        token = torch.searchsorted(total, drawn[:, None], right=True)
        token = token.clamp(max=logits.shape[-1] - 1)
    return token.squeeze(-1), logprob.gather(-1, token).squeeze(-1)


def nucleus(logprob: Tensor, top_p: float) -> Tensor:
    """Return normalized log-probabilities of the most likely tokens that reach `top_p`, minus infinity elsewhere."""
    ordered, order = logprob.sort(-1, descending=True)
    probability = ordered.exp()
    before = probability.cumsum(-1) - probability  # of all more likely tokens
    none = torch.zeros_like(logprob, dtype=torch.bool)
    kept = none.scatter(-1, order, before < top_p)
    return torch.log_softmax(logprob.masked_fill(~kept, -torch.inf), -1)
