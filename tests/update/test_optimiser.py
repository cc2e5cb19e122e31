"""Schedules by hand, FLOPs by hand, memory advice."""

import math

import numpy as np
import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from hgpo_train.config import LoraConfig, OptimiserConfig
from hgpo_train.update.model import add_adapters
from hgpo_train.update.optimiser import clip_gradient, learning_rate
from hgpo_train.update.throughput import model_flops


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1.0, 1.0, 1.0, 1.0]),
        ("linear", 0, [1.0, 0.75, 0.5, 0.25]),
        ("cosine", 0, [1.0, 0.5 + math.cos(math.pi / 4) / 2, 0.5, 0.5 - math.cos(math.pi / 4) / 2]),
        ("constant", 2, [0.5, 1.0, 1.0, 1.0]),
        ("linear", 2, [0.5, 1.0, 1.0, 0.5]),
    ],
)
def test_schedules(schedule, warmup, expected):
    config = OptimiserConfig(learning_rate=1.0, schedule=schedule, warmup_iterations=warmup)
    assert [learning_rate(config, iteration, 4) for iteration in range(4)] == pytest.approx(expected)


def test_the_gradient_is_clipped_to_its_norm(model):
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    norm = math.sqrt(sum(float((parameter.detach() ** 2).sum()) for parameter in model.parameters()))
    assert clip_gradient(model, 0) == pytest.approx(norm, rel=1e-5)
    assert clip_gradient(model, 2.0) == pytest.approx(norm, rel=1e-5)
    assert clip_gradient(model, 0) == pytest.approx(2.0, rel=1e-5)


def test_flops_by_hand():
    """One layer of width 8: q and o 8·8, k and v 8·4, gate, up and down 8·16; head 10·8; two sequences."""
    config = Qwen2Config(
        vocab_size=10, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    layer = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + (8 + 4 + 4) + 2 * 8 + 8  # biases and norms too
    length, response = np.array([5, 7]), np.array([2, 3])
    attention = 6 * 1 * 2 * 4 * (25 + 49)
    assert model_flops(model, length, response) == 6 * layer * 12 + attention + 6 * 80 * 5
    adapted = add_adapters(model, LoraConfig(rank=1))
    adapters = (8 + 8) + 2 * (8 + 4) + (8 + 8) + 3 * (8 + 16)
    assert model_flops(adapted, length, response) == 4 * ((layer + adapters) * 12 + 80 * 5) + attention
