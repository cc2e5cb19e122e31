"""Probabilities of given responses under a causal language model, with each prompt computed once.

The responses to a prompt form a trie, whose tokens are computed in one pass after the prompt's keys and values: a token
attends to the prompt and to the tokens above it. Prefixes such as "go to" are thus computed once, and nothing is copied
per response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch

from hgpo_envs.errors import InputError
from hgpo_train.models.hf import unwrap_peft
from hgpo_train.policies.token_sampling import (
    PREFILL_TOKENS,
    PREFILL_TOKENS_CPU,
    cache_keyword,
    nucleus,
    prefill,
    prompt_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hgpo_research.arrays import Booleans, Floats, Integers
    from hgpo_train.models.hf import Model
    from hgpo_train.policies.token_sampling import SamplingOptions

_LOGITS: Final = 1 << 24
"""Number of logits in memory at a time."""


class _Trie(NamedTuple):
    """The distinct tokens of the responses to one prompt, parents before children. The number of a token is from 1.

    Attributes:
        tokens: Token ids.
        parents: The number of the token before each one; 0 after the prompt.
        depths: Number of tokens between the prompt and each one.
        ends: The number of each response's last token; 0 for an empty one.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    ends: list[int]


def score_responses(
    model: Model,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[Sequence[int]]],
    options: SamplingOptions,
) -> list[Floats]:
    """Return the probability that `sample_responses` returns each response, up to rounding.

    A response of n tokens has the probability of its tokens, times that of any token of `options.stop` after them. A
    response of `options.max_new_tokens` tokens needs no such token, and a longer one has the probability 0.

    Args:
        model: A causal language model.
        prompts: Token ids, at least one per prompt.
        responses: The responses to each prompt: token ids, without a token that ends them.
        options: Options of sampling.

    Returns:
        Probabilities, float64 of shape (responses,) for each prompt.

    Raises:
        InputError: The model has another implementation of attention than sdpa or eager.
    """
    plain = unwrap_peft(model)
    if (attention := _attention(plain)) not in ("sdpa", "eager"):
        raise InputError(
            f"expected a model with the attention sdpa or eager to score responses, received {attention}"
        )
    plain.eval()
    device = plain.device
    tries = [_trie(listed) for listed in responses]
    found: list[Floats] = [np.zeros(0)] * len(prompts)
    most = PREFILL_TOKENS_CPU if device.type == "cpu" else PREFILL_TOKENS
    with torch.inference_mode():
        for rows in prompt_chunks(prompts, most, options):
            hidden = _hidden_states(plain, prompts, rows, [tries[row] for row in rows])
            for place, row in enumerate(rows):
                found[row] = _probabilities(
                    plain,
                    hidden[place],
                    tries[row],
                    responses[row],
                    options,
                )
    return found


def _attention(model: Model) -> str | None:
    name: str | None = getattr(model.config, "_attn_implementation", None)
    return name


def _trie(responses: Sequence[Sequence[int]]) -> _Trie:
    prefixes: dict[tuple[int, ...], int] = {(): 0}
    for response in responses:
        for length in range(1, len(response) + 1):
            prefixes.setdefault(tuple(response[:length]), len(prefixes))
    _, *tokens = prefixes
    return _Trie(
        tokens=[prefix[-1] for prefix in tokens],
        parents=[prefixes[prefix[:-1]] for prefix in tokens],
        depths=[len(prefix) - 1 for prefix in tokens],
        ends=[prefixes[tuple(response)] for response in responses],
    )


def _hidden_states(
    model: Model,
    prompts: Sequence[Sequence[int]],
    rows: Integers,
    tries: Sequence[_Trie],
) -> Tensor:
    """Return the last hidden states, of shape (rows, 1 + tokens, width): of each prompt's last token, then of tries."""
    decoder = model.get_decoder()
    device = model.device
    batch = prefill(decoder, prompts, rows, device)
    first = batch.hidden[:, None]
    count = max(len(trie.tokens) for trie in tries)
    if not count:
        return first

    # A token sees its prompt, which is in the last columns of the cache, the tokens above it, and itself.
    width = batch.cache.get_seq_length()
    tokens = np.zeros((len(rows), count), np.int64)
    depths = np.zeros((len(rows), count), np.int64)
    visible = np.zeros((len(rows), count, width + count), bool)
    first_of_prompt = width - batch.length
    in_prompt = np.arange(width) >= first_of_prompt[:, None]
    visible[:, :, :width] = in_prompt[:, None]
    visible[:, np.arange(count), width + np.arange(count)] = True
    for row, trie in enumerate(tries):
        tokens[row, : len(trie.tokens)] = trie.tokens
        depths[row, : len(trie.tokens)] = trie.depths
        for number, parent in enumerate(trie.parents):
            # A parent is before its children: what it sees is complete by now.
            if parent:
                visible[row, number, width:] |= visible[row, parent - 1, width:]

    positions = batch.length[:, None] + depths
    # Columns of padding, before the prompts, have negative positions, and no token sees them.
    keys = np.concatenate(
        [np.arange(width) - (width - batch.length[:, None]), positions], 1
    )
    hidden = decoder(
        input_ids=torch.from_numpy(tokens).to(device),
        attention_mask=_masks(model, visible, positions[:, :, None] - keys[:, None]),
        position_ids=torch.from_numpy(positions).to(device),
        use_cache=True,
        **{cache_keyword(type(decoder).forward): batch.cache},
    )[0]
    return torch.cat([first.to(hidden.dtype), hidden], 1)


