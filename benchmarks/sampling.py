"""Measure the in-process sampler on requests like those of the small configurations.

    python -m benchmarks sampling        CPU seconds on one core, a minute

A model of about a million parameters with random weights answers calls of 96 requests, as an environment step of
`tiny-alfworld` sends them: prompts of 70 to 250 tokens, and responses of about five tokens, at most 16. In the first
call, groups of eight share a prompt. It is compared with Transformers' `generate` on the same requests, in batches of
similar lengths that run until their last row has ended, without log-probabilities. Both use the same memory for keys
and values, and take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.runner import Row, least, seconds
from hgpo_train.models.tiny import TinyShape
from hgpo_train.policies.token_sampling import SamplingOptions, sample_responses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_train.models.hf import Model

CALLS: Final = 4
REQUESTS: Final = 96
GROUP: Final = 8
OPTIONS: Final = SamplingOptions(
    max_new_tokens=16,
    temperature=1.0,
    stop=tuple(range(820, 1024)),
    max_batch_tokens=4096,
)


def make_model() -> Model:
    """Return a model of the default tiny shape with random weights."""
    shape = TinyShape()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def requests() -> list[list[list[int]]]:
    """Return the prompts of each call."""
    rng = np.random.default_rng(0)
    calls = []
    for number in range(CALLS):
        distinct = REQUESTS // GROUP if number == 0 else REQUESTS
        lengths = np.minimum(70 + rng.gamma(0.6, 25.0, distinct), 250).astype(int)
        prompts = [rng.integers(3, 800, length).tolist() for length in lengths]
        calls.append(
            [prompt for prompt in prompts for _ in range(REQUESTS // distinct)]
        )
    return calls


def batches(prompts: list[list[int]]) -> list[list[list[int]]]:
    """Divide prompts, sorted by length, into batches that fit into memory with their responses."""
    waiting = sorted(prompts, key=len, reverse=True)
    found = []
    while waiting:
        size = max(
            1,
            OPTIONS.max_batch_tokens // (len(waiting[0]) + OPTIONS.max_new_tokens),
        )
        found.append(waiting[:size])
        waiting = waiting[size:]
    return found


def sample(model: Model, prompts: list[list[int]]) -> None:
    """Sample with continuous batching."""
    list(sample_responses(model, prompts, list(range(len(prompts))), OPTIONS))


@torch.no_grad()
def generate(model: Model, prompts: list[list[int]]) -> None:
    """Sample with `generate`, padded on the left."""
    for batch in batches(prompts):
        width = len(batch[0])
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor(
            [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch]
        )
        sampling = {
            "do_sample": True,
            "top_k": 0,
            "max_new_tokens": OPTIONS.max_new_tokens,
            "pad_token_id": 0,
        }
        model.generate(
            ids,
            attention_mask=mask,
            eos_token_id=list(OPTIONS.stop),
            **sampling,
        )


def run(rounds: int = 7) -> Iterator[Row]:
    """Measure both loops."""
    torch.set_num_threads(1)
    model = make_model()
    calls = requests()
    found = least(
        rounds,
        {
            "continuous batching": lambda: seconds(
                lambda: [sample(model, prompts) for prompts in calls]
            ),
            "generate": lambda: seconds(
                lambda: [generate(model, prompts) for prompts in calls]
            ),
        },
    )
    yield Row(
        f"Sampling in process: {CALLS * REQUESTS} short responses, 1.1M parameters",
        found["continuous batching"],
        "s",
        rival=(
            "`generate` of Transformers, no log-probabilities,",
            found["generate"],
        ),
        shown="page",
    )
