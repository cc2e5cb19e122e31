"""Measure what reaches the engine when weights are published: the share of an adapter's change, and bytes.

    python benchmarks/publication.py          some minutes

change   A small model with weights of a bfloat16 checkpoint trains adapters (rank 64, alpha 64, learning rate 3e-6: the
         shipped -lora configurations), 16 optimiser steps an iteration. `share` is the projection of the published
         change onto the trained one, 1 if nothing is lost; `error` is the size of their difference relative to the
         trained change. Both for the weights, and for log-probabilities computed in float32 from what was published.
bytes    For the shapes of Qwen2.5: bytes written to files, read from files, and copied in memory by a publication.

Results: benchmarks/results/publication.json.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from record import add_keep, store
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen2Config

from hgpo_train.models.config import LoraConfig
from hgpo_train.models.loading import add_adapters
from hgpo_train.policies.weight_handover import checkpoint_weights, handed_bytes, shared
from hgpo_train.training.config import Config, replace
from hgpo_train.training.update.batches import samples_from_steps
from hgpo_train.training.update.learner import Learner

if TYPE_CHECKING:
    from torch import Tensor

    from hgpo_train.models.hf import Model
    from hgpo_train.training.update.batches import Samples

VOCABULARY = 512
LORA = LoraConfig(rank=64, alpha=64)
STEPS = 16
"""Optimiser steps of an iteration."""
QWEN: dict[str, dict[str, Any]] = {
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
    | {"num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True},
    "7B": {"hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28, "num_attention_heads": 28}
    | {"num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": False},
}
"""Shapes of Qwen2.5 from its config.json."""


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
        "prompt_token_ids": [rng.integers(0, VOCABULARY, 24).tolist() for _ in range(number)],
        "response_token_ids": [rng.integers(0, VOCABULARY, 8).tolist() for _ in range(number)],
        "advantage": rng.normal(size=number),
    }
    return samples_from_steps(pl.DataFrame(steps))


def merged_in_place(model: Model) -> dict[str, Tensor]:
    """Return the weights that version 0.1 published: merged by peft into the bfloat16 base."""
    return checkpoint_weights(copy.deepcopy(model).merge_and_unload())


def rounded_adapters(model: Model) -> dict[str, Tensor]:
    """Return the weights that an engine with bfloat16 adapters applies, in float32: base + scale · B · A."""
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return checkpoint_weights(rounded)


def log_probabilities(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Return log softmax at all positions, computed in float32 from weights."""
    model = small_model().float()
    model.load_state_dict({name: value.float() for name, value in weights.items()}, strict=False)
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=ids).logits.double(), -1)


def compared(published: Tensor, trained: Tensor) -> tuple[float, float]:
    """Return the share of a trained change in the published one, and the relative size of their difference."""
    share = (published @ trained / (trained @ trained)).item()
    return share, ((published - trained).norm() / trained.norm()).item()


