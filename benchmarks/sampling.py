"""Measure the in-process sampler on requests like those of the small configurations.

    python benchmarks/sampling.py        CPU seconds on one core, a minute

A model of about a million parameters with random weights answers calls of 96 requests, as an environment step of
`tiny-alfworld` sends them: prompts of 70 to 250 tokens, and responses of about five tokens, at most 16. In the first
call, groups of eight share a prompt. It is compared with Transformers' `generate` on the same requests, in batches of
similar lengths that run until their last row has ended, without log-probabilities. Both use the same memory for keys
and values, and take turns. Results: benchmarks/results/sampling.json.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from record import in_turns, make_parser, print_table, seconds, store
from transformers import Qwen3Config, Qwen3ForCausalLM

from hgpo_train.models.tiny import TinyShape
from hgpo_train.policies.token_sampling import SamplingOptions, sample_responses

if TYPE_CHECKING:
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
    calls, tokens = requests(), dict[str, int]()
    loops = {"continuous batching": own, "Transformers' generate": generate}

    def play(name: str) -> None:
        tokens[name] = sum(loops[name](model, prompts) for prompts in calls)

    times = in_turns(rounds + 1, {name: partial(seconds, partial(play, name)) for name in loops})
    rows = []
    for name, (_, *found) in times.items():  # the first warms up
        ratios = [other / mine for other, mine in zip(found, times["continuous batching"][1:], strict=True)]
        row = {"loop": name, "cpu_s": median(found), "least_cpu_s": min(found), "ratio": median(ratios)}
        rows.append(row | {"response_tokens": tokens[name]})
    return rows


def main() -> None:
    """Measure, print and store."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(make_model(), given.rounds)
    columns = {"loop": "{loop}", "CPU s, median": "{cpu_s:.2f}", "least": "{least_cpu_s:.2f}"}
    print_table(rows, {**columns, "ratio, median of pairs": "{ratio:.2f}", "response tokens": "{response_tokens}"})
    prompts = [len(prompt) for call in requests() for prompt in call]
    figures = {"requests": len(prompts), "prompt_tokens": sum(prompts), "loops": rows}
    print(store("sampling", figures, keep=given.keep))


if __name__ == "__main__":
    main()
