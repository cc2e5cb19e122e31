"""The policy update's speed, model FLOPs utilisation (MFU) and peak memory, by layout, recomputation and compilation.

    python benchmarks/update.py                     a 1.5B model with random weights on a GPU; some minutes
    python benchmarks/update.py --rival             TRL's loss beside it (pip install trl)
    python benchmarks/update.py --count             the floating-point operations of each loop; no GPU

Rows have the lengths of ALFWorld prompts with two past steps, played by the explorer, at four characters a token, and
responses of 40 to 160 tokens. Every figure is of the second update, with scoring of old and reference log-probabilities
as in training. MFU counts what the update's forward and backward passes need at least, as
`hgpo_train.training.update.throughput` does. Results: benchmarks/results/update.json.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import torch
from record import make_parser, print_table, seconds, store

from hgpo_datasets import scan_steps
from hgpo_train.models.loading import checkpoint_layers
from hgpo_train.rollout import collect
from hgpo_train.training.config import Config, load_config, replace
from hgpo_train.training.memory_plan import GIB, meta_model
from hgpo_train.training.update.batches import micro_batches, samples_from_steps
from hgpo_train.training.update.learner import Learner
from hgpo_train.training.update.throughput import model_flops, peak_flops

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_train.models.hf import Model
    from hgpo_train.training.update.batches import Samples

VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "padded, recomputed, 128 logits": {"layout": "padded", "recomputed": True, "chunk": 128, "tokens": 32_768},
    "packed, recomputed, 128 logits": {"recomputed": True, "chunk": 128, "tokens": 32_768},
    "packed, recomputed, 1,024 logits": {"recomputed": True, "tokens": 32_768},
    "the same, compiled": {"recomputed": True, "tokens": 32_768, "compile": True},
    "packed, not recomputed": {"tokens": 8192},
    "packed, not recomputed, compiled": {"tokens": 8192, "compile": True},
}
ROWS_OF_TRL: Final = 16


def main() -> None:
    """Measure, print and store the figures."""
    parser = make_parser(__doc__)
    parser.add_argument("--config", default="alfworld-1.5b-hgpo-k2", help="a shipped configuration or a TOML file")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rival", action="store_true", help="measure TRL's loss as well")
    parser.add_argument("--count", action="store_true", help="count operations only")
    given = parser.parse_args()
    config = load_config(given.config)
    model = meta_model(config.model.path)
    samples = rows_of_alfworld(given.rows, model.config.vocab_size)
    figures: dict[str, Any] = {"tokens": int(samples.start[-1]), "rows": len(samples), "counts": counts(samples, model)}
    print(f"{figures['rows']} rows, {figures['tokens']:,} tokens; operations over those that MFU counts:")
    print_table([figures["counts"]])
    if not given.count:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        figures |= {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "variants": {}}
        with device:
            model = type(model)._from_config(model.config, attn_implementation="sdpa")  # noqa: SLF001
        for name, variant in VARIANTS.items():
            figures["variants"][name] = measured(lambda variant=variant: ours(model, config, samples, variant))
            print(name, figures["variants"][name])
        if given.rival:
            figures["variants"]["TRL's loss"] = measured(lambda: of_trl(model, samples))
        print_table({"": name, **values} for name, values in figures["variants"].items())
    print(store("update", figures, keep=given.keep))


def rows_of_alfworld(number: int, vocabulary: int) -> Samples:
    """Return rows with random tokens and the lengths of ALFWorld's prompts."""
    with tempfile.TemporaryDirectory() as folder:
        run = collect("HGPO/ALFWorld-v0", "explorer", Path(folder) / "run", tasks=16, group_size=4, history_length=2)
        prompts = scan_steps(run).select(pl.col("prompt").str.len_chars() // 4).collect().to_series().to_numpy()
    rng = np.random.default_rng(0)
    lengths = rng.choice(prompts, number)
    answers = rng.integers(40, 160, number)
    steps = {
        "prompt_token_ids": [rng.integers(0, vocabulary, length).tolist() for length in lengths],
        "response_token_ids": [rng.integers(0, vocabulary, length).tolist() for length in answers],
        "advantage": rng.normal(size=number),
    }
    return samples_from_steps(pl.DataFrame(steps))


def counts(samples: Samples, model: Model) -> dict[str, float]:
    """Return the operations of the matrix products of each loop, over those that MFU counts.

    A pass forward is 2, the recomputation 2 and a pass backward 4 operations per weight and token. Every loop computes
    all tokens of its layers, padding included; it differs where the output layer is computed.
    """
    config = model.config
    head = config.vocab_size * config.hidden_size
    layers = sum(weight.numel() for weight in model.parameters()) - head * (1 if config.tie_word_embeddings else 2)
    length, answer = samples.length, samples.response_length
    useful = model_flops(model, length, answer)
    rows = np.arange(len(samples))
    padded = sum(micro.input_ids.numel() for micro in micro_batches(samples, rows, max_tokens=32_768, layout="padded"))
    by_trl = np.array_split(np.random.default_rng(0).permutation(rows), len(rows) // ROWS_OF_TRL)
    of_trl = sum(len(part) * int((length - answer)[part].max() + answer[part].max()) for part in by_trl)
    answers_of_trl = sum(len(part) * int(answer[part].max()) for part in by_trl)
    tokens, answers = int(length.sum()), int(answer.sum())
    attention = useful - 6.0 * (layers * tokens + head * answers)
    # Ours recomputes the output layer in chunks in any case; TRL and verl store the logits or fuse it.
    loops = {  # operations per weight of the layers, their tokens, per weight of the output layer, its tokens
        "packed": (6, tokens, 8, answers),
        "packed, recomputed": (8, tokens, 8, answers),
        "padded, recomputed": (8, padded, 8, answers),
        "verl: packed, recomputed, logits of all tokens": (8, tokens, 6, tokens),
        f"TRL: {ROWS_OF_TRL} rows as they come, recomputed": (8, of_trl, 6, answers_of_trl),
    }
    return {
        name: round((per_weight * layers * computed + per_logit * head * scored + attention) / useful, 3)
        for name, (per_weight, computed, per_logit, scored) in loops.items()
    }


def measured(update: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of an update, or why there are none."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        figures = update()
    except Exception as error:  # noqa: BLE001 - a variant that does not fit or run is a result
        return {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
    if torch.cuda.is_available():
        figures["peak GiB"] = round(torch.cuda.max_memory_allocated() / GIB, 1)
    return figures


def ours(model: Model, config: Config, samples: Samples, variant: dict[str, Any]) -> dict[str, Any]:
    """Measure the learner."""
    recomputed = variant.get("recomputed", False)
    update = {"micro_batch_tokens": variant["tokens"], "logit_chunk": variant.get("chunk", 1024), "epochs": 1}
    update |= {"layout": variant.get("layout", "packed"), "mini_batch_size": len(samples) // 2}
    settings = {"gradient_checkpointing": recomputed, "compile": variant.get("compile", False)}
    reset(model)
    if recomputed:
        checkpoint_layers(model)
    learner = Learner(model, replace(config, update=update, model=settings))
    first = seconds(lambda: learner.update(samples, np.random.default_rng(0), rate=0.0), time.perf_counter)
    metrics = learner.update(samples, np.random.default_rng(0), rate=0.0)
    scored = metrics["timing_s/old_log_prob"] + metrics["timing_s/ref"]
    tokens, speed = float(samples.start[-1]), metrics["perf/update_tokens_per_s"]
    return {
        "tokens/s": round(speed),
        "update alone": round(tokens / (tokens / speed - scored)),
        "MFU": round(metrics.get("perf/mfu/actor", float("nan")), 3),
        "KL": float(f"{metrics['actor/kl_loss']:.1e}"),
        "first s": round(first, 1),
    }


def reset(model: Model) -> None:
    """Undo `checkpoint_layers` and the compilation of the variant before."""
    getattr(model, "activation_checkpointing_disable", model.gradient_checkpointing_disable)()
    for layer in model.get_decoder().layers:
        layer._compiled_call_impl = None  # noqa: SLF001


def of_trl(model: Model, samples: Samples) -> dict[str, Any]:
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

        trainer = GRPOTrainer(model, reward, arguments, prompts, processing_class=tokenizer)
        trainer.current_gradient_accumulation_steps = 1  # which `train` sets
        model.gradient_checkpointing_enable({"use_reentrant": False})
        assert model.is_gradient_checkpointing
        model.train()

        def update() -> None:
            for rows in np.array_split(np.random.default_rng(0).permutation(len(samples)), len(samples) // ROWS_OF_TRL):
                inputs = trl_inputs(samples, rows, next(model.parameters()).device)
                with trainer.compute_loss_context_manager():
                    loss = trainer._compute_loss(model, inputs)  # noqa: SLF001
                loss.backward()
            if torch.cuda.is_available():
                torch.cuda.synchronize()

        first = seconds(update, time.perf_counter)
        model.zero_grad(set_to_none=True)
        second = seconds(update, time.perf_counter)
    useful = model_flops(model, samples.sequence_length, samples.response_length)
    peak = peak_flops(next(model.parameters()).device, torch.bfloat16)
    return {
        "tokens/s": "",
        "update alone": round(float(samples.start[-1]) / second),
        "MFU": round(useful / second / peak, 3) if peak else float("nan"),
        "KL": "",
        "first s": round(first, 1),
    }


def trl_inputs(samples: Samples, rows: np.ndarray, device: torch.device) -> dict[str, Any]:
    """Return rows as TRL's trainer arranges them: prompts padded on the left, completions on the right."""
    prompts, answers = samples.prompt_length[rows], samples.response_length[rows]
    height = len(rows)
    prompt_ids, prompt_mask = np.zeros((2, height, prompts.max()), np.int64)
    completion_ids, completion_mask = np.zeros((2, height, answers.max()), np.int64)
    for at, row in enumerate(rows):
        tokens = samples.tokens[samples.start[row] : samples.start[row + 1]]
        prompt_ids[at, -prompts[at] :], prompt_mask[at, -prompts[at] :] = tokens[: prompts[at]], 1
        completion_ids[at, : answers[at]], completion_mask[at, : answers[at]] = tokens[prompts[at] :], 1
    arrays = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": samples.advantage[rows].astype(np.float32),
    }
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return tensors | {"num_items_in_batch": torch.tensor(int(answers.sum()), device=device)}


if __name__ == "__main__":
    main()
