"""Measure one optimiser step on the same rows with other trainers: seconds, tokens per second and memory.

    python benchmarks/update_rivals.py hgpo --gpu       this package
    python benchmarks/update_rivals.py trl --gpu        TRL's GRPO loss (`pip install trl`, tried with 1.16)
    python benchmarks/update_rivals.py verl --gpu       verl's FSDP engine (`pip install 'verl[verl-core]'`, 0.9.1)
    python benchmarks/update_rivals.py hgpo --tiny      a small model on a CPU, to see that the commands work and agree

Each trainer runs in its own environment, because their requirements conflict; this file imports only what its trainer
needs. All have the same random weights, rows, advantages and loss: the policy gradient with a ratio of 1, averaged over
all response tokens, no KL term and no entropy bonus. So the norm of the gradient must agree, up to rounding. The last
line is JSON, stored as benchmarks/results/update_<trainer>.json with --keep. On a GPU: 1.5B's shape in mixed precision
with gradient checkpointing. Nothing of this has run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from record import add_keep, store
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "1.5B": {
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
}


@dataclass(frozen=True)
class Rows:
    """Rows to train on.

    Attributes:
        prompt: Token ids of each prompt.
        response: Token ids of each response.
        advantage: float64 of shape (rows,).
    """

    prompt: list[NDArray[np.int64]]
    response: list[NDArray[np.int64]]
    advantage: NDArray[np.float64]

    @property
    def tokens(self) -> int:
        """Number of tokens of all rows."""
        return sum(map(len, self.prompt)) + sum(map(len, self.response))

    @property
    def response_tokens(self) -> int:
        """Number of response tokens of all rows."""
        return sum(map(len, self.response))


def make_rows(count: int, vocabulary: int, prompts: tuple[int, int], responses: tuple[int, int]) -> Rows:
    """Return random rows with lengths in the given ranges, the same for every trainer."""
    rng = np.random.default_rng(0)
    prompt = [rng.integers(3, vocabulary, rng.integers(*prompts)) for _ in range(count)]
    response = [rng.integers(3, vocabulary, rng.integers(*responses)) for _ in range(count)]
    return Rows(prompt, response, rng.normal(size=count))


def make_model(shape: str) -> Any:  # noqa: ANN401 (a model of Transformers)
    """Return a model with random weights in float32, the same for every trainer."""
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[shape], tie_word_embeddings=True, max_position_embeddings=32_768, eos_token_id=1)
    return AutoModelForCausalLM.from_config(config)


def micro_batches(rows: Rows, tokens: int) -> list[list[int]]:
    """Split rows, longest first, into batches of at most `tokens` tokens with padding, as the trainers' own splits."""
    length = [len(prompt) + len(response) for prompt, response in zip(rows.prompt, rows.response, strict=True)]
    batches: list[list[int]] = []
    for row in sorted(range(len(length)), key=lambda row: -length[row]):
        if not batches or (len(batches[-1]) + 1) * length[batches[-1][0]] > tokens:
            batches.append([])
        batches[-1].append(row)
    return batches


def padded(parts: list[NDArray[np.int64]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and mask of shape (rows, longest), padded on one side."""
    width = max(map(len, parts))
    ids, mask = torch.zeros(len(parts), width, dtype=torch.int64), torch.zeros(len(parts), width, dtype=torch.int64)
    for row, part in enumerate(parts):
        place = slice(width - len(part), width) if left else slice(0, len(part))
        ids[row, place], mask[row, place] = torch.from_numpy(part), 1
    return ids, mask


def hgpo_step(model: Any, rows: Rows, tokens: int, device: str) -> Callable[[], float]:  # noqa: ANN401
    """Return a function that takes one step with this package and returns the gradient's norm."""
    from hgpo_train.models.loading import checkpoint_layers
    from hgpo_train.training.config import Config, replace
    from hgpo_train.training.update.batches import Samples
    from hgpo_train.training.update.learner import Learner

    def starts(parts: list[int]) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(parts)])

    prompts, responses = [len(part) for part in rows.prompt], [len(part) for part in rows.response]
    both = [part for pair in zip(rows.prompt, rows.response, strict=True) for part in pair]
    samples = Samples(
        np.concatenate(both).astype(np.int32),
        starts([prompt + response for prompt, response in zip(prompts, responses, strict=True)]),
        np.array(prompts),
        starts(responses),
        rows.advantage,
        np.full(rows.response_tokens, np.nan, np.float32),
    )
    update = {"kl_weight": 0.0, "entropy_weight": 0.0, "micro_batch_tokens": tokens}
    config = replace(Config(), update=update, model={"compute_dtype": "bfloat16" if device == "cuda" else "float32"})
    model.to(device)
    checkpoint_layers(model)
    learner = Learner(model, config)
    return lambda: learner.step(samples, np.arange(len(rows.prompt)), None, None)["actor/grad_norm"]


