"""Action probabilities of `transformers:MODEL`: the responses of admissible actions are scored."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_research.policies.distributions import (
    Distribution,
    KnownPolicy,
    formatted_actions,
    inadmissible_action,
)
from hgpo_research.policies.response_scoring import score_responses
from hgpo_train.policies.base import Failure
from hgpo_train.policies.generation import FittedPrompt, fit_prompts
from hgpo_train.policies.scripted import OPEN_QUERY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hgpo_research.arrays import Floats
    from hgpo_train.policies.base import Request
    from hgpo_train.policies.token_sampling import SampledResponse
    from hgpo_train.policies.transformers import TransformersPolicy

    _Key = tuple[tuple[int, ...], tuple[str, ...]]
    """The tokens of a prompt, and the admissible actions."""

QUERY_SAMPLES: Final = 16
"""Number of responses that are sampled where an admissible action is an open query."""

_ENCODINGS: Final = 1 << 14
"""Number of responses whose tokens are kept."""


class ScoredModel(KnownPolicy):
    """The action probabilities of a Transformers model.

    Args:
        policy: The policy.
        action_format: ``command``, ``response`` or ``number``.
        benchmark: The benchmark's name, whose form responses have.
    """

    name = "transformers"
    prompt_read = True

    def __init__(
        self,
        policy: TransformersPolicy,
        action_format: str,
        benchmark: str = "",
    ) -> None:
        self._policy = policy
        self._action_format = action_format
        self._benchmark = benchmark
        self._encoded = lru_cache(_ENCODINGS)(self._encode)

    def distributions(self, requests: Sequence[Request]) -> list[Distribution]:
        """Return the probability of each admissible action, and of anything else.

        The probability of an action is that of the tokens of its response, as the tokenizer encodes it, at the
        temperature and `top_p` of sampling, and of a token that ends it. If the response has exactly
        `max_response_tokens` tokens, nothing has to end it. With ``action_format="response"`` the response has empty
        thoughts. For an open query, `QUERY_SAMPLES` responses are sampled with seeds that depend on the prompt, and the
        distinct ones are scored.

        All other responses together are the last response, an inadmissible action. Among them are other spellings of
        the admissible actions, such as other tokens with the same text.

        Raises:
            InputError: The policy has stop texts, a prompt does not fit, or the model cannot be scored
                (`score_responses`).
        """
        if self._policy.options.stop:
            raise InputError(
                "policy transformers: expected no stop texts for probabilities; remove the option stop"
            )
        fitted = fit_prompts(self._policy.tokenizer, requests, self._policy.options)
        keys = [_key(*each) for each in zip(fitted, requests, strict=True)]
        # Equal prompts with equal actions are scored once.
        asked = list(dict.fromkeys(keys))
        queries = self._sampled_queries(asked)
        scored = [self._scored_responses(key[1], queries.get(key, ())) for key in asked]
        with self._policy.autocast():
            found = score_responses(
                self._policy.model,
                [prompt for prompt, _ in asked],
                [list(responses) for responses in scored],
                self._policy.sampling(),
            )
        made = {
            key: _distribution(list(responses.values()), probabilities, key[1])
            for key, responses, probabilities in zip(asked, scored, found, strict=True)
        }
        return [made[key] for key in keys]

    def _sampled_queries(
        self, asked: Iterable[_Key]
    ) -> dict[_Key, list[SampledResponse]]:
        """Return `QUERY_SAMPLES` responses for each prompt and its actions, if one of these is an open query."""
        open_ = [key for key in asked if any(OPEN_QUERY in action for action in key[1])]
        if not open_:
            return {}
        prompts = [list(prompt) for prompt, _ in open_ for _ in range(QUERY_SAMPLES)]
        seeds = [
            text_hash(f"{prompt}/{n % QUERY_SAMPLES}") % (1 << 63)
            for n, prompt in enumerate(prompts)
        ]
        drawn = self._policy.sampled(prompts, seeds)
        return {
            key: drawn[QUERY_SAMPLES * place :][:QUERY_SAMPLES]
            for place, key in enumerate(open_)
        }

    def _scored_responses(
        self, actions: Sequence[str], queries: Sequence[SampledResponse]
    ) -> dict[tuple[int, ...], str]:
        """Return the tokens of the responses to score, and the responses."""
        # The tokens of an action as the tokenizer writes them: other spellings count as anything else.
        closed = [action for action in actions if OPEN_QUERY not in action]
        found: dict[tuple[int, ...], str] = {}
        for text in formatted_actions(
            closed, self._action_format, actions, self._benchmark
        ):
            found.setdefault(self._encoded(text), text)
        for sampled in queries:
            tokens = tuple(sampled.tokens.tolist())
            if tokens[-1] in self._policy.ends:
                tokens = tokens[:-1]
            found.setdefault(
                tokens,
                self._policy.tokenizer.decode(tokens, skip_special_tokens=False),
            )
        return found

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(
            self._policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        )


def _key(fitted: FittedPrompt | Failure, request: Request) -> _Key:
    if isinstance(fitted, Failure):
        raise InputError(f"policy transformers: {fitted}")
    return tuple(fitted.tokens), tuple(request.state.actions)


def _distribution(
    responses: Sequence[str], probabilities: Floats, actions: Sequence[str]
) -> Distribution:
    """Return the distribution of scored responses, some of which may have the same text, and of anything else."""
    # Different tokens may have the same text.
    known = dict.fromkeys(responses, 0.0)
    for response, probability in zip(responses, probabilities.tolist(), strict=True):
        known[response] += probability
    # Everything else that the model may reply counts as one inadmissible action.
    other = inadmissible_action([*actions, *known])
    known[other] = max(0.0, 1.0 - sum(known.values()))
    values = np.array(list(known.values()))
    return Distribution(tuple(known), values / values.sum())