def _masks(
    model: Model, visible: Booleans, distance: Integers
) -> Tensor | dict[str, Tensor]:
    """Return the mask of attention, or one for each kind of layer.

    Args:
        model: The model.
        visible: Whether a token sees a column, of shape (rows, tokens, columns).
        distance: The positions between a token and a column, of the same shape.
    """
    config = model.config.get_text_config(decoder=True)

    def mask(allowed: Booleans) -> Tensor:
        chosen = torch.from_numpy(allowed)[:, None].to(model.device)
        if _attention(model) == "sdpa":
            return chosen
        return torch.zeros(chosen.shape, device=model.device).masked_fill(
            ~chosen, torch.finfo(torch.float32).min
        )

    if "sliding_attention" not in (getattr(config, "layer_types", None) or ()):
        return mask(visible)
    return {
        "full_attention": mask(visible),
        "sliding_attention": mask(visible & (distance < config.sliding_window)),
    }


def _probabilities(
    model: Model,
    hidden: Tensor,
    trie: _Trie,
    responses: Sequence[Sequence[int]],
    options: SamplingOptions,
) -> Floats:
    """Return the probabilities of the responses to one prompt."""
    ends = np.array(trie.ends, np.int64)
    stops = len(options.stop)

    # One call for the tokens of the trie, each after its parent, and then for every stop token after each response.
    before = np.concatenate([np.array(trie.parents, np.int64), np.repeat(ends, stops)])
    after = np.array([*trie.tokens, *options.stop * len(ends)], np.int64)
    logprobs = _logprobs(model, hidden, before, after, options)
    total = np.zeros(1 + len(trie.tokens))
    for number, parent in enumerate(trie.parents, 1):
        total[number] = total[parent] + logprobs[number - 1]
    of_stops = np.exp(logprobs[len(trie.tokens) :])
    ended = of_stops.reshape(len(ends), stops).sum(1)

    # A response of the largest length ends by itself, and a longer one is never sampled.
    lengths = np.array([len(response) for response in responses])
    ended = np.where(
        lengths < options.max_new_tokens,
        ended,
        lengths == options.max_new_tokens,
    )
    probabilities: Floats = np.exp(total[ends]) * ended
    return probabilities


def _logprobs(
    model: Model,
    hidden: Tensor,
    before: Integers,
    after: Integers,
    options: SamplingOptions,
) -> Floats:
    """Return the log-probabilities, float64, of tokens `after` the hidden states at the places `before`."""
    head = model.get_output_embeddings()
    # Many tokens follow the same hidden state, whose logits are computed once.
    places, of_place = np.unique(before, return_inverse=True)
    found = np.zeros(len(before))
    # The logits of all places at once would not fit into memory.
    step = max(1, _LOGITS // head.weight.shape[0])
    for first in range(0, len(places), step):
        logits = head(
            hidden[torch.from_numpy(places[first : first + step]).to(hidden.device)]
        )
        table = torch.log_softmax(logits.float() / (options.temperature or 1.0), -1)
        if options.temperature == 0:
            greedy = table.argmax(-1, keepdim=True)
            table = torch.full_like(table, -torch.inf).scatter(-1, greedy, 0.0)
        elif options.top_p < 1.0:
            table = nucleus(table, options.top_p)
        # The tokens that follow the hidden states of this chunk.
        here = (of_place >= first) & (of_place < first + step)
        chosen = table.cpu()[
            torch.from_numpy(of_place[here] - first),
            torch.from_numpy(after[here]),
        ]
        found[here] = chosen.double().numpy()
    return found