def trl_step(model: Any, rows: Rows, tokens: int, device: str) -> Callable[[], float]:  # noqa: ANN401
    """Return a function that takes one step with TRL's loss and optimiser, and returns the gradient's norm."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    batches = micro_batches(rows, tokens)
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=device == "cpu",
        bf16=device == "cuda",
        gradient_checkpointing=True,
        beta=0.0,
        loss_type="dapo",
        num_generations=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=len(batches),
        steps_per_generation=len(batches),
        report_to=[],
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [0.0 for _ in completions],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 2 * len(batches)}),
        processing_class=_tokenizer(),
    )
    trainer.current_gradient_accumulation_steps = len(batches)
    trainer.model.to(device).train()
    optimiser = torch.optim.AdamW(trainer.model.parameters(), lr=1e-6, fused=device == "cuda")

    def inputs(batch: list[int]) -> dict[str, torch.Tensor]:
        prompt_ids, prompt_mask = padded([rows.prompt[row] for row in batch], left=True)
        completion_ids, completion_mask = padded([rows.response[row] for row in batch], left=False)
        values = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.tensor(rows.advantage[batch], dtype=torch.float32),
            "num_items_in_batch": torch.tensor(float(rows.response_tokens)),
        }
        return {name: value.to(device) for name, value in values.items()}

    def step() -> float:
        for batch in batches:
            trainer._compute_loss(trainer.model, inputs(batch)).backward()  # noqa: SLF001 (there is no public name)
        norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(norm)

    return step


def verl_step(model: Any, rows: Rows, tokens: int, device: str) -> Callable[[], float]:  # noqa: ANN401
    """Return a function that takes one step with verl's FSDP engine and PPO loss, and returns the gradient's norm."""
    import os
    from functools import partial

    if device == "cpu":
        _verl_on_cpu()
    from tensordict import TensorDict
    from verl.trainer.config import CheckpointConfig
    from verl.utils import tensordict_utils
    from verl.utils.dataset.dataset_utils import DatasetPadMode
    from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.utils.losses import ppo_loss
    from verl.workers.utils.padding import no_padding_2_padding

    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    packed = device == "cuda"  # flash attention's variable length; padded on a CPU
    engine = FSDPEngineWithLMHead(
        HFModelConfig(
            path=folder,
            use_remove_padding=packed,
            override_config={"attn_implementation": "flash_attention_2" if packed else "sdpa"},
        ),
        FSDPEngineConfig(
            strategy="fsdp2",
            forward_only=False,
            use_torch_compile=packed,
            use_dynamic_bsz=True,
            max_token_len_per_gpu=tokens,
            mixed_precision=None if packed else {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        ),
        FSDPOptimizerConfig(lr=1e-6, clip_grad=1.0, total_training_steps=100),
        CheckpointConfig(),
    )
    engine.initialize()
    responses = [torch.from_numpy(part) for part in rows.response]
    sequences = [torch.from_numpy(np.concatenate(pair)) for pair in zip(rows.prompt, rows.response, strict=True)]
    advantages = [torch.full((len(part),), value) for part, value in zip(responses, rows.advantage, strict=True)]

    def nested(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    fields = {
        "input_ids": nested(sequences),
        "position_ids": nested([torch.arange(len(part)) for part in sequences]),
        "prompts": nested([torch.from_numpy(part) for part in rows.prompt]),
        "responses": nested(responses),
        "response_mask": nested([torch.ones(len(part), dtype=torch.int64) for part in responses]),
        "loss_mask": nested([torch.ones(len(part), dtype=torch.int64) for part in responses]),
        "advantages": nested([part.float() for part in advantages]),
    }
    data = TensorDict(fields, batch_size=len(responses)).to(device)
    tensordict_utils.assign_non_tensor(
        data,
        use_remove_padding=packed,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=tokens,
        temperature=1.0,
        calculate_entropy=False,
        pad_mode=DatasetPadMode.NO_PADDING,
        global_batch_size=len(responses),
    )
    loss = partial(
        ppo_loss, ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, use_kl_loss=False)
    )

    with engine.eval_mode():  # the old log-probabilities are the present ones, for a ratio of 1
        scored = engine.infer_batch(data)
    old = no_padding_2_padding(scored["model_output"]["log_probs"], data)
    data["old_log_probs"] = nested([old[row, : len(part)] for row, part in enumerate(responses)])

    def step() -> float:
        with engine.train_mode():
            return float(engine.train_batch(data, loss)["metrics"]["grad_norm"])

    return step


def _verl_on_cpu() -> None:
    """Make verl's engine, which expects an accelerator, run on the CPU: a stand-in for its platform."""
    from verl.plugin.platform.platform_cuda import PlatformCUDA
    from verl.plugin.platform.platform_manager import set_platform

    class PlatformCPU(PlatformCUDA):
        device_name = "cpu"
        device_module = torch.cpu

        def is_available(self) -> bool:
            return True

        def current_device(self) -> str:
            return "cpu"

        def empty_cache(self) -> None:
            pass

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

    set_platform(PlatformCPU())


