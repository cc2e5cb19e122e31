"""The policy update's speed, model FLOPs utilisation (MFU) and peak memory, by layout, recomputation and compilation.

    python -m benchmarks update                     a 1.5B model with random weights on a GPU; some minutes
    python -m benchmarks update --rival             TRL's loss beside it (pip install trl)

Rows have the lengths of ALFWorld prompts with two past steps, played by the explorer, at four characters a token, and
responses of 40 to 160 tokens. Every figure is of the second update. The scoring of old and reference log-probabilities,
which training does too, is a part of the speed in the notes. MFU counts what the update's forward and backward passes
need at least, as `hgpo_train.training.update.throughput` does.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
import torch

from benchmarks.runner import Row, seconds
from hgpo_envs.errors import InputError
from hgpo_train.models.device import why_no_gpu
from hgpo_train.models.hf import checkpoint_layers
from hgpo_train.rollout import collect
from hgpo_train.training.config import Config, load_config, replace
from hgpo_train.training.gpu_check import LARGEST_ON_A_CPU
from hgpo_train.training.memory_plan import GIB, meta_model
from hgpo_train.training.update.batches import samples_from_steps
from hgpo_train.training.update.learner import Learner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_train.models.hf import Model
    from hgpo_train.training.update.batches import Samples


class Variant(NamedTuple):
    """A way to compute the update."""

    layout: str = "packed"
    recomputed: bool = False
    logits: int = 1024
    tokens: int = 32_768
    compile: bool = False

    def __str__(self) -> str:
        recomputed = "recomputed" if self.recomputed else "not recomputed"
        compiled = ", compiled" if self.compile else ""
        return f"{self.layout}, {recomputed}, {self.logits:,} logits{compiled}"


DEFAULT: Final = Variant(recomputed=True)
VARIANTS: Final = (
    Variant("padded", recomputed=True, logits=128),
    Variant(recomputed=True, logits=128),
    DEFAULT,
    DEFAULT._replace(compile=True),
    Variant(tokens=8192),
    Variant(tokens=8192, compile=True),
)
ROWS_OF_TRL: Final = 16


class Speed(NamedTuple):
    """The tokens a second of loss and gradient alone, and other figures as text."""

    alone: float
    note: str


def run(
    config: str = "alfworld-1.5b-hgpo-k2", rows: int = 512, rival: bool = False
) -> Iterator[Row]:
    """Measure the update of a configuration's model on `rows` rows; with `rival`, TRL's loss as well."""
    settings = load_config(config)
    model = meta_model(settings.model.path)
    # A card is lent by the hour: what is missing is said before anything is measured.
    cuda = torch.cuda.is_available()
    size = sum(weights.numel() for weights in model.parameters())
    if not cuda and size > LARGEST_ON_A_CPU:
        raise InputError(
            f"needs a GPU for {size / 1e9:.1f} billion weights, and {why_no_gpu()}; a small model runs on a CPU: "
            "--config tiny-alfworld"
        )
    if rival and find_spec("trl") is None:
        raise InputError("--rival needs TRL: pip install trl")
    samples = rows_of_alfworld(rows, model.config.vocab_size)
    device = torch.cuda.get_device_name() if cuda else "CPU"
    with torch.device("cuda" if cuda else "cpu"):
        model = type(model)._from_config(model.config, attn_implementation="sdpa")  # noqa: SLF001
    found = {
        each: measured(lambda each=each: ours(model, settings, samples, each))
        for each in VARIANTS
    }  # type: ignore[misc]
    of_trl = ("TRL's", measured(lambda: trl(model, samples)).alone) if rival else None
    for variant, speed in found.items():
        yield Row(
            f"Policy update: loss and gradient of {config} on {device}, {variant}",
            speed.alone,
            "tokens/s",
            rival=of_trl,
            note=speed.note,
            shown="readme" if variant == DEFAULT else "",
        )


def rows_of_alfworld(number: int, vocabulary: int) -> Samples:
    """Return rows with random tokens and the lengths of ALFWorld's prompts."""
    with tempfile.TemporaryDirectory() as folder:
        run = collect(
            "HGPO/ALFWorld-v0",
            "explorer",
            f"{folder}/run",
            tasks=16,
            group_size=4,
            history_length=2,
        )
        prompts = run.steps.select("prompt").collect()["prompt"].str.len_chars() // 4
    rng = np.random.default_rng(0)
    lengths = rng.choice(prompts.to_numpy(), number)
    answers = rng.integers(40, 160, number)

    def tokens(counts: np.ndarray) -> list[list[int]]:
        return [rng.integers(0, vocabulary, count).tolist() for count in counts]

    steps = {
        "prompt_token_ids": tokens(lengths),
        "response_token_ids": tokens(answers),
        "advantage": rng.normal(size=number),
    }
    return samples_from_steps(pl.DataFrame(steps))


