"""Measure the bias of the gradient with rollouts of another policy, and what truncated importance sampling leaves.

    python -m benchmarks rollout_correction        less than a minute

The rollouts are those of a copy of a small random model, with weights rounded to bfloat16 or with Gaussian noise. All
144 responses of two tokens are enumerated, each with a random advantage and weighted with its probability under the
copy. The gradient of the real update is then an exact expectation. Its bias is its distance from the gradient for
rollouts of the model itself, relative to the norm of the latter.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.runner import Row
from hgpo_train.training.config import Config, replace
from hgpo_train.training.update.batches import samples_from_steps
from hgpo_train.training.update.learner import Learner, LossInputs
from hgpo_train.training.update.rollout_correction import rollout_correction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from hgpo_train.models.hf import Model
    from hgpo_train.training.update.batches import Samples
    from hgpo_train.training.update.rollout_correction import Level

VOCABULARY: Final = 12
LENGTH: Final = 2
PROMPT: Final = (3, 1, 4)
GAPS: Final = ("bfloat16", 0.003, 0.01, 0.02, 0.03)
THRESHOLD: Final = 2.0
LEVELS: Final[tuple[Level | None, ...]] = (None, "token", "sequence")
SETTINGS: Final = replace(
    Config(),
    model={"compute_dtype": "float32", "gradient_checkpointing": False},
    update={
        "kl_weight": 0.0,
        "entropy_weight": 0.0,
        "logit_chunk": 0,
        "micro_batch_tokens": 10**6,
    },
)


def make_policy() -> Model:
    """Return a small model with random weights, large enough for a distribution that is far from uniform."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8.0 if weight.dim() > 1 else 1.0)
    return model


def behaviour_of(policy: Model, gap: str | float) -> Model:
    """Return the copy that rollouts are sampled from: rounded to bfloat16, or with noise of a standard deviation."""
    copied = copy.deepcopy(policy)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in copied.parameters():
            if isinstance(gap, str):
                weight.copy_(weight.bfloat16().float())
            else:
                weight.add_(torch.randn(weight.shape, generator=generator) * gap)
    return copied


def every_response() -> Samples:
    """Return one sample for each response, with a random advantage."""
    responses = list(itertools.product(range(VOCABULARY), repeat=LENGTH))
    steps = {
        "prompt_token_ids": [PROMPT] * len(responses),
        "response_token_ids": responses,
        "advantage": np.random.default_rng(0).normal(size=len(responses)) + 1.0,
    }
    return samples_from_steps(pl.DataFrame(steps))


def logprobs(model: Model, samples: Samples) -> NDArray[np.float32]:
    """Return the log-probabilities of all response tokens."""
    return Learner(copy.deepcopy(model), SETTINGS).logprobs(samples)


def expected_gradient(
    policy: Model, behaviour: Model, level: Level | None = None
) -> Tensor:
    """Return the expectation of the update's gradient over responses sampled from `behaviour`.

    The mean over tokens of all responses, each times its probability and the number of tokens, is the expectation.
    """
    samples = every_response()
    old = logprobs(policy, samples)
    rollout = logprobs(behaviour, samples)
    probability = np.exp(rollout.reshape(-1, LENGTH).astype(np.float64).sum(1))
    advantage = samples.advantage * probability * samples.response_start[-1]
    samples = dataclasses.replace(samples, advantage=advantage)
    weight = None
    if level:
        weight, *_ = rollout_correction(
            old, rollout, samples.response_start, level, THRESHOLD
        )
    learner = Learner(copy.deepcopy(policy), SETTINGS)
    learner.accumulate(
        samples, np.arange(len(samples)), LossInputs(old, rollout_is=weight)
    )
    return torch.cat(
        [parameter.grad.flatten() for parameter in learner.model.parameters()]
    ).double()


def run() -> Iterator[Row]:
    """Measure the bias of every level of correction for every copy."""
    torch.set_num_threads(1)
    policy = make_policy()
    samples = every_response()
    exact = expected_gradient(policy, policy)
    for gap in GAPS:
        case = gap if isinstance(gap, str) else f"noise {gap}"
        behaviour = behaviour_of(policy, gap)
        distance = np.abs(logprobs(policy, samples) - logprobs(behaviour, samples))
        yield Row("mean gap of log-probabilities", float(distance.mean()), case=case)
        for level in LEVELS:
            error = expected_gradient(policy, behaviour, level) - exact
            bias = (error.norm() / exact.norm()).item()
            yield Row(f"correction: {level}", bias, "%", case=case)