def _tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer, which TRL's trainer requires and does not use here."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {"<pad>": 0, "<eos>": 1, "a": 2}
    special = {"pad_token": "<pad>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words)), **special)


STEPS = {"hgpo": hgpo_step, "trl": trl_step, "verl": verl_step}


def measure(step: Callable[[], float], device: str, repetitions: int) -> Iterator[tuple[float, float]]:
    """Yield the seconds and the gradient's norm of each step."""
    for _ in range(repetitions):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        norm = step()
        if device == "cuda":
            torch.cuda.synchronize()
        yield time.perf_counter() - began, norm


def main() -> None:
    """Measure one trainer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trainer", choices=sorted(STEPS))
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--gpu", action="store_true", help="1.5B's shape on a CUDA device")
    where.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    parser.add_argument("--rows", type=int, default=64, help="rows of a step")
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens of a micro-batch")
    add_keep(parser)
    given = parser.parse_args()
    device, shape = ("cuda", "1.5B") if given.gpu else ("cpu", "tiny")
    torch.set_num_threads(1 if given.tiny else torch.get_num_threads())
    lengths = ((1000, 4000), (64, 512)) if given.gpu else ((20, 80), (4, 20))
    rows = make_rows(given.rows, SHAPES[shape]["vocab_size"], *lengths)
    step = STEPS[given.trainer](make_model(shape), rows, given.tokens if given.gpu else 1024, device)
    measured = list(measure(step, device, 3))
    best = min(seconds for seconds, _ in measured)
    found = {
        "trainer": given.trainer,
        "shape": shape,
        "rows": given.rows,
        "tokens": rows.tokens,
        "grad_norm": measured[0][1],
        "seconds": [seconds for seconds, _ in measured],
        "tokens_per_s": rows.tokens / best,
        "memory_gib": torch.cuda.max_memory_allocated() / 2**30 if given.gpu else None,
    }
    print(store(f"update_{given.trainer}", found, keep=given.keep))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
