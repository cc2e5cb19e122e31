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
    cache_argument,
    nucleus,
    prefill,
    prompt_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from hgpo_train.models.hf import Model
    from hgpo_train.policies.token_sampling import SamplingOptions

_LOGITS: Final = 1 << 24
"""Number of logits in memory at a time."""


class _Trie(NamedTuple):
    """The distinct tokens of the responses to one prompt, parents before children.

    Attributes:
        tokens: Token ids.
        parents: The node before each node; -1 after the prompt.
        depths: Number of tokens between the prompt and each node.
        ends: The last node of each response; -1 for an empty one.
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
) -> list[NDArray[np.float64]]:
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
        raise InputError(f"expected a model with the attention sdpa or eager to score responses, received {attention}")
    plain.eval()
    device = plain.device
    tries = [_trie(listed) for listed in responses]
    found: list[NDArray[np.float64]] = [np.zeros(0)] * len(prompts)
    most = PREFILL_TOKENS_CPU if device.type == "cpu" else PREFILL_TOKENS
    with torch.inference_mode():
        for rows in prompt_chunks(prompts, most, options):
            hidden = _hidden_states(plain, prompts, rows, [tries[row] for row in rows])
            for place, row in enumerate(rows):
                found[row] = _probabilities(plain, hidden[place], tries[row], responses[row], options)
    return found


def _attention(model: Model) -> str | None:
    name: str | None = getattr(model.config, "_attn_implementation", None)
    return name


def _trie(responses: Sequence[Sequence[int]]) -> _Trie:
    trie = _Trie([], [], [], [])
    nodes: dict[tuple[int, int], int] = {}
    for response in responses:
        node = -1
        for depth, token in enumerate(response):
            parent = node
            node = nodes.setdefault((node, token), len(trie.tokens))
            if node == len(trie.tokens):
                trie.tokens.append(token)
                trie.parents.append(parent)
                trie.depths.append(depth)
        trie.ends.append(node)
    return trie


def _hidden_states(
    model: Model, prompts: Sequence[Sequence[int]], rows: NDArray[np.int64], tries: Sequence[_Trie]
) -> Tensor:
    """Return the last hidden states, of shape (rows, 1 + nodes, width): of each prompt's last token, then of nodes."""
    decoder = model.get_decoder()
    device = model.device
    batch = prefill(decoder, prompts, rows, device)
    first = batch.hidden[:, None]
    nodes = max(len(trie.tokens) for trie in tries)
    if not nodes:
        return first
    width = batch.cache.get_seq_length()
    tokens, depths = np.zeros((2, len(rows), nodes), np.int64)
    visible = np.zeros((len(rows), nodes, width + nodes), bool)
    visible[:, :, :width] = (np.arange(width) >= width - batch.length[:, None])[:, None]
    visible[:, np.arange(nodes), width + np.arange(nodes)] = True
    for row, trie in enumerate(tries):
        tokens[row, : len(trie.tokens)] = trie.tokens
        depths[row, : len(trie.tokens)] = trie.depths
        for node, parent in enumerate(trie.parents):
            if parent >= 0:
                visible[row, node, width:] |= visible[row, parent, width:]
    positions = batch.length[:, None] + depths
    keys = np.concatenate([np.arange(width) - (width - batch.length[:, None]), positions], 1)
    hidden = decoder(
        input_ids=torch.from_numpy(tokens).to(device),
        attention_mask=_masks(model, visible, positions[:, :, None] - keys[:, None]),
        position_ids=torch.from_numpy(positions).to(device),
        **cache_argument(decoder, batch.cache),
    )[0]
    return torch.cat([first.to(hidden.dtype), hidden], 1)


def _masks(model: Model, visible: NDArray[np.bool_], distance: NDArray[np.int64]) -> Tensor | dict[str, Tensor]:
    """Return the mask of attention, or one for each kind of layer.

    Args:
        model: The model.
        visible: Whether a token sees a column, of shape (rows, tokens, columns).
        distance: The positions between a token and a column, of the same shape.
    """
    config = model.config.get_text_config(decoder=True)

    def mask(allowed: NDArray[np.bool_]) -> Tensor:
        chosen = torch.from_numpy(allowed)[:, None].to(model.device)
        if _attention(model) == "sdpa":
            return chosen
        return torch.zeros(chosen.shape, device=model.device).masked_fill(~chosen, torch.finfo(torch.float32).min)

    if "sliding_attention" not in (getattr(config, "layer_types", None) or ()):
        return mask(visible)
    return {"full_attention": mask(visible), "sliding_attention": mask(visible & (distance < config.sliding_window))}


def _probabilities(
    model: Model, hidden: Tensor, trie: _Trie, responses: Sequence[Sequence[int]], options: SamplingOptions
) -> NDArray[np.float64]:
    """Return the probabilities of the responses to one prompt."""
    stops = list(options.stop)
    nodes = len(trie.tokens)
    before = np.array([*(parent + 1 for parent in trie.parents), *np.repeat(np.array(trie.ends, int) + 1, len(stops))])
    after = np.array([*trie.tokens, *stops * len(trie.ends)], np.int64)
    logprobs = _logprobs(model, hidden, before.astype(np.int64), after, options)
    total = np.zeros(nodes + 1)  # the last one is that of the empty response
    for node, parent in enumerate(trie.parents):
        total[node] = total[parent] + logprobs[node]
    ended = np.exp(logprobs[nodes:]).reshape(len(trie.ends), len(stops)).sum(1)
    lengths = np.array([len(response) for response in responses])
    ended = np.where(lengths < options.max_new_tokens, ended, lengths == options.max_new_tokens)
    probabilities: NDArray[np.float64] = np.exp(total[np.array(trie.ends, int)]) * ended
    return probabilities


def _logprobs(
    model: Model, hidden: Tensor, before: NDArray[np.int64], after: NDArray[np.int64], options: SamplingOptions
) -> NDArray[np.float64]:
    """Return the log-probabilities, float64, of tokens `after` the hidden states at the places `before`."""
    head = model.get_output_embeddings()
    places, of_place = np.unique(before, return_inverse=True)
    found = np.zeros(len(before))
    step = max(1, _LOGITS // head.weight.shape[0])
    for first in range(0, len(places), step):
        logits = head(hidden[torch.from_numpy(places[first : first + step]).to(hidden.device)])
        table = torch.log_softmax(logits.float() / (options.temperature or 1.0), -1)
        if options.temperature == 0:
            greedy = table.argmax(-1, keepdim=True)
            table = torch.full_like(table, -torch.inf).scatter(-1, greedy, 0.0)
        elif options.top_p < 1.0:
            table = nucleus(table, options.top_p)
        here = (of_place >= first) & (of_place < first + step)
        chosen = table.cpu()[torch.from_numpy(of_place[here] - first), torch.from_numpy(after[here])]
        found[here] = chosen.double().numpy()
    return found
