"""`transformers:MODEL`: a Transformers model in process as a policy, also the model that is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from hgpo_envs.errors import InputError, unknown
from hgpo_train.models.chat_format import end_tokens
from hgpo_train.policies.base import BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.generation import (
    GenerationOptions,
    fit_prompts,
    model_options,
)
from hgpo_train.policies.registry import PolicyContext, PolicySpec, TrainableContext
from hgpo_train.settings import build

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_train.models.hf import Model, Tokenizer
    from hgpo_train.policies.token_sampling import SampledResponse, SamplingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersOptions(GenerationOptions):
    """Options of `transformers:MODEL`."""

    device: str = "auto"
    """A torch device; auto selects an accelerator if one is available."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype that autocast computes in."""


class TransformersPolicy(BatchPolicy):
    """A policy that samples from a causal language model.

    A reply depends on the request's prompt and seed and on the weights. On a CPU it is reproducible: equal calls return
    equal bytes, and other batches of the same requests change at most the last bits of log-probabilities.

    Args:
        model: The model. Each call uses its current weights.
        tokenizer: The model's tokenizer, with a chat template.
        options: Options of tokenization and sampling; may be replaced between calls.
        compute_dtype: The dtype that autocast computes in.

    Attributes:
        ends: Ids of the tokens that end a response.
        autocast: Makes a context in which the model computes in the policy's dtype.
    """

    name = "transformers"

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        options: GenerationOptions,
        compute_dtype: str = "float32",
    ) -> None:
        import torch

        super().__init__()
        self.options = options
        self.model = model
        self.tokenizer = tokenizer
        device = next(model.parameters()).device.type
        self.reproducible = device == "cpu"
        self.autocast = partial(
            torch.autocast,
            device,
            getattr(torch, compute_dtype),
            enabled=compute_dtype != "float32",
        )
        self.ends = end_tokens(tokenizer, model)

    def publish(self, model: Model, version: int) -> None:
        """See `TrainablePolicy`. If the model is the same object, it has the new weights already."""
        self.model = model
        self.version = version

    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """See `BatchPolicy`."""
        # 1. The prompts that fit, and a response to each.
        prompts = fit_prompts(self.tokenizer, requests, self.options)
        tokens: list[list[int]] = []
        seeds: list[int] = []
        for request, prompt in zip(requests, prompts, strict=True):
            if not isinstance(prompt, Failure):
                tokens.append(prompt.tokens)
                seeds.append(request.seed)
        responses = iter(self.sampled(tokens, seeds))

        # 2. Their replies.
        replies: list[Reply | Failure] = []
        for prompt in prompts:
            if isinstance(prompt, Failure):
                replies.append(prompt)
                continue
            response = next(responses)
            reply = prompt.reply(
                self.tokenizer,
                self.options,
                self.ends,
                response.tokens.tolist(),
                response.logprobs.tolist(),
            )
            replies.append(reply)
        return replies

    def sampled(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]
    ) -> list[SampledResponse]:
        """Sample a response to each prompt, of token ids, with a seed each."""
        from hgpo_train.policies.token_sampling import sample_responses

        with self.autocast():
            return sample_responses(self.model, prompts, seeds, self.sampling())

    def sampling(self) -> SamplingOptions:
        """Return the options of sampling."""
        from hgpo_train.policies.token_sampling import SamplingOptions

        return SamplingOptions(
            max_new_tokens=self.options.max_response_tokens,
            temperature=self.options.temperature,
            top_p=self.options.top_p,
            stop=self.ends,
            max_batch_tokens=self.options.max_batch_tokens,
        )


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
    from hgpo_train.models.device import choose_device
    from hgpo_train.models.loading import load_model, load_tokenizer
    from hgpo_train.models.preflight import check_model_source
    from hgpo_train.policies.token_sampling import check_sampling

    options = model_options("transformers", argument, TransformersOptions, context)
    choose_device(options.device)
    check_model_source(argument)
    config = ModelConfig(
        path=argument,
        device=options.device,
        compute_dtype=options.compute_dtype,
        gradient_checkpointing=False,
    )
    tokenizer = load_tokenizer(argument, options.chat_template)
    model = load_model(config)
    check_sampling(model)
    return TransformersPolicy(model, tokenizer, options, config.compute_dtype)


def make_trainable(
    model: Model, tokenizer: Tokenizer, context: TrainableContext
) -> TransformersPolicy:
    """Create a policy that samples from the model object that is trained, so publishing copies no weights."""
    from hgpo_train.policies.token_sampling import check_sampling

    options = replace(context.generation, **context.engine_options)
    check_sampling(model)
    return TransformersPolicy(model, tokenizer, options, context.model.compute_dtype)


def check_engine(engine_options: Mapping[str, Any]) -> None:
    """Raise `InputError` if an engine option is unknown or has an invalid value."""
    # The other options of generation are settings of their own.
    known = "rollout.engine_options.max_batch_tokens"
    for name in engine_options:
        if not known.endswith(f".{name}"):
            raise InputError(
                unknown("setting", f"rollout.engine_options.{name}", [known])
            )
    build(GenerationOptions, engine_options, "setting", "rollout.engine_options.")


TRANSFORMERS = PolicySpec(
    make, make_trainable, TransformersOptions, check_engine=check_engine
)
