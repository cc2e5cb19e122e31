"""Measure what reaches the engine when weights are published: the share of an adapter's change.

    python benchmarks/publication.py               a minute
    python benchmarks/publication.py --engine      also vLLM (extra `vllm`, or its build for CPUs), some minutes more

change   A small model with weights of a bfloat16 checkpoint trains adapters (rank 64, alpha 64, learning rate 3e-6: the
         shipped -lora configurations), 16 optimiser steps an iteration. `share` is the projection of the published
         change onto the trained one, 1 if nothing is lost; `error` is the size of their difference relative to the
         trained change. Both for the weights, and for log-probabilities computed in float32 from what was published.
engine   The same share in log-probabilities that the trainer and vLLM compute in bfloat16, after five iterations. Their
         own rounding changes log-probabilities too, so the standard error of the share is given.

Results: benchmarks/results/publication.json.
"""

from __future__ import annotations

import copy
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from record import make_parser, print_table, store
from transformers import AutoModelForCausalLM, Qwen2Config

from hgpo_train.models.config import LoraConfig
from hgpo_train.models.loading import add_adapters
from hgpo_train.policies.weight_handover import checkpoint_weights
from hgpo_train.training.config import Config, replace
from hgpo_train.training.update.batches import samples_from_steps
from hgpo_train.training.update.learner import Learner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from hgpo_train.models.hf import Model
    from hgpo_train.policies.vllm import VLLMPolicy
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
        "prompt_token_ids": [rng.integers(0, VOCABULARY, 24).tolist() for _ in range(number)],
        "response_token_ids": [rng.integers(0, VOCABULARY, 8).tolist() for _ in range(number)],
        "advantage": rng.normal(size=number),
    }
    return samples_from_steps(pl.DataFrame(steps))


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


def change() -> list[dict[str, Any]]:
    """Compare the change that each way publishes with the trained one."""
    base = {name: value.float() for name, value in checkpoint_weights(small_model()).items()}
    ids = torch.randint(0, VOCABULARY, (16, 32), generator=torch.Generator().manual_seed(9))
    before = log_probabilities(base, ids)
    found = []
    for iteration, model in trained_adapters():
        exact = checkpoint_weights(model)
        changed = [name for name, value in exact.items() if not torch.equal(value, base[name])]
        trained = torch.cat([(exact[name] - base[name]).flatten().double() for name in changed])
        trained_logprobs = (log_probabilities(exact, ids) - before).flatten()
        for way, weights in (
            ("merged in bfloat16 (before)", checkpoint_weights(copy.deepcopy(model).merge_and_unload())),
            ("merged in float32, served in bfloat16", checkpoint_weights(model, torch.bfloat16)),
            ("adapters (now)", rounded_adapters(model)),
        ):
            published = torch.cat([(weights[name].float() - base[name]).flatten().double() for name in changed])
            share, error = compared(published, trained)
            row = {"iterations": iteration, "published": way, "weights: share": share, "error": error}
            share, error = compared((log_probabilities(weights, ids) - before).flatten(), trained_logprobs)
            found.append(row | {"log-probabilities: share": share, "their error": error})
    return found


def served() -> list[dict[str, Any]]:
    """Compare the change of the log-probabilities that vLLM serves with that of the trained model in float32."""
    from hgpo_train.models.tiny import train_tokenizer
    from hgpo_train.policies.generation import GenerationOptions
    from hgpo_train.policies.vllm import VLLMPolicy, adapter_arguments

    ids = torch.randint(0, VOCABULARY, (256, 64), generator=torch.Generator().manual_seed(9))
    _, model = list(trained_adapters())[-1]

    def of_tokens(weights: dict[str, Tensor]) -> Tensor:
        return log_probabilities(weights, ids)[:, :-1].gather(-1, ids[:, 1:, None]).flatten()

    trained = of_tokens(checkpoint_weights(model)) - of_tokens(checkpoint_weights(small_model()))
    with model.disable_adapter():
        before = trainer_logprobs(model, ids)
    computed = trainer_logprobs(model, ids) - before
    found = [with_error("the trainer, under autocast", computed, trained, computed)]
    adapters = adapter_arguments(LORA.rank)
    with tempfile.TemporaryDirectory() as folder:
        small_model().save_pretrained(folder)
        train_tokenizer(["go to cabinet 1"], VOCABULARY).save_pretrained(folder)
        for way, dtype, arguments in (
            ("vLLM, merged (before)", "bfloat16", {}),
            ("vLLM, adapters (now)", "bfloat16", adapters),
            ("vLLM in float32, adapters", "float32", adapters),
        ):
            engine = {"dtype": dtype, "enforce_eager": True, "disable_log_stats": True, **arguments}
            policy = VLLMPolicy(folder, GenerationOptions(max_prompt_tokens=120, max_response_tokens=8), engine)
            try:
                before = engine_logprobs(policy, ids)
                policy.publish(model, 1)
                found.append(with_error(way, engine_logprobs(policy, ids) - before, trained, computed))
            finally:
                policy.close()
    return found


def with_error(way: str, published: Tensor, trained: Tensor, computed: Tensor) -> dict[str, Any]:
    """Return the share of a trained change in the published one, its error, and the correlation with the trainer's."""
    share, _ = compared(published, trained)
    error = ((published - share * trained).square().mean() / trained.square().sum()).sqrt().item()
    correlation = torch.corrcoef(torch.stack([published, computed]))[0, 1].item()
    return {"computed by": way, "share": share, "standard error": error, "correlation with the trainer": correlation}


def trainer_logprobs(model: Model, ids: Tensor) -> Tensor:
    """Return the log-probabilities of all tokens but the first of each row, as the trainer computes them."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids).logits[:, :-1].double()
    return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).flatten()


def engine_logprobs(policy: VLLMPolicy, ids: Tensor) -> Tensor:
    """Return the log-probabilities of all tokens but the first of each row, from vLLM."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": row} for row in ids.tolist()]
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    outputs = policy._llm.generate(prompts, params, lora_request=policy._adapter, use_tqdm=False)  # noqa: SLF001
    values = [
        at[token].logprob
        for out, row in zip(outputs, ids.tolist(), strict=True)
        for at, token in zip(out.prompt_logprobs[1:], row[1:], strict=True)
    ]
    return torch.tensor(values, dtype=torch.float64)


def main() -> None:
    """Run all parts."""
    parser = make_parser(__doc__)
    parser.add_argument("--engine", action="store_true", help="also measure what vLLM serves")
    given = parser.parse_args()
    figures = {"change": change()}
    if given.engine:
        figures["engine"] = served()
        print_table(figures["engine"], title="the change that vLLM serves, five iterations")
    print_table(figures["change"], title="the change that is published")
    print(store("publication", figures, keep=given.keep))


if __name__ == "__main__":
    main()
