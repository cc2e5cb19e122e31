"""Schedules and FLOPs against values by hand, and the optimiser's state when stored and restored."""

import copy
import math

import numpy as np
import pytest
from architectures import ARCHITECTURES, SIZES
from lazily import Lazy, lazily
from refusals import refused_saying

from hgpo_train.models.config import LoraConfig
from hgpo_train.training.config import OptimiserConfig

torch = Lazy("torch")
load_file, save_file = lazily("safetensors.torch", "load_file save_file")
Qwen2Config, Qwen2ForCausalLM = lazily("transformers", "Qwen2Config Qwen2ForCausalLM")
add_adapters = Lazy("hgpo_train.models.adapters:add_adapters")
learning_rate, make_optimiser, optimiser_tensors, restore_optimiser = lazily(
    "hgpo_train.training.update.optimiser",
    "learning_rate make_optimiser optimiser_tensors restore_optimiser",
)
model_flops = Lazy("hgpo_train.training.update.throughput:model_flops")


def test_schedules_match_values_by_hand():
    for schedule, warmup, expected in (
        ("constant", 0, [1.0, 1.0, 1.0, 1.0]),
        ("linear", 0, [1.0, 0.75, 0.5, 0.25]),
        (
            "cosine",
            0,
            [
                1.0,
                0.5 + math.cos(math.pi / 4) / 2,
                0.5,
                0.5 - math.cos(math.pi / 4) / 2,
            ],
        ),
        ("constant", 2, [0.5, 1.0, 1.0, 1.0]),
        ("linear", 2, [0.5, 1.0, 1.0, 0.5]),
    ):
        config = OptimiserConfig(
            learning_rate=1.0, schedule=schedule, warmup_iterations=warmup
        )
        assert [
            learning_rate(config, iteration, 4) for iteration in range(4)
        ] == pytest.approx(expected)


def test_flops_match_values_by_hand():
    """A layer of width 8 (q and o 8·8, k and v 8·4, gate, up and down 8·16), a head of 10·8, and two sequences."""
    config = Qwen2Config(
        vocab_size=10, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    # with biases and norms
    layer = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + (8 + 4 + 4) + 2 * 8 + 8
    length = np.array([5, 7])
    response = np.array([2, 3])
    attention = 6 * 1 * 2 * 4 * (25 + 49)
    assert (
        model_flops(model, length, response) == 6 * layer * 12 + attention + 6 * 80 * 5
    )
    adapted = add_adapters(model, LoraConfig(rank=1))
    adapters = (8 + 8) + 2 * (8 + 4) + (8 + 8) + 3 * (8 + 16)
    assert (
        model_flops(adapted, length, response)
        == 4 * ((layer + adapters) * 12 + 80 * 5) + attention
    )


NORM = 32
GATE = 4 * 32
ATTENTION = 2 * 32 * 32 + 2 * 32 * 16
"""q and o; k and v."""
LATENT_ATTENTION = (32 * 16 + 16 + 16 * 64) + (32 * 24 + 16 + 16 * 64) + 32 * 32
"""q; k and v, of 16 and 8; o. Those of q, k and v are products with a norm in between."""

MIXTURES = {
    # each of 2 layers with 2 of 4 experts of 3·32·48
    "mixtral": (2 * (ATTENTION + GATE + 2 * 3 * 32 * 48 + 2 * NORM) + NORM, 8),
    # experts of 3·32·16, and norms of queries and keys
    "qwen3_moe": (
        2 * (ATTENTION + GATE + 2 * 3 * 32 * 16 + 2 * NORM + 2 * 8) + NORM,
        8,
    ),
    # a dense layer of 3·32·48, and one with two experts and a shared one
    "deepseek_v3": (
        2 * (LATENT_ATTENTION + 2 * NORM)
        + NORM
        + 3 * 32 * 48
        + (GATE + 3 * 3 * 32 * 16),
        12,
    ),
}
"""The weights that a token is multiplied with, and the width of attention's products."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", MIXTURES)
def test_flops_of_a_mixture_count_the_experts_that_a_token_takes(kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **{**SIZES, **ARCHITECTURES[kind]})
    )
    layers, width = MIXTURES[kind]
    attention = 6 * 2 * 4 * width * (25 + 49)
    flops = model_flops(model, np.array([5, 7]), np.array([2, 3]))
    assert flops == 6 * layers * 12 + attention + 6 * 96 * 32 * 5


def stepped(model, seed, steps):
    """Return the model's optimiser after some steps with random gradients."""
    optimiser = make_optimiser(model, OptimiserConfig(learning_rate=0.01))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = (
                torch.randn(parameter.shape, generator=generator)
                if parameter.requires_grad
                else None
            )
        optimiser.step()
    optimiser.zero_grad()
    return optimiser


def step_with_ones(model, optimiser):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    optimiser.step()


@pytest.mark.parametrize("adapters", [False, True])
def test_a_restored_optimiser_takes_the_same_step(model, tmp_path, adapters):
    first = add_adapters(model, LoraConfig(rank=2)) if adapters else model
    optimiser = stepped(first, seed=1, steps=3)
    save_file(optimiser_tensors(first, optimiser), tmp_path / "optimiser.safetensors")
    second = copy.deepcopy(first)
    other = stepped(second, seed=2, steps=1)
    second.load_state_dict(first.state_dict())
    for group in other.param_groups:
        group["lr"] = 0.25  # the learning rate is not restored: the schedule sets it
    restore_optimiser(second, other, load_file(tmp_path / "optimiser.safetensors"))
    assert {group["lr"] for group in other.param_groups} == {0.25}
    for group in other.param_groups:
        group["lr"] = 0.01
    step_with_ones(first, optimiser)
    step_with_ones(second, other)
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)


def test_moments_that_are_allocated_before_the_first_step_change_nothing(model):
    """Torch allocates them in the first step; a lack of memory shows earlier here."""
    twin = copy.deepcopy(model)
    optimiser = make_optimiser(model, OptimiserConfig(learning_rate=0.01))
    plain = torch.optim.AdamW(twin.parameters(), lr=0.01)
    allocated = {
        name: tensor.shape
        for name, tensor in optimiser_tensors(model, optimiser).items()
    }
    for _ in range(2):
        step_with_ones(model, optimiser)
        step_with_ones(twin, plain)
    assert allocated == {
        name: tensor.shape for name, tensor in optimiser_tensors(twin, plain).items()
    }
    assert all(
        torch.equal(*pair)
        for pair in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_the_state_of_another_model_is_refused(model):
    tensors = optimiser_tensors(model, stepped(model, seed=1, steps=1))
    name = next(name for name in tensors if name.endswith("exp_avg"))
    parameter = name.removeprefix("state.").removesuffix(".exp_avg")
    lost = {key: value for key, value in tensors.items() if parameter not in key}
    with refused_saying(f"another model: {parameter!r} is in only one of them"):
        restore_optimiser(model, stepped(model, seed=1, steps=1), lost)
