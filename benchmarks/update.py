"""Measure the policy update: peak memory with a vocabulary of 151,936, tokens per second, and utilisation on a GPU.

    python benchmarks/update.py                memory and speed on this CPU, a few minutes
    python benchmarks/update.py --gpu          Qwen2.5-1.5B's and 7B's shapes with random weights on a CUDA device
    python benchmarks/update_rivals.py …       the same step with TRL's and verl's trainers, in their own environments

Memory is the peak resident size of a new process minus its size before the pass. Speed on the CPU is a ratio of CPU
times in one run. On a GPU, the simple loop for comparison pads rows in input order and computes the log-softmax of all
positions together; if it runs out of memory, its micro-batch is halved until it fits. Results:
benchmarks/results/update.json and update_gpu.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from record import add_keep, store
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from hgpo_envs.errors import InputError
from hgpo_train.models.loading import add_adapters, checkpoint_layers
from hgpo_train.models.shapes import PUBLISHED
from hgpo_train.training.config import Config, replace
from hgpo_train.training.update.batches import Samples
from hgpo_train.training.update.learner import Learner
from hgpo_train.training.update.throughput import model_flops, peak_flops

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_train.models.hf import Model

VOCABULARY = 151_936
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SHAPES: dict[str, dict[str, Any]] = {
    "0.5B, 1 layer": dict(zip(_SIZES, (896, 4864, 1, 14, 2), strict=True)),
    **{size: PUBLISHED[f"Qwen/Qwen2.5-{size}-Instruct"] for size in ("1.5B", "7B")},
}
"""Shapes of Qwen2.5; the first has one layer, because only the output layer is measured."""


def make(shape: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Model:
    """Create a model of the given shape with random weights."""
    general = {"max_position_embeddings": 32_768, "tie_word_embeddings": True}
    config = Qwen2Config(**{**general, **SHAPES[shape], "vocab_size": VOCABULARY})
    torch.manual_seed(0)
    with torch.device(device):  # like from_pretrained, this leaves the frequencies of the rotary embeddings in float32
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def samples(rows: int, prompt: tuple[int, int], response: tuple[int, int], seed: int = 0) -> Samples:
    """Create random rows with lengths in the given ranges."""
    rng = np.random.default_rng(seed)
    prompts, responses = rng.integers(prompt[0], prompt[1] + 1, rows), rng.integers(response[0], response[1] + 1, rows)

    def starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(lengths)])

    start, response_start = starts(prompts + responses), starts(responses)
    return Samples(
        rng.integers(0, VOCABULARY, int(start[-1])).astype(np.int32),
        start,
        prompts,
        response_start,
        rng.normal(size=rows),
        np.full(int(response_start[-1]), -1.0, np.float32),
    )


def settings(**update: object) -> Config:
    """Return the update's settings: one mini-batch, no reference model."""
    fixed = {"kl_weight": 0.0, "entropy_weight": 0.0, "mini_batch_size": 10**6, "micro_batch_tokens": 10**6}
    return replace(Config(), model={"compute_dtype": "float32", "gradient_checkpointing": False}, update=fixed | update)


