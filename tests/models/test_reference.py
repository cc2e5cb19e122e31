"""The reference model equals the policy before training to the last bit, in bfloat16 and for long prompts."""

import numpy as np
import polars as pl
import pytest
from lazily import Lazy, lazily

from hgpo_train.models.config import ModelConfig
from hgpo_train.training.config import Config, replace

torch = Lazy("torch")
Qwen2Config, Qwen2ForCausalLM = lazily("transformers", "Qwen2Config Qwen2ForCausalLM")
load_model = Lazy("hgpo_train.models.loading:load_model")
frozen_copy = Lazy("hgpo_train.models.reference:frozen_copy")
Samples, samples_from_steps = lazily(
    "hgpo_train.training.update.batches", "Samples samples_from_steps"
)
Learner = Lazy("hgpo_train.training.update.learner:Learner")

VOCABULARY = 200
LENGTHS = [
    64,
    *(pytest.param(length, marks=pytest.mark.slow) for length in (1024, 4096)),
]
STORED = ["bfloat16", "float32"]


def random_model(*, tied=True):
    """Return a Qwen2 of four layers whose biases and norms are random too."""
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
    }
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 8192,
    }
    config = Qwen2Config(**shape, **heads, tie_word_embeddings=tied)
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.copy_(noise + (1.0 if parameter.dim() == 1 else 0.0))
    return model


def saved(folder, dtype, *, tied=True):
    """Save a random model in a dtype; a checkpoint in bfloat16 has no values that bfloat16 cannot represent."""
    random_model(tied=tied).to(dtype).save_pretrained(folder)
    return str(folder)


def samples(length, rows=2):
    rng = np.random.default_rng(length)
    prompts = [
        rng.integers(0, VOCABULARY, length - 3 * row).tolist() for row in range(rows)
    ]
    responses = [rng.integers(0, VOCABULARY, 12).tolist() for _ in range(rows)]
    steps = {
        "prompt_token_ids": prompts,
        "response_token_ids": responses,
        "advantage": rng.normal(size=rows),
    }
    return samples_from_steps(pl.DataFrame(steps))


def config_of(path, rank=0, **update):
    model = {
        "path": path,
        "device": "cpu",
        "compute_dtype": "bfloat16",
        "lora": {"rank": rank},
    }
    return replace(
        Config(),
        model=model,
        update={"kl_weight": 0.01, "micro_batch_tokens": 10_000, **update},
    )


def make_learner(path, rank=0, **update):
    config = config_of(path, rank, **update)
    return Learner(load_model(config.model), config)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rank", [0, 4], ids=["all weights", "adapters"])
@pytest.mark.parametrize("stored", STORED)
def test_the_reference_equals_the_policy_at_the_start(tmp_path, stored, rank, length):
    learner = make_learner(saved(tmp_path, getattr(torch, stored)), rank)
    rows = samples(length)
    policy = learner.logprobs(rows)
    reference = learner.reference_logprobs(rows)
    assert np.isfinite(policy).all()
    assert np.array_equal(policy, reference)
    # Training changes the policy and not the reference.
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(0.05 if parameter.requires_grad else 0.0)
    assert not np.array_equal(learner.logprobs(rows), reference)
    assert np.array_equal(learner.reference_logprobs(rows), reference)


@pytest.mark.parametrize(
    ("layout", "checkpointing"), [("padded", True), ("packed", False)]
)
def test_the_first_optimiser_step_measures_no_divergence(
    tmp_path, layout, checkpointing
):
    config = config_of(saved(tmp_path, torch.bfloat16), layout=layout)
    config = replace(config, model={"gradient_checkpointing": checkpointing})
    learner = Learner(load_model(config.model), config)
    first = learner.update(samples(64), np.random.default_rng(0), rate=1e-2)
    second = learner.update(samples(64), np.random.default_rng(0), rate=1e-2)
    assert first["actor/kl_loss"] == 0.0
    assert second["actor/kl_loss"] > 0.0


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stored", STORED)
def test_the_copy_rounds_only_what_autocast_rounds(stored, tied):
    model = random_model(tied=tied)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(getattr(torch, stored)).float())
    copied = frozen_copy(model, torch.bfloat16)
    assert all(buffer.dtype == torch.float32 for _, buffer in copied.named_buffers())
    assert copied.model.norm.weight.dtype == torch.float32
    assert copied.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    assert copied.model.layers[0].self_attn.q_proj.bias.dtype == torch.bfloat16
    # The embedding is rounded only if this changes nothing.
    embedding = torch.bfloat16 if stored == "bfloat16" else torch.float32
    assert copied.model.embed_tokens.weight.dtype == embedding
    assert copied.lm_head.weight.dtype == (embedding if tied else torch.bfloat16)
    assert (copied.lm_head.weight is copied.model.embed_tokens.weight) == tied
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert all(
        parameter.dtype == torch.float32 and parameter.requires_grad
        for parameter in model.parameters()
    )


def test_the_base_of_adapters_keeps_float32_buffers(tmp_path):
    path = saved(tmp_path, torch.float32)
    config = replace(
        ModelConfig(),
        path=path,
        device="cpu",
        compute_dtype="bfloat16",
        lora={"rank": 4},
    )
    adapted = load_model(config)
    assert adapted.get_base_model().model.embed_tokens.weight.dtype == torch.bfloat16
    exact = dict(random_model().named_buffers())
    found = dict(adapted.get_base_model().named_buffers())
    assert found.keys() == exact.keys()
    assert all(
        buffer.dtype == torch.float32 and torch.equal(buffer, exact[name])
        for name, buffer in found.items()
    )
