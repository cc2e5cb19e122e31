"""Measure the in-process sampler on requests like those of the small configurations.

    python -m benchmarks sampling        CPU seconds on one core, a minute

A model of about a million parameters with random weights answers calls of 96 requests, as an environment step of
`tiny-alfworld` sends them: prompts of 70 to 250 tokens, and responses of about five tokens, at most 16. In the first
call, groups of eight share a prompt. It is compared with Transformers' `generate` on the same requests, in batches of
similar lengths that run until their last row has ended, without log-probabilities. Both use the same memory for keys
and values, and take turns.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from benchmarks.runner import Row, least, seconds
from hgpo_train.models.tiny import make_model, train_tokenizer
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
        longest = len(waiting[0]) + OPTIONS.max_new_tokens
        size = OPTIONS.max_batch_tokens // longest
        found.append(waiting[:size])
        waiting = waiting[size:]
    return found


def sample(model: Model, calls: list[list[list[int]]]) -> None:
    """Sample with continuous batching."""
    for prompts in calls:
        list(sample_responses(model, prompts, list(range(len(prompts))), OPTIONS))


@torch.no_grad()
def generate(model: Model, calls: list[list[list[int]]]) -> None:
    """Sample with `generate`, padded on the left."""
    for batch in itertools.chain.from_iterable(map(batches, calls)):
        width = len(batch[0])
        # token 0 only pads
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in batch])
        model.generate(
            ids,
            attention_mask=(ids > 0).long(),
            do_sample=True,
            top_k=0,
            max_new_tokens=OPTIONS.max_new_tokens,
            pad_token_id=0,
            eos_token_id=list(OPTIONS.stop),
        )


def run(rounds: int = 7) -> Iterator[Row]:
    """Measure both loops."""
    torch.set_num_threads(1)
    model = make_model(train_tokenizer(["go to shelf 1"] * 8, 300))
    calls = requests()
    found = least(
        rounds,
        {
            loop.__name__: partial(seconds, partial(loop, model, calls))
            for loop in (sample, generate)
        },
    )
    theirs = "`generate` of Transformers, no log-probabilities,"
    yield Row(
        f"Sampling in process: {CALLS * REQUESTS} short responses, 1.1M parameters",
        found["sample"],
        "s",
        rival=(theirs, found["generate"]),
        shown="page",
    )
