"""`transformers:MODEL`: a Transformers model in process as a policy, also the model that is trained."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import torch

from hgpo_envs.action_features import OPEN_QUERY
from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import Distribution, Failure, MemorylessPolicy, Reply, Request
from hgpo_train.policies.generation import FittedPrompt, GenerationOptions, fit_prompts
from hgpo_train.policies.registry import PolicySpec
from hgpo_train.policies.response_scoring import score_responses
from hgpo_train.policies.scripted import formatted_actions, inadmissible_action
from hgpo_train.policies.token_sampling import SampledResponse, SamplingOptions, sample_responses
from hgpo_train.settings import build, merge, to_dict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from hgpo_train.models.hf import Model, Tokenizer
    from hgpo_train.policies.registry import PolicyContext, TrainableContext


QUERY_SAMPLES: Final = 16
"""Number of responses that are sampled where an admissible action is an open query."""

_ENCODINGS: Final = 1 << 14
"""Number of responses whose tokens are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersOptions(GenerationOptions):
    """Options of `transformers:MODEL`."""

    device: str = "auto"
    """A torch device; auto selects an accelerator if one is available."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype that autocast computes in."""


class TransformersPolicy(MemorylessPolicy):
    """A policy that samples from a causal language model.

    A reply depends on the request's prompt and seed and on the weights. On a CPU it is reproducible: equal calls return
    equal bytes, and other batches of the same requests change at most the last bits of log-probabilities.

    Args:
        model: The model. Each call uses its current weights.
        tokenizer: The model's tokenizer, with a chat template.
        options: Options of tokenization and sampling; may be replaced between calls.
        dtype: The dtype that autocast computes in.
        action_format: ``command``, ``response`` or ``number``, for `distributions`; None if it is not known.
    """

    name = "transformers"

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        options: GenerationOptions,
        dtype: torch.dtype = torch.float32,
        action_format: str | None = None,
    ) -> None:
        super().__init__()
        self.options = options
        self._action_format = action_format
        self._model, self._tokenizer, self._dtype = model, tokenizer, dtype
        self._device: torch.device = next(model.parameters()).device
        self.reproducible = self._device.type == "cpu"
        self._ends = end_tokens(model, tokenizer)
        self._encodings: dict[str, tuple[int, ...]] = {}

    def publish(self, model: Model, version: int) -> None:
        """See `TrainablePolicy`. If the model is the same object, it has the new weights already."""
        self._model = model
        self.version = version

    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """See `BatchPolicy`."""
        fitted = fit_prompts(self._tokenizer, requests, self.options)
        asked = [
            (one, request.seed) for one, request in zip(fitted, requests, strict=True) if isinstance(one, FittedPrompt)
        ]
        drawn = self._sampled([one.tokens for one, _ in asked], [seed for _, seed in asked])
        replies = iter(self._reply(one, sampled) for (one, _), sampled in zip(asked, drawn, strict=True))
        return [next(replies) if isinstance(one, FittedPrompt) else one for one in fitted]

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
            InputError: The policy has stop texts, a prompt does not fit, the action format is not known, or the model
                cannot be scored (`score_responses`).
        """
        if self._action_format is None or self.options.stop:
            given = "stop texts" if self.options.stop else "none"
            raise InputError(
                f"policy transformers: expected an action format and no stop texts for probabilities, received {given}"
            )
        fitted = [_checked(one) for one in fit_prompts(self._tokenizer, requests, self.options)]
        asked = {
            (tuple(one.tokens), tuple(request.state.actions)): None
            for one, request in zip(fitted, requests, strict=True)
        }
        queries = self._sampled_queries(asked)
        scored = [self._scored_responses(key[1], queries.get(key, ())) for key in asked]
        with self._computing():
            found = score_responses(
                self._model,
                [prompt for prompt, _ in asked],
                [list(responses) for responses in scored],
                self._sampling(),
            )
        made = {
            key: _distribution(list(responses.values()), probabilities, key[1])
            for key, responses, probabilities in zip(asked, scored, found, strict=True)
        }
        return [
            made[tuple(one.tokens), tuple(request.state.actions)] for one, request in zip(fitted, requests, strict=True)
        ]

    def _sampled_queries(
        self, asked: Iterable[tuple[tuple[int, ...], tuple[str, ...]]]
    ) -> dict[tuple[tuple[int, ...], tuple[str, ...]], list[SampledResponse]]:
        """Return `QUERY_SAMPLES` responses for each prompt and its actions, if one of these is an open query."""
        open_ = [key for key in asked if any(OPEN_QUERY in action for action in key[1])]
        prompts = [list(prompt) for prompt, _ in open_ for _ in range(QUERY_SAMPLES)]
        seeds = [
            text_hash(f"{list(prompt)}/{number}") % (1 << 63) for prompt, _ in open_ for number in range(QUERY_SAMPLES)
        ]
        drawn = self._sampled(prompts, seeds) if open_ else []
        return {key: drawn[QUERY_SAMPLES * place :][:QUERY_SAMPLES] for place, key in enumerate(open_)}

    def _scored_responses(
        self, actions: Sequence[str], queries: Sequence[SampledResponse]
    ) -> dict[tuple[int, ...], str]:
        """Return the tokens of the responses to score, and the responses."""
        assert self._action_format is not None
        closed = [action for action in actions if OPEN_QUERY not in action]
        found: dict[tuple[int, ...], str] = {}
        for text in formatted_actions(closed, self._action_format, actions):
            found.setdefault(self._encoded(text), text)
        for sampled in queries:
            tokens = tuple(int(token) for token in sampled.tokens)
            tokens = tokens[:-1] if tokens[-1] in self._ends else tokens
            found.setdefault(tokens, self._tokenizer.decode(tokens, skip_special_tokens=True))
        return found

    def _encoded(self, text: str) -> tuple[int, ...]:
        found = self._encodings.get(text)
        if found is None:
            if len(self._encodings) >= _ENCODINGS:
                self._encodings.clear()
            found = self._encodings[text] = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return found

    def _sampling(self) -> SamplingOptions:
        return SamplingOptions(
            max_new_tokens=self.options.max_response_tokens,
            temperature=self.options.temperature,
            top_p=self.options.top_p,
            stop=self._ends,
            max_batch_tokens=self.options.max_batch_tokens,
        )

    def _sampled(self, prompts: list[list[int]], seeds: list[int]) -> list[SampledResponse]:
        with self._computing():
            return sample_responses(self._model, prompts, seeds, self._sampling())

    def _reply(self, fitted: FittedPrompt, sampled: SampledResponse) -> Reply:
        count, stopped = len(sampled.tokens), int(sampled.tokens[-1]) in self._ends
        if self.options.stop and (early := self._stop_at(sampled)) is not None:
            count, stopped = early, True
        return Reply(
            response=self._tokenizer.decode(sampled.tokens[:count], skip_special_tokens=True),
            prompt=fitted.prompt,
            prompt_token_ids=fitted.tokens,
            response_token_ids=sampled.tokens[:count].tolist(),
            response_logprobs=sampled.logprobs[:count].tolist(),
            finish_reason="stop" if stopped else "length",
            cut_pairs=fitted.cut_pairs,
            cut_tokens=fitted.cut_tokens,
        )

    def _stop_at(self, sampled: SampledResponse) -> int | None:
        """Return the number of tokens up to the first stop text; None if there is no stop text."""
        for count in range(1, len(sampled.tokens) + 1):
            text = self._tokenizer.decode(sampled.tokens[:count], skip_special_tokens=True)
            if any(stop in text for stop in self.options.stop):
                return count
        return None

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype != torch.float32):
            yield


def _checked(fitted: FittedPrompt | Failure) -> FittedPrompt:
    if isinstance(fitted, Failure):
        raise InputError(f"policy transformers: {fitted}")
    return fitted


def _distribution(responses: Sequence[str], probabilities: NDArray[np.float64], actions: Sequence[str]) -> Distribution:
    """Return the distribution of scored responses, some of which may have the same text, and of anything else."""
    known = dict.fromkeys(responses, 0.0)
    for response, probability in zip(responses, probabilities.tolist(), strict=True):
        known[response] += probability
    other = inadmissible_action([*actions, *known])
    known[other] = max(0.0, 1.0 - sum(known.values()))
    values = np.array(list(known.values()))
    return Distribution(tuple(known), values / values.sum())


def end_tokens(model: Model, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of the tokens that end a response: the tokenizer's, then the generation config's."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = named if isinstance(named, list) else [named]
    return tuple(dict.fromkeys(token for token in (tokenizer.eos_token_id, *listed) if token is not None))


def make(argument: str, context: PolicyContext) -> TransformersPolicy:
    """Create the policy `transformers:MODEL` for `hgpo rollout` and `hgpo eval`.

    Args:
        argument: A model's folder, the folder of a training run, or a Hugging Face name.
        context: The properties of the run.

    Raises:
        InputError: The model is missing or cannot be loaded, an option is not valid, or the device cannot be used.
            Nothing is downloaded if that can be known before.
    """
    from hgpo_train.models.config import ModelConfig
    from hgpo_train.models.loading import choose_device, compute_dtype, load_model, load_tokenizer
    from hgpo_train.models.preflight import check_model_source

    if not argument:
        raise InputError("policy transformers: expected a model, as in transformers:Qwen/Qwen2.5-1.5B-Instruct")
    options = build(TransformersOptions, context.options, "policy option")
    choose_device(options.device)
    check_model_source(argument)
    config = ModelConfig(
        path=argument, device=options.device, compute_dtype=options.compute_dtype, gradient_checkpointing=False
    )
    return TransformersPolicy(
        load_model(config), load_tokenizer(argument), options, compute_dtype(config), context.action_format
    )


def make_trainable(model: Model, tokenizer: Tokenizer, context: TrainableContext) -> TransformersPolicy:
    """Create a policy that samples from the model object that is trained, so publishing copies no weights.

    Raises:
        InputError: An engine option is unknown or has an invalid value.
    """
    from hgpo_train.models.loading import compute_dtype

    given = merge(to_dict(context.generation), context.engine_options)
    options = build(GenerationOptions, given, "setting", "rollout.engine_options.")
    return TransformersPolicy(model, tokenizer, options, compute_dtype(context.model))


TRANSFORMERS = PolicySpec(make, make_trainable, TransformersOptions)