def peak_of(chunk: int, positions: str, tokens: int) -> dict[str, Any]:
    """Measure the memory of one forward and backward pass; call this in a new process."""
    import resource

    model = make("0.5B, 1 layer")
    batch = samples(2, (512, 512), (tokens // 2, tokens // 2))
    learner = Learner(model, settings(logit_chunk=chunk))
    old = batch.rollout_logprob
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    if positions == "all":  # like a simple loop: logits of every position
        ids = torch.from_numpy(batch.tokens.astype(np.int64)).reshape(2, -1)
        logprob = torch.log_softmax(model(ids).logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        (-logprob[:, 511:]).mean().backward()
    else:
        learner.accumulate(batch, np.arange(2), old, None)
    seconds = time.process_time() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"positions": positions, "chunk": chunk, "mib": (after - before) / 1024, "cpu_s": seconds}


def memory(tokens: int) -> list[dict[str, Any]]:
    """Measure peak memory without chunks, and with chunks of several sizes."""
    found = []
    for chunk, positions in ((0, "all"), (0, "response"), (512, "response"), (128, "response"), (32, "response")):
        command = [sys.executable, __file__, "--peak", str(chunk), "--positions", positions, "--tokens", str(tokens)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def cpu_speed() -> list[dict[str, Any]]:
    """Compare rows padded in input order, sorted, and packed, on a small model: CPU seconds of one accumulation."""
    config = Qwen2Config(vocab_size=4096, **dict(zip(_SIZES, (256, 768, 4, 8, 2), strict=True)))
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    batch = samples(64, (30, 400), (4, 60))
    batch = dataclasses.replace(batch, tokens=batch.tokens % 4096)
    found = []
    for name, update in (
        ("padded, one row at a time", {"micro_batch_tokens": 1}),
        ("padded, sorted by length", {"micro_batch_tokens": 4096}),
        ("packed", {"micro_batch_tokens": 4096, "layout": "packed"}),
    ):
        learner = Learner(model, settings(logit_chunk=0, **update))
        learner.accumulate(batch, np.arange(64), batch.rollout_logprob, None)
        began = time.process_time()
        learner.accumulate(batch, np.arange(64), batch.rollout_logprob, None)
        seconds = time.process_time() - began
        found.append({"layout": name, "cpu_s": seconds, "tokens_per_cpu_s": float(batch.start[-1]) / seconds})
    return found


def gpu_speed(shape: str, rows: int, *, adapters: int, micro_batch_tokens: int) -> dict[str, Any]:
    """Measure tokens per second and utilisation of the update on a CUDA device, compared with a simple loop."""
    model: Model = make(shape, torch.bfloat16 if adapters else torch.float32, "cuda")
    batch = samples(rows, (1000, 4000), (64, 512))
    changes = {"model": {"compute_dtype": "bfloat16", "lora": {"rank": adapters}}}
    config = replace(settings(logit_chunk=128, micro_batch_tokens=micro_batch_tokens), **changes)
    if adapters:
        model = add_adapters(model, config.model.lora)
    checkpoint_layers(model)
    learner = Learner(model, config)
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        learner.step(batch, np.arange(rows), batch.rollout_logprob, None)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    peak = peak_flops(torch.device("cuda"), torch.bfloat16)
    flops = model_flops(model, batch.length, batch.response_length)
    best = min(seconds)
    result = {
        "shape": shape,
        "adapters": adapters,
        "rows": rows,
        "tokens": int(batch.start[-1]),
        "seconds": seconds,
        "tokens_per_s": float(batch.start[-1]) / best,
        "mfu": None if peak is None else flops / best / peak,
        "memory_gib": torch.cuda.max_memory_allocated() / 2**30,
    }
    result["plain"] = plain_loop(learner, batch)
    return result


def plain_loop(learner: Learner, batch: Samples) -> dict[str, Any]:
    """Compute the same loss with a simple loop: padded rows in input order, logits of all positions."""
    size = 8
    while size:
        try:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for first in range(0, len(batch), size):
                _plain_batch(learner.model, batch, np.arange(first, min(first + size, len(batch))))
            learner.optimiser.step()
            learner.optimiser.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
        except torch.OutOfMemoryError:
            learner.optimiser.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            size //= 2
            continue
        return {"micro_batch": size, "seconds": seconds, "tokens_per_s": float(batch.start[-1]) / seconds}
    return {"micro_batch": 0}


def _plain_batch(model: Model, batch: Samples, rows: NDArray[np.int64]) -> None:
    width = int(batch.length[rows].max())
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    answer = torch.zeros(len(rows), width, dtype=torch.bool)
    for place, row in enumerate(rows):
        length = int(batch.length[row])
        ids[place, :length] = torch.from_numpy(batch.tokens[batch.start[row] : batch.start[row + 1]].astype(np.int64))
        answer[place, int(batch.prompt_length[row]) : length] = True
    ids, answer = ids.cuda(), answer.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(input_ids=ids, use_cache=False).logits
    logprob = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    (-(logprob * answer[:, 1:]).sum() / batch.response_tokens).backward()


def show(console: Console, title: str, found: list[dict[str, Any]]) -> None:
    """Print a table of values."""
    table = Table(title=title)
    for name in found[0]:
        table.add_column(name, justify="right")
    for row in found:
        table.add_row(*(f"{value:,.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpu", action="store_true", help="measure on a CUDA device")
    parser.add_argument("--rows", type=int, default=64, help="rows of a GPU step")
    parser.add_argument("--tokens", type=int, default=1024, help="response tokens of the memory measurement")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--positions", default="response", help=argparse.SUPPRESS)
    add_keep(parser)
    given = parser.parse_args()
    if given.peak is not None:
        print(json.dumps(peak_of(given.peak, given.positions, given.tokens)))
        return
    console = Console()
    if given.gpu:
        if not torch.cuda.is_available():
            raise InputError("--gpu: expected a CUDA device, there is none; leave --gpu out to measure on the CPU")
        found = [
            gpu_speed("1.5B", given.rows, adapters=0, micro_batch_tokens=32_768),
            gpu_speed("7B", given.rows, adapters=64, micro_batch_tokens=16_384),
        ]
        show(
            console,
            "the update on a GPU",
            [{**row, **{f"plain {k}": v for k, v in row.pop("plain").items()}} for row in found],
        )
        figures = {"device": torch.cuda.get_device_name(), "shapes": found}
        console.print(store("update_gpu", figures, keep=given.keep))
        return
    torch.set_num_threads(1)
    peaks, layouts = memory(given.tokens), cpu_speed()
    show(console, f"memory of {given.tokens} response tokens at a vocabulary of {VOCABULARY:,}", peaks)
    show(console, "layouts", layouts)
    found = {"tokens": given.tokens, "memory": peaks, "layouts": layouts}
    console.print(store("update", found, keep=given.keep))


if __name__ == "__main__":
    main()