def measured(update: Callable[[], Speed]) -> Speed:
    """Return the speed of an update with its peak memory, or why there is none."""
    gc.collect()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        found = update()
    except Exception as error:  # noqa: BLE001 - a variant that does not fit or run is a result
        return Speed(float("nan"), f"{type(error).__name__}: {str(error)[:200]}")
    if cuda:
        peak = torch.cuda.max_memory_allocated() / GIB
        found = found._replace(note=f"{found.note}, {peak:.1f} GiB")
    return found


def ours(model: Model, config: Config, samples: Samples, variant: Variant) -> Speed:
    """Measure the learner."""
    reset(model)
    if variant.recomputed:
        checkpoint_layers(model)
    settings = replace(
        config,
        update={
            "micro_batch_tokens": variant.tokens,
            "logit_chunk": variant.logits,
            "layout": variant.layout,
            "old_logprobs": "recompute",
            "epochs": 1,
            "mini_batch_size": len(samples) // 2,
        },
        model={
            "gradient_checkpointing": variant.recomputed,
            "compile": variant.compile,
        },
        rollout={"engine": "vllm"},  # which `compile` needs, and which is not started
    )
    learner = Learner(model, settings)
    for _ in range(2):
        begin = time.perf_counter()
        inputs = learner.loss_inputs(samples)
        scored = time.perf_counter() - begin
        metrics = learner.update(
            samples, np.random.default_rng(0), rate=0.0, inputs=inputs
        )
    alone = metrics["perf/update_tokens_per_s"]
    speed = 1 / (1 / alone + scored / float(samples.start[-1]))
    mfu = metrics.get("perf/mfu/actor", float("nan"))
    return Speed(alone, f"{speed:,.0f} with both scoring passes, MFU {mfu:.0%}")


def reset(model: Model) -> None:
    """Undo `checkpoint_layers` and the compilation of the variant before."""
    disable = model.gradient_checkpointing_disable
    getattr(model, "activation_checkpointing_disable", disable)()
    for layer in model.get_decoder().layers:
        layer._compiled_call_impl = None  # noqa: SLF001


def trl(model: Model, samples: Samples) -> Speed:
    """Measure the forward and backward passes of TRL's GRPO loss on the same rows, without old and reference passes."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from hgpo_train.models.tiny import train_tokenizer

    reset(model)
    model.set_attn_implementation("sdpa")
    tokenizer = train_tokenizer(["a room with a cabinet"] * 8, 300)
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=ROWS_OF_TRL,
            num_generations=ROWS_OF_TRL,
            gradient_checkpointing=True,
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
            beta=0.0,
            report_to=[],
        )
        prompts = Dataset.from_dict({"prompt": ["a"] * ROWS_OF_TRL})

        def reward(completions: list[str], **_: Any) -> list[float]:
            return [0.0] * len(completions)

        trainer = GRPOTrainer(
            model, reward, arguments, prompts, processing_class=tokenizer
        )
        trainer.current_gradient_accumulation_steps = 1  # which `train` sets
        model.gradient_checkpointing_enable({"use_reentrant": False})
        assert model.is_gradient_checkpointing
        model.train()

        order = np.random.default_rng(0).permutation(len(samples))
        batches = np.array_split(order, len(samples) // ROWS_OF_TRL)

        def update() -> None:
            for rows in batches:
                inputs = trl_inputs(samples, rows, model.device)
                with trainer.compute_loss_context_manager():
                    loss = trainer._compute_loss(model, inputs)  # noqa: SLF001
                loss.backward()
            if torch.cuda.is_available():
                torch.cuda.synchronize()

        update()  # which warms up
        model.zero_grad(set_to_none=True)
        taken = seconds(update, time.perf_counter)
    return Speed(float(samples.start[-1]) / taken, "")


def trl_inputs(
    samples: Samples, rows: np.ndarray, device: torch.device
) -> dict[str, Any]:
    """Return rows as TRL's trainer arranges them: prompts padded on the left, completions on the right."""
    prompts = samples.prompt_length[rows]
    answers = samples.response_length[rows]
    height = len(rows)
    prompt_ids, prompt_mask = np.zeros((2, height, prompts.max()), np.int64)
    completion_ids, completion_mask = np.zeros((2, height, answers.max()), np.int64)
    for at, row in enumerate(rows):
        tokens = samples.tokens[samples.start[row] : samples.start[row + 1]]
        prompt_ids[at, -prompts[at] :] = tokens[: prompts[at]]
        prompt_mask[at, -prompts[at] :] = 1
        completion_ids[at, : answers[at]] = tokens[prompts[at] :]
        completion_mask[at, : answers[at]] = 1
    arrays = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": samples.advantage[rows].astype(np.float32),
        "num_items_in_batch": answers.sum(),
    }
    return {
        name: torch.as_tensor(array, device=device) for name, array in arrays.items()
    }
