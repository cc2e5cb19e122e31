"""Weights in another process: equal tensors, tied ones once, adapters merged in float32."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hgpo_train.models.config import LoraConfig


@pytest.fixture
def model():
    from hgpo_train.models.tiny import TinyShape, make_model, train_tokenizer

    shape = TinyShape(
        vocabulary=300, width=64, layers=2, heads=2, key_value_heads=1, intermediate=96
    )
    return make_model(train_tokenizer(["go to cabinet 1"] * 5, 300), shape, seed=3)


def received(handle):
    from hgpo_train.policies.weight_handover import open_tensors

    return {name: tensor.cpu().clone() for name, tensor in open_tensors(handle).items()}


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="vLLM and anonymous memory require Linux"
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_another_process_receives_equal_tensors(model, device):
    import torch

    from hgpo_train.policies.weight_handover import checkpoint_weights, share_tensors

    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("requires a GPU")
    weights = checkpoint_weights(model.to(device))
    weights["transposed"] = torch.arange(6, device=device).reshape(2, 3).T
    if device == "cpu":
        weights |= {
            "half": torch.arange(7, dtype=torch.bfloat16),
            "scalar": torch.tensor(2.5, dtype=torch.float64),
            "empty": torch.empty(0, 4),
        }
    with (
        share_tensors(weights, by_device=True) as handle,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        # on a GPU nothing is staged
        assert bool(handle["layouts"]) == (device == "cpu")
        found = pool.apply(received, (handle,))
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        assert torch.equal(found[name], value.cpu())
        assert found[name].dtype == value.dtype
    assert not Path(handle["path"]).exists()  # nothing remains


def test_the_trainers_device_is_waited_for_whichever_is_current(monkeypatch):
    """As with the engine on cuda:0 and `model.device = "cuda:1"`."""
    import torch

    from hgpo_train.policies import weight_handover

    class OnSecondCard:
        is_cuda = True
        device = torch.device("cuda:1")

        def contiguous(self):
            return self

    events = []

    def note(name):
        return lambda *arguments: events.append((name, *arguments))

    reduced = "torch.multiprocessing.reductions.reduce_tensor"
    monkeypatch.setattr(reduced, lambda _: events.append("shared"))
    monkeypatch.setattr("torch.cuda.synchronize", note("waited for"))
    monkeypatch.setattr("torch.cuda.ipc_collect", lambda: None)
    weights = {"first": OnSecondCard(), "second": OnSecondCard()}
    with weight_handover.share_tensors(weights, by_device=True):
        waited = ("waited for", torch.device("cuda:1"))
        assert events == [waited, "shared", "shared"]

    # The worker waits for its own device and for the trainer's.
    events.clear()
    monkeypatch.setattr(weight_handover, "open_tensors", lambda handle: weights)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.synchronize", note("waited"))
    worker = weight_handover.WeightUpdate()
    worker.reload_weights = lambda weights_iterator: events.append("copied")
    worker.model_runner = SimpleNamespace(model=None)
    worker.take_weights({})
    assert events == ["copied", ("waited",), waited]


def test_weights_go_through_the_hosts_memory_if_the_gpu_cannot_be_shared():
    """As in a container without pidfd_getfd: the first attempt fails in the engine, and later ones are not made."""
    import torch

    from hgpo_train.policies.vllm import VLLMPolicy

    class Engine:
        calls = 0

        def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError(
                    "Call to collective_rpc method failed: pidfd_getfd: Operation not permitted"
                )

    policy = VLLMPolicy.__new__(VLLMPolicy)
    policy._llm = Engine()
    policy.by_device = True
    with pytest.warns(
        RuntimeWarning,
        match="pidfd_getfd: Operation not permitted.*through the host's memory",
    ):
        policy._publish_weights({"weight": torch.ones(2)})
    policy._publish_weights({"weight": torch.ones(2)})
    assert policy._llm.calls == 3


def test_the_names_and_values_are_those_of_a_checkpoint(model, tmp_path):
    import torch
    from safetensors.torch import load_file

    from hgpo_train.policies.weight_handover import checkpoint_weights

    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    weights = checkpoint_weights(model)
    assert weights.keys() == saved.keys()  # the tied output layer is in neither
    assert all(torch.equal(weights[name], value) for name, value in saved.items())
    parameters = dict(model.named_parameters())
    # no copies
    assert all(
        weights[name].data_ptr() == parameters[name].data_ptr() for name in weights
    )


def test_adapters_are_merged_in_float32_and_rounded_once(model):
    import torch

    from hgpo_train.models.adapters import add_adapters
    from hgpo_train.policies.weight_handover import checkpoint_weights

    plain = {
        name: value.clone()
        for name, value in checkpoint_weights(model.to(torch.bfloat16)).items()
    }
    adapted = add_adapters(
        model, LoraConfig(rank=4, alpha=8, targets=("q_proj", "down_proj"))
    )
    generator = torch.Generator().manual_seed(0)
    factors = dict(adapted.named_parameters())
    with torch.no_grad():
        for name, parameter in factors.items():
            if "lora_B" in name:
                parameter.copy_(
                    1e-4 * torch.randn(parameter.shape, generator=generator)
                )
    exact = checkpoint_weights(adapted)
    rounded = checkpoint_weights(adapted, torch.bfloat16)
    assert exact.keys() == rounded.keys() == plain.keys()
    for name, old in plain.items():
        layer = name.removesuffix(".weight")
        if layer.endswith(("q_proj", "down_proj")):
            a, b = (
                factors[f"base_model.model.{layer}.lora_{part}.default.weight"]
                for part in "AB"
            )
            expected = old.float() + (8 / 4) * (b @ a)
            assert torch.allclose(exact[name], expected, rtol=0, atol=1e-9)
            assert torch.equal(rounded[name], exact[name].to(torch.bfloat16))
            assert not torch.equal(exact[name], old.float())
        else:
            assert torch.equal(exact[name], old)