def change() -> list[dict[str, Any]]:
    """Train adapters, and compare the change that each way publishes with the trained one."""
    config = replace(
        Config(),
        model={"compute_dtype": "bfloat16", "gradient_checkpointing": False},
        update={"kl_weight": 0.0, "mini_batch_size": 64 // STEPS},
        optimiser={"learning_rate": 3e-6},
    )
    base = {name: value.float() for name, value in checkpoint_weights(small_model()).items()}
    model = add_adapters(small_model(), LORA)
    learner = Learner(model, config)
    ids = torch.randint(0, VOCABULARY, (16, 32), generator=torch.Generator().manual_seed(9))
    before = log_probabilities(base, ids)
    found = []
    for iteration in range(1, 6):
        learner.update(rows(iteration), np.random.default_rng(iteration))
        if iteration not in (1, 5):
            continue
        exact = checkpoint_weights(model)
        changed = [name for name, value in exact.items() if not torch.equal(value, base[name])]
        trained = torch.cat([(exact[name] - base[name]).flatten().double() for name in changed])
        trained_logprobs = (log_probabilities(exact, ids) - before).flatten()
        for way, weights in (
            ("merged in bfloat16 (before)", merged_in_place(model)),
            ("merged in float32, served in bfloat16", checkpoint_weights(model, torch.bfloat16)),
            ("adapters (now)", rounded_adapters(model)),
        ):
            published = torch.cat([(weights[name].float() - base[name]).flatten().double() for name in changed])
            share, error = compared(published, trained)
            logprob_share, logprob_error = compared(
                (log_probabilities(weights, ids) - before).flatten(), trained_logprobs
            )
            found.append(
                {"iterations": iteration, "published": way, "weights: share": share, "error": error}
                | {"log-probabilities: share": logprob_share, "their error": logprob_error}
            )
    return found


def size_of_files(model: Model) -> int:
    """Return the bytes of the files that `save_pretrained` writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def handover() -> list[dict[str, Any]]:
    """Publish a small model in both ways, and count bytes."""
    model = small_model().float()
    weights = checkpoint_weights(model)
    with shared(weights, by_device=True) as handle:
        in_memory = Path(handle["path"]).stat().st_size
    adapted = add_adapters(small_model(), LORA)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return [
        {"small model": "all weights, before", "parameters": parameters, "file bytes": size_of_files(model)},
        {"small model": "all weights, now", "parameters": parameters, "file bytes": 0, "memory bytes": in_memory},
        {"small model": "adapters, before", "parameters": parameters}
        | {"file bytes": size_of_files(copy.deepcopy(adapted).merge_and_unload())},
        {"small model": "adapters, now", "parameters": parameters, "file bytes": size_of_files(adapted)},
    ]


def planned() -> list[dict[str, Any]]:
    """Return the bytes of a publication for Qwen2.5's shapes, from models without values."""
    found = []
    gib = 1 << 30
    for shape, sizes in QWEN.items():
        with torch.device("meta"):
            full = AutoModelForCausalLM.from_config(Qwen2Config(**sizes), dtype=torch.float32)
            half = AutoModelForCausalLM.from_config(Qwen2Config(**sizes), dtype=torch.bfloat16)
            size = handed_bytes(checkpoint_weights(full)) / gib
            merged = handed_bytes(checkpoint_weights(half)) / gib
            adapted = add_adapters(half, LORA)
        trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
        adapter = sum(parameter.numel() * parameter.element_size() for parameter in trained) / gib
        found += [
            {
                "shape": f"{shape}, all weights",
                "way": "before",
                "disk, GiB": size,
                "read, GiB": size,
                "staged, GiB": 0.0,
            },
            {
                "shape": f"{shape}, all weights",
                "way": "now, GPU",
                "disk, GiB": 0.0,
                "read, GiB": 0.0,
                "staged, GiB": 0.0,
            },
            {"shape": f"{shape}, all weights", "way": "now, CPU", "disk, GiB": 0.0, "read, GiB": 0.0}
            | {"staged, GiB": size},
            {"shape": f"{shape}, adapters", "way": "before", "disk, GiB": merged, "read, GiB": merged}
            | {"staged, GiB": merged},
            {"shape": f"{shape}, adapters", "way": "now", "disk, GiB": 0.0, "read, GiB": 0.0, "staged, GiB": adapter},
        ]
    return found


def show(console: Console, title: str, found: list[dict[str, Any]]) -> None:
    """Print a table of values."""
    table = Table(title=title)
    for name in dict.fromkeys(name for row in found for name in row):
        table.add_column(name, justify="right")
    for row in found:
        table.add_row(
            *(
                f"{value:,.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
                for value in (row.get(column.header, "") for column in table.columns)
            )
        )
    console.print(table)


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_keep(parser)
    given = parser.parse_args()
    console = Console()
    figures = {"change": change(), "handover": handover(), "planned": planned()}
    show(console, "the change that is published", figures["change"])
    show(console, "a small model, counted", figures["handover"])
    show(console, "Qwen2.5, planned from its shapes", figures["planned"])
    console.print(store("publication", figures, keep=given.keep))


if __name__ == "__main__":
    main()
