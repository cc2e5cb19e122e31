"""Measure what reaches the engine when weights are published: the share of an adapter's change.

    python -m benchmarks publication        a minute

A small model with weights of a bfloat16 checkpoint trains adapters (rank 64, alpha 64, learning rate 3e-6: the shipped
-lora configurations), 16 optimiser steps an iteration. The share is the projection of the published change onto the
trained one, 1 if nothing is lost: of the weights, and of log-probabilities computed in float32 from what was published.
The error is the size of their difference relative to the trained change.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from benchmarks.runner import Row
from hgpo_train.models.adapters import add_adapters
from hgpo_train.models.config import LoraConfig
from hgpo_train.policies.weight_handover import checkpoint_weights
from hgpo_train.training.config import Config, replace
from hgpo_train.training.update.batches import samples_from_steps
from hgpo_train.training.update.learner import Learner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from hgpo_train.models.hf import Model
    from hgpo_train.training.update.batches import Samples

VOCABULARY = 512
LORA = LoraConfig(rank=64, alpha=64)
STEPS = 16
"""Optimiser steps of an iteration."""


def small_model() -> Model:
    """Create a Qwen2 with the initial weights' size of Qwen2.5 (0.02), in bfloat16."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def rows(seed: int, number: int = 64) -> Samples:
    """Return rows of random tokens with random advantages."""
    rng = np.random.default_rng(seed)
    steps = {
        "prompt_token_ids": rng.integers(0, VOCABULARY, (number, 24)).tolist(),
        "response_token_ids": rng.integers(0, VOCABULARY, (number, 8)).tolist(),
        "advantage": rng.normal(size=number),
    }
    return samples_from_steps(pl.DataFrame(steps))


def rounded_adapters(model: Model) -> dict[str, Tensor]:
    """Return the weights that an engine with bfloat16 adapters applies, in float32: base + scale · B · A."""
    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16().to(parameter.dtype)
    return checkpoint_weights(rounded)


def log_probabilities(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Return log softmax at all positions, computed in float32 from weights."""
    model = small_model().float()
    model.load_state_dict(
        {name: value.float() for name, value in weights.items()}, strict=False
    )
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=ids).logits.double(), -1)


def trained_adapters() -> Iterator[tuple[int, Model]]:
    """Train adapters, and yield the model after one and after five iterations."""
    config = replace(
        Config(),
        model={"compute_dtype": "bfloat16", "gradient_checkpointing": False},
        update={"kl_weight": 0.0, "mini_batch_size": 64 // STEPS},
        optimiser={"learning_rate": 3e-6},
    )
    model = add_adapters(small_model(), LORA)
    learner = Learner(model, config)
    for iteration in range(1, 6):
        learner.update(rows(iteration), np.random.default_rng(iteration))
        if iteration in (1, 5):
            yield iteration, model


def run() -> Iterator[Row]:
    """Compare the change that each way publishes with the trained one."""
    base = {
        name: value.float() for name, value in checkpoint_weights(small_model()).items()
    }
    ids = torch.randint(
        0, VOCABULARY, (16, 32), generator=torch.Generator().manual_seed(9)
    )
    before = log_probabilities(base, ids)
    for iteration, model in trained_adapters():
        exact = checkpoint_weights(model)
        changed = [
            name for name, value in exact.items() if not torch.equal(value, base[name])
        ]
        trained = weight_change(exact, base, changed)
        trained_logprobs = (log_probabilities(exact, ids) - before).flatten()
        merged = copy.deepcopy(model).merge_and_unload()
        ways = {
            "merged in bfloat16": checkpoint_weights(merged),
            "merged in float32, served in bfloat16": checkpoint_weights(
                model, torch.bfloat16
            ),
            "as adapters, the default": rounded_adapters(model),
        }
        for way, weights in ways.items():
            logprobs = (log_probabilities(weights, ids) - before).flatten()
            change = weight_change(weights, base, changed)
            for what, published, wanted in (
                ("the weights'", change, trained),
                ("the log-probabilities'", logprobs, trained_logprobs),
            ):
                share = (published @ wanted / (wanted @ wanted)).item()
                error = ((published - wanted).norm() / wanted.norm()).item()
                yield Row(
                    f"{way}: {what} change",
                    share,
                    "%",
                    note=f"error {error:.0%}",
                    case=f"{iteration} iterations",
                )


def weight_change(
    weights: dict[str, Tensor], base: dict[str, Tensor], names: list[str]
) -> Tensor:
    """Return the difference of weights as one vector."""
    return torch.cat(
        [(weights[name].float() - base[name]).flatten().double() for name in names]
    )
