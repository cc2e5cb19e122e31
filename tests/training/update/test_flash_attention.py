"""Packed rows with flash attention or torch's own kernel: every layer receives the bounds of sequences, and no mask.

Both need a GPU. Functions with their arguments take their place, which compute each sequence on its own with torch's
attention.
"""

import copy
import itertools
import shutil

import numpy as np
import pytest
from lazily import Lazy, lazily
from refusals import refused

from hgpo_train.models.config import ModelConfig
from hgpo_train.training.config import Config, replace

torch = Lazy("torch")
FakeTensorMode = Lazy("torch._subclasses.fake_tensor:FakeTensorMode")
AttentionInterface, AttentionMaskInterface = lazily(
    "transformers", "AttentionInterface AttentionMaskInterface"
)
flash_attention_mask = Lazy("transformers.masking_utils:flash_attention_mask")
add_adapters = Lazy("hgpo_train.models.adapters:add_adapters")
checkpoint_layers = Lazy("hgpo_train.models.hf:checkpoint_layers")
samples_from_steps = Lazy("hgpo_train.training.update.batches:samples_from_steps")
LossInputs, Learner = lazily("hgpo_train.training.update.learner", "LossInputs Learner")
enable_packed_kernel, use_packed_kernel = lazily(
    "hgpo_train.models.packed_attention", "enable_packed_kernel use_packed_kernel"
)

NAME = "flash_attention_of_the_test"
CALLS: list[dict] = []


def varlen_attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Compute attention as Transformers' `flash_attention_forward` does: causal, within bounds or within rows."""
    CALLS.append({"mask": attention_mask, **kwargs})
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    bounds = kwargs.get("cu_seq_lens_q")
    places = [0, query.shape[2]] if bounds is None else bounds.tolist()
    parts = [
        torch.nn.functional.scaled_dot_product_attention(
            *(part[:, :, begin:end] for part in (query, key, value)),
            is_causal=True,
            scale=scaling,
        )
        for begin, end in itertools.pairwise(places)
    ]
    return torch.cat(parts, 2).transpose(1, 2), None


def varlen_kernel(
    query,
    key,
    value,
    bounds,
    other,
    longest,
    other_longest,
    *,
    scale,
    window_size,
    enable_gqa=False,
):
    """Compute what `torch.nn.attention.varlen.varlen_attn` does, of arrays of shape (tokens, heads, head width)."""
    assert window_size == (-1, 0)
    assert enable_gqa or query.shape == key.shape
    assert query.dtype == key.dtype == value.dtype
    assert bounds is other
    assert longest == other_longest == bounds.diff().max()
    parts = (part.transpose(0, 1)[None] for part in (query, key, value))
    return varlen_attention(None, *parts, None, scaling=scale, cu_seq_lens_q=bounds)[0][
        0
    ]


def packs_with_torch(model):
    model = copy.deepcopy(model)
    use_packed_kernel(model)
    return model


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr("hgpo_train.models.packed_attention.varlen_attn", varlen_kernel)
    monkeypatch.setitem(AttentionInterface._global_mapping, NAME, varlen_attention)
    monkeypatch.setitem(
        AttentionMaskInterface._global_mapping, NAME, flash_attention_mask
    )
    CALLS.clear()


def config_of(layout, tokens=10**6):
    return replace(
        Config(),
        model={"compute_dtype": "float32", "gradient_checkpointing": False},
        update={
            "layout": layout,
            "micro_batch_tokens": tokens,
            "kl_weight": 0.0,
            "logit_chunk": 0,
        },
    )


def flash(model):
    model = copy.deepcopy(model)
    model.config._attn_implementation = NAME
    return model


def gradient(model, config, samples, rows):
    learner = Learner(model, config)
    learner.accumulate(samples, rows, LossInputs())
    return gradients_of(learner)


def gradients_of(learner):
    return {
        name: parameter.grad
        for name, parameter in learner.model.named_parameters()
        if parameter.grad is not None
    }


def check_equal(expected, received):
    assert received.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(
            received[name], value, rtol=0, atol=1e-6 + 1e-5 * value.abs().max().item()
        ), name


def variant_of(model, variant):
    """Return a copy of the model, with adapters or with checkpointed layers."""
    model = copy.deepcopy(model)
    if variant == "adapters":
        return add_adapters(
            model, replace(Config(), model={"lora": {"rank": 4}}).model.lora
        )
    if variant == "checkpointed":
        checkpoint_layers(model)
    return model


