"""Measure the in-process sampler on requests like those of the small configurations.

    python benchmarks/sampling.py        CPU seconds on one core, a minute

A model of about a million parameters with random weights answers calls of 96 requests, as an environment step of
`tiny-alfworld` sends them: prompts of 70 to 250 tokens, and responses of about five tokens, at most 16. In the first
call, groups of eight share a prompt. It is compared with Transformers' `generate` on the same requests, in batches of
similar lengths that run until their last row has ended, without log-probabilities. Both use the same memory for keys
and values, and take turns. Results: benchmarks/results/sampling.json.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from record import add_keep, store
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM

from hgpo_train.models.tiny import TinyShape
from hgpo_train.policies.token_sampling import SamplingOptions, sample_responses

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_train.models.hf import Model

CALLS: Final = 4
REQUESTS: Final = 96
GROUP: Final = 8
OPTIONS: Final = SamplingOptions(
    max_new_tokens=16, temperature=1.0, stop=tuple(range(820, 1024)), max_batch_tokens=4096
)


def make_model() -> Model:
    """Return a model of the default tiny shape with random weights."""
    shape = TinyShape()
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": shape.width,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "head_dim": shape.head_dim,
    }
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=shape.vocabulary, tie_word_embeddings=True, **sizes))


def requests() -> list[list[list[int]]]:
    """Return the prompts of each call."""
    rng = np.random.default_rng(0)
    calls = []
    for number in range(CALLS):
        distinct = REQUESTS // GROUP if number == 0 else REQUESTS
        lengths = np.minimum(70 + rng.gamma(0.6, 25.0, distinct), 250).astype(int)
        prompts = [rng.integers(3, 800, length).tolist() for length in lengths]
        calls.append([prompt for prompt in prompts for _ in range(REQUESTS // distinct)])
    return calls


def batches(prompts: list[list[int]]) -> list[list[list[int]]]:
    """Divide prompts, sorted by length, into batches that fit into memory with their responses."""
    waiting, found = sorted(prompts, key=len, reverse=True), []
    while waiting:
        size = max(1, OPTIONS.max_batch_tokens // (len(waiting[0]) + OPTIONS.max_new_tokens))
        found.append(waiting[:size])
        waiting = waiting[size:]
    return found


def own(model: Model, prompts: list[list[int]]) -> int:
    """Sample with continuous batching; return the number of tokens."""
    return sum(len(drawn.tokens) for drawn in sample_responses(model, prompts, list(range(len(prompts))), OPTIONS))


@torch.no_grad()
def generate(model: Model, prompts: list[list[int]]) -> int:
    """Sample with `generate`, padded on the left; return the number of tokens up to the first stop token."""
    total = 0
    for batch in batches(prompts):
        width = len(batch[0])
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
        sampling = {"do_sample": True, "top_k": 0, "max_new_tokens": OPTIONS.max_new_tokens, "pad_token_id": 0}
        drawn = model.generate(ids, attention_mask=mask, eos_token_id=list(OPTIONS.stop), **sampling)[:, width:]
        total += int((drawn != 0).sum())
    return total


def measure(model: Model, rounds: int) -> list[dict[str, Any]]:
    """Return the CPU seconds of each loop: the median and the least of several rounds."""
    loops: dict[str, Callable[[Model, list[list[int]]], int]] = {
        "continuous batching": own,
        "Transformers' generate": generate,
    }
    calls = requests()
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    tokens = {}
    for _ in range(rounds + 1):  # the first warms up
        for name, loop in loops.items():
            began = time.process_time()
            tokens[name] = sum(loop(model, prompts) for prompts in calls)
            seconds[name].append(time.process_time() - began)
    first = seconds["continuous batching"][1:]
    return [
        {
            "loop": name,
            "cpu_s": median(found[1:]),
            "least_cpu_s": min(found[1:]),
            "ratio": median(other / mine for other, mine in zip(found[1:], first, strict=True)),
            "response_tokens": tokens[name],
        }
        for name, found in seconds.items()
    ]


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    add_keep(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    console, rows = Console(), measure(make_model(), given.rounds)
    table = Table("loop", "CPU s, median", "least", "ratio, median of pairs", "response tokens")
    for row in rows:
        table.add_row(
            row["loop"],
            f"{row['cpu_s']:.2f}",
            f"{row['least_cpu_s']:.2f}",
            f"{row['ratio']:.2f}",
            str(row["response_tokens"]),
        )
    console.print(table)
    prompts = [len(prompt) for call in requests() for prompt in call]
    figures = {"requests": len(prompts), "prompt_tokens": sum(prompts), "loops": rows}
    console.print(store("sampling", figures, keep=given.keep))


if __name__ == "__main__":
    main()
