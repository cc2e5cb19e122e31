"""The numbers of a GPU: every kernel against another one, the optimiser's state, and the weights that vLLM serves."""

import copy
import dataclasses
import itertools
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from lazily import Lazy, lazily

from hgpo_train.training.config import Config, OptimiserConfig, replace

pytestmark = pytest.mark.slow

torch = Lazy("torch")
varlen_attn = Lazy("torch.nn.attention.varlen:varlen_attn")
gpu_check = Lazy("hgpo_train.training.gpu_check")
checkpoint_layers = Lazy("hgpo_train.models.hf:checkpoint_layers")
train_tokenizer = Lazy("hgpo_train.models.tiny:train_tokenizer")
load_checkpoint, save_checkpoint = lazily(
    "hgpo_train.training.checkpoint", "load_checkpoint save_checkpoint"
)
TrainingState = Lazy("hgpo_train.models.checkpoint_files:TrainingState")
LossInputs, Learner = lazily("hgpo_train.training.update.learner", "LossInputs Learner")
make_optimiser, move_state = lazily(
    "hgpo_train.training.update.optimiser", "make_optimiser move_state"
)


@pytest.fixture
def device():
    if not torch.cuda.is_available():
        pytest.skip("requires a GPU")
    return torch.device("cuda")


@pytest.mark.parametrize("length", [64, 1024, 4096])
@pytest.mark.parametrize(
    ("attention", "layout"),
    [("sdpa", "padded"), ("sdpa", "packed"), ("flash_attention_2", "packed")],
)
def test_before_the_first_step_the_policy_is_the_reference(
    device, attention, layout, length
):
    if attention == "flash_attention_2":
        pytest.importorskip("flash_attn")
    config = replace(
        Config(), model={"attention": attention}, update={"layout": layout}
    )
    passed, value, bound = gpu_check.first_step(device, config, length)
    assert passed, (value, bound)


def gradient(device, **changes):
    """Return the gradient of rows of several lengths in float32, on the CPU."""
    config = replace(
        Config(), model={"compute_dtype": "float32"}, update={"kl_weight": 0.0}
    )
    config = replace(config, **changes)
    model = gpu_check.small_model(device)
    if config.model.gradient_checkpointing is True:
        checkpoint_layers(model)
    samples = gpu_check.random_samples([256, 240, 90])
    learner = Learner(model, config)
    learner.accumulate(samples, np.arange(len(samples)), LossInputs())
    gradients = [
        parameter.grad
        for parameter in learner.model.parameters()
        if parameter.grad is not None
    ]
    return torch.cat([each.double().cpu().flatten() for each in gradients])


def difference(received, expected):
    return float((received - expected).norm() / expected.norm())


def test_gradients_of_a_gpu_are_those_of_a_cpu(device):
    assert difference(gradient(device), gradient(torch.device("cpu"))) < 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"update": {"layout": "packed"}},
        {"model": {"gradient_checkpointing": True}},
        {"model": {"compile": True}, "rollout": {"engine": "vllm"}},
    ],
    ids=["packed", "checkpointed", "compiled"],
)
def test_gradients_do_not_depend_on_how_they_are_computed(device, changes):
    assert difference(gradient(device, **changes), gradient(device)) < 1e-4


def test_the_kernel_for_packed_rows_is_attention_of_each_row(device):
    generator = torch.Generator(device).manual_seed(0)
    lengths = [64, 1024, 300]
    shape = (sum(lengths), 4, 64)
    query, key, value = (
        torch.randn(shape, generator=generator, device=device).bfloat16()
        for _ in range(3)
    )
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)
    longest = max(lengths)
    packed = varlen_attn(
        query, key, value, bounds, bounds, longest, longest, window_size=(-1, 0)
    )
    rows = []
    for begin, end in itertools.pairwise(bounds.tolist()):
        parts = (part[begin:end].transpose(0, 1)[None] for part in (query, key, value))
        rows.append(
            torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)[
                0
            ].transpose(0, 1)
        )
    assert difference(packed.double(), torch.cat(rows).double()) < 1e-2


def test_moments_that_were_on_the_host_or_on_the_disk_give_the_same_weights(device):
    base = gpu_check.small_model(device)
    tokenizer = train_tokenizer(gpu_check.TEXTS, gpu_check.VOCABULARY)

    def weights(interruption):
        generator = torch.Generator().manual_seed(1)
        model = copy.deepcopy(base)
        optimiser = make_optimiser(model, OptimiserConfig(learning_rate=1e-2))
        for step in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(
                    device
                )
            optimiser.step()
            if step == 1 and interruption == "offload":
                move_state(optimiser, torch.device("cpu"))
                move_state(optimiser, device)
            if step == 1 and interruption == "resume":
                with tempfile.TemporaryDirectory() as folder:
                    checkpoint = save_checkpoint(
                        Path(folder), TrainingState(1), model, tokenizer, optimiser
                    )
                    model = copy.deepcopy(base)
                    optimiser = make_optimiser(
                        model, OptimiserConfig(learning_rate=1e-2)
                    )
                    load_checkpoint(checkpoint, model, optimiser)
        return torch.cat(
            [parameter.detach().flatten() for parameter in model.parameters()]
        )

    expected = weights("")
    assert torch.equal(weights("offload"), expected)
    assert torch.equal(weights("resume"), expected)


@pytest.fixture
def engine(device, tmp_path):
    pytest.importorskip("vllm")
    model = gpu_check.small_model(device)
    with closing(gpu_check.small_engine(device, model, str(tmp_path))) as policy:
        yield policy, model


@pytest.mark.vllm
def test_destroyed_weights_are_whole_again_after_publication_both_ways(engine):
    policy, model = engine

    def call(method):
        return policy._llm.collective_rpc(method)[0]

    for by_device in (True, False):
        policy.by_device = by_device
        policy.publish(model, 0)
        before = call("compute_weight_checksums")
        call("reset_weights")
        assert call("compute_weight_checksums") != before
        policy.publish(model, 0)
        assert call("compute_weight_checksums") == before
        assert policy.by_device == by_device


@pytest.mark.vllm
def test_an_engine_sleeps_and_serves_the_weights_that_are_published_when_it_wakes(
    engine,
):
    policy, model = engine
    policy.options = dataclasses.replace(policy.options, temperature=0.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    policy.publish(model, 0)
    expected = [reply.response_token_ids for reply in gpu_check.generated(policy)]
    free, _ = torch.cuda.mem_get_info()
    policy.sleep()
    assert torch.cuda.mem_get_info()[0] > free
    policy.wake_up()
    policy.publish(model, 0)
    assert [
        reply.response_token_ids for reply in gpu_check.generated(policy)
    ] == expected