@pytest.mark.filterwarnings("ignore:update.layout")
@pytest.mark.parametrize("kernel", ["flash", "torch", "torch 2.11"])
@pytest.mark.parametrize("variant", ["plain", "adapters", "checkpointed"])
def test_gradients_of_packed_rows_equal_those_of_padded_ones(
    model, steps, variant, kernel, monkeypatch
):
    if kernel == "torch 2.11":  # whose kernel has no grouped queries
        monkeypatch.setattr("hgpo_train.models.packed_attention._GROUPED", {})
    samples = samples_from_steps(steps)
    rows = np.flatnonzero(samples.response_length > 0)
    other = flash(model) if kernel == "flash" else packs_with_torch(model)
    models = [variant_of(one, variant) for one in (model, other)]
    padded, packed = (
        gradient(one, config_of(layout, tokens), samples, rows)
        for one, layout, tokens in zip(
            models, ("padded", "auto"), (10**6, 45), strict=True
        )
    )
    assert CALLS
    check_equal(padded, packed)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"
)
@pytest.mark.parametrize("variant", ["plain", "adapters", "checkpointed"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_compiled_layers_have_the_same_gradients(model, steps, variant, layout):
    samples = samples_from_steps(steps)
    rows = np.flatnonzero(samples.response_length > 0)
    config = replace(config_of(layout, 45), update={"kl_weight": 0.1})
    gradients = []
    for compiled in (False, True):
        changes = {"model": {"compile": compiled}, "rollout": {"engine": "vllm"}}
        learner = Learner(variant_of(model, variant), replace(config, **changes))
        fixed = LossInputs(
            learner.logprobs(samples), learner.reference_logprobs(samples)
        )
        parts = learner.accumulate(samples, rows, fixed)
        assert parts["kl_loss"] == pytest.approx(0.0, abs=1e-9)
        gradients.append(gradients_of(learner))
    check_equal(*gradients)


@pytest.mark.filterwarnings("ignore:update.layout")
def test_every_layer_receives_the_bounds_and_no_mask(model, steps):
    samples = samples_from_steps(steps)
    learner = Learner(flash(model), config_of("packed"))
    CALLS.clear()  # of the check that rows can be packed
    learner.logprobs(samples)
    lengths = np.sort(samples.length[samples.response_length > 0])[::-1]
    assert len(CALLS) == model.config.num_hidden_layers  # one micro-batch
    for call in CALLS:
        assert call["mask"] is None
        assert call["cu_seq_lens_q"].dtype == torch.int32
        assert call["cu_seq_lens_q"].tolist() == [0, *np.cumsum(lengths).tolist()]
        assert call["cu_seq_lens_k"] is call["cu_seq_lens_q"]
        assert call["max_length_q"] == call["max_length_k"] == lengths[0]
        assert isinstance(call["max_length_q"], int)


def test_rows_that_are_not_packed_are_computed_as_before(model):
    """Of a generation with padding on the left, and of the learner's padded rows."""
    tokens = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(0))
    ones = torch.ones(2, 9).bool()
    # the first row begins late, the second ends early
    padded = ones.tril(-4) | ones.triu(2)
    for mask in (None, padded):
        expected, received = (
            each(input_ids=tokens, attention_mask=mask).logits
            for each in (model, packs_with_torch(model))
        )
        assert torch.equal(received, expected)
    assert not CALLS


def test_the_operator_of_torch_takes_the_arguments(model, monkeypatch):
    """With fake tensors, forward and backward, under autocast."""
    monkeypatch.setattr(
        "hgpo_train.models.packed_attention.varlen_attn",
        torch.nn.attention.varlen.varlen_attn,
    )
    bounds = {
        "cu_seq_lens_q": torch.tensor([0, 3, 8], dtype=torch.int32),
        "max_length_q": 5,
    }
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.autocast("cpu", torch.bfloat16),
    ):
        fake = type(model)(model.config)
        use_packed_kernel(fake)
        tokens = torch.zeros(1, 8, dtype=torch.int64)
        logits = fake(
            input_ids=tokens, position_ids=tokens, use_cache=False, **bounds
        ).logits
        logits.sum().backward()
    assert all(parameter.grad is not None for parameter in fake.parameters())


def test_without_a_kernel_rows_are_padded(model):
    assert not enable_packed_kernel(model, torch.bfloat16)
    assert model.config._attn_implementation == "sdpa"
    assert Learner(model, config_of("auto")).layout == "padded"


def test_flash_attention_in_float32_is_rejected():
    with refused(
        r'"flash_attention_2" has no kernels for model.compute_dtype = "float32"'
    ):
        ModelConfig(attention="flash_attention_2", compute_dtype="float32")
