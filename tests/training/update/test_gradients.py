"""The update's gradient, for every option, against a slow float64 reference of one row at a time; and its losses."""

import copy
import dataclasses
import math
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazily import Lazy, lazily
from refusals import refused

from hgpo_train.training.config import Config, replace

torch = Lazy("torch")
add_adapters = Lazy("hgpo_train.models.adapters:add_adapters")
checkpoint_layers = Lazy("hgpo_train.models.hf:checkpoint_layers")
samples_from_steps = Lazy("hgpo_train.training.update.batches:samples_from_steps")
LossInputs, Learner = lazily("hgpo_train.training.update.learner", "LossInputs Learner")

BASE = replace(
    Config(),
    model={"compute_dtype": "float32", "gradient_checkpointing": False},
    update={
        "kl_weight": 0.05,
        "entropy_weight": 0.02,
        "clip_high": 0.28,
        "logit_chunk": 0,
        "mini_batch_size": 4,
    }
    | {"micro_batch_tokens": 10**6},
    rollout={"temperature": 0.8},
)

OPTIONS = {
    "padded": {},
    "packed": {"layout": "packed"},
    "chunked": {"logit_chunk": 3},
    "accumulated": {"micro_batch_tokens": 40},
    "packed and accumulated": {"layout": "packed", "micro_batch_tokens": 45},
    "one row at a time": {"micro_batch_tokens": 1},
    "sequence mean": {"aggregation": "sequence_mean"},
    "sequence sum, accumulated": {
        "aggregation": "sequence_sum",
        "micro_batch_tokens": 40,
    },
    "no dual clip": {"dual_clip": None},
    "GSPO": {
        "ratio": "sequence",
        "aggregation": "sequence_mean",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
    },
    "GSPO, packed and accumulated": {
        "ratio": "sequence",
        "layout": "packed",
        "micro_batch_tokens": 45,
    },
    "unbiased KL": {"unbiased_kl": True, "kl_weight": 0.5},
    "no reference": {"kl_weight": 0.0},
    "no entropy": {"entropy_weight": 0.0},
    "all at once": {
        "layout": "packed",
        "logit_chunk": 2,
        "micro_batch_tokens": 50,
        "aggregation": "sequence_mean",
    },
}


def slow_gradient(model, reference_model, samples, rows, old, config):
    """Return the gradient in float64: each row on its own, with all logits, and the loss written out per token."""
    model = copy.deepcopy(model).double()
    reference_model = copy.deepcopy(reference_model).double()
    update = config.update
    lengths = samples.response_length[rows]
    loss = 0.0
    for row in rows:
        tokens = torch.tensor(
            samples.tokens[samples.start[row] : samples.start[row + 1]],
            dtype=torch.long,
        )[None]
        n = int(samples.response_length[row])
        if n == 0:
            continue
        table = torch.log_softmax(
            model(tokens).logits[0, :-1].double() / config.rollout.temperature, -1
        )
        with torch.no_grad():
            logits = reference_model(tokens).logits[0, :-1].double()
            reference_table = torch.log_softmax(logits / config.rollout.temperature, -1)
        answer = tokens[0, -n:]
        logprobs = table[torch.arange(len(table) - n, len(table)), answer]
        first = samples.response_start[row]
        token_ratio = (
            logprobs - torch.from_numpy(old[first : first + n]).double()
        ).exp()
        ratios = token_ratio
        if update.ratio == "sequence":  # GSPO, equation 7
            ratios = token_ratio.prod().pow(1 / n).expand(n)
        for i in range(n):
            place = len(table) - n + i
            token = answer[i]
            logprob = logprobs[i]
            ratio = ratios[i]
            advantage = float(samples.advantage[row])
            term = -torch.minimum(
                ratio * advantage,
                ratio.clamp(1 - update.clip_low, 1 + update.clip_high) * advantage,
            )
            if advantage < 0 and update.dual_clip is not None:
                term = term.clamp(max=-advantage * update.dual_clip)
            if update.kl_weight:
                d = reference_table[place, token] - logprob
                estimate = (d.exp() - d - 1).clamp(max=10.0)
                term = term + update.kl_weight * estimate * (
                    token_ratio[i] if update.unbiased_kl else 1.0
                )
            term = (
                term + update.entropy_weight * (table[place].exp() * table[place]).sum()
            )
            weight = {
                "token_mean": 1 / lengths.sum(),
                "sequence_mean": 1 / (n * (lengths > 0).sum()),
                "sequence_sum": 1 / (lengths > 0).sum(),
            }[update.aggregation]
            loss = loss + weight * term
    loss.backward()
    return loss.item(), {
        name: p.grad for name, p in model.named_parameters() if p.grad is not None
    }


def make_learner(model, config, **options):
    return Learner(model, config, temperature=config.rollout.temperature, **options)


def rng(iteration=0):
    return np.random.default_rng([0, iteration, 2])


def perturbed(model, seed, size=0.05):
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
    return model


def compare(learner, samples, rows, old, reference, expected_loss, expected):
    parts = learner.accumulate(samples, rows, LossInputs(old, reference))
    assert parts["loss"] == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
    got = {
        name: p.grad
        for name, p in learner.model.named_parameters()
        if p.grad is not None
    }
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        scale = expected[name].abs().max()
        assert (
            gradient.double() - expected[name]
        ).abs().max() <= 1e-5 * scale + 1e-9, name


QUICK = {("padded", False), ("packed and accumulated", False), ("all at once", True)}


@pytest.mark.parametrize(
    ("option", "checkpointing"),
    [
        pytest.param(
            option,
            checkpointing,
            marks=[] if (option, checkpointing) in QUICK else pytest.mark.slow,
        )
        for option in OPTIONS
        for checkpointing in (False, True)
    ],
)
def test_the_gradient_matches_the_slow_reference(model, steps, option, checkpointing):
    config = replace(BASE, update=OPTIONS[option])
    samples = samples_from_steps(steps)
    start = perturbed(model, 1)
    behaviour = perturbed(model, 2)
    old = make_learner(behaviour, config, reference=False).logprobs(samples)
    rows = np.array([7, 0, 3, 6, 8, 2, 1, 4])
    learner = make_learner(start, config)
    reference = (
        learner.reference_logprobs(samples) if learner.reference is not None else None
    )
    learner.model.load_state_dict(model.state_dict())
    if checkpointing:
        checkpoint_layers(learner.model)
    loss, expected = slow_gradient(
        model, perturbed(model, 1), samples, rows, old, config
    )
    assert expected.keys() == dict(model.named_parameters()).keys()
    compare(learner, samples, rows, old, reference, loss, expected)


def test_checkpointed_layers_are_computed_twice(model, steps):
    """They run once forward and once for the gradient; otherwise the option would save no memory."""
    samples = samples_from_steps(steps)
    calls = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    learner = make_learner(
        model, replace(BASE, update={"kl_weight": 0.0}), reference=False
    )
    old = learner.logprobs(samples)
    counts = []
    for prepare in (lambda _: None, checkpoint_layers):
        prepare(model)
        calls.clear()
        learner.accumulate(samples, np.arange(4), LossInputs(old))
        counts.append(len(calls))
    assert counts == [1, 2]


@pytest.mark.parametrize("option", ["padded", "packed", "all at once"])
def test_the_gradient_of_adapters_matches_the_slow_reference(model, steps, option):
    config = replace(BASE, update=OPTIONS[option], model={"lora": {"rank": 4}})
    samples = samples_from_steps(steps)
    adapted = add_adapters(copy.deepcopy(model), config.model.lora)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            # initialised to 0, which would hide half of the gradient
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    learner = make_learner(adapted, config)
    rows = np.arange(len(samples))
    old = make_learner(perturbed(model, 2), config, reference=False).logprobs(samples)
    loss, expected = slow_gradient(adapted, model, samples, rows, old, config)
    assert expected.keys() == {
        name for name, _ in adapted.named_parameters() if "lora" in name
    }
    assert all(gradient.abs().max() > 0 for gradient in expected.values())
    compare(
        learner, samples, rows, old, learner.reference_logprobs(samples), loss, expected
    )


def test_clipping_is_active_with_several_mini_batches(model, steps):
    config = replace(
        BASE,
        update={"mini_batch_size": 2, "epochs": 3},
        optimiser={"learning_rate": 0.01},
    )
    metrics = make_learner(model, config).update(samples_from_steps(steps), rng(0))
    assert metrics["actor/optimiser_steps"] == 12
    assert metrics["actor/clip_fraction"] > 0
    assert metrics["actor/dual_clip_fraction"] > 0


def test_half_precision_is_close_and_weights_stay_float32(model, steps):
    config = replace(BASE, model={"compute_dtype": "bfloat16"})
    samples = samples_from_steps(steps)
    exact = make_learner(copy.deepcopy(model), BASE, reference=False).logprobs(samples)
    learner = make_learner(model, config)
    assert 0 < np.abs(learner.logprobs(samples) - exact).max() < 0.2
    assert learner.update(samples, rng(0))["actor/skipped"] == 0
    assert {parameter.dtype for parameter in learner.model.parameters()} == {
        torch.float32
    }


def test_the_same_update_gives_the_same_bytes(model, steps):
    samples = samples_from_steps(steps)
    twins = [copy.deepcopy(model) for _ in range(2)]
    for twin in twins:
        make_learner(twin, replace(BASE, update={"epochs": 2})).update(samples, rng(3))
    for first, second, before in zip(
        *(twin.parameters() for twin in (*twins, model)), strict=True
    ):
        assert torch.equal(first, second)
        assert not torch.equal(first, before)


def test_the_gap_between_engine_and_trainer_is_measured(model, steps):
    samples = samples_from_steps(steps)
    own = make_learner(model, BASE).logprobs(samples)
    same = dataclasses.replace(samples, rollout_logprob=own)
    other = dataclasses.replace(samples, rollout_logprob=own + np.float32(0.5))
    name = "training/rollout_logprobs_abs_diff_mean"
    assert make_learner(copy.deepcopy(model), BASE).update(same, rng())[name] == 0
    assert make_learner(copy.deepcopy(model), BASE).update(other, rng())[
        name
    ] == pytest.approx(0.5, abs=1e-5)


def test_a_gradient_that_is_not_finite_is_discarded(model, steps):
    samples = samples_from_steps(steps)
    learner = make_learner(model, replace(BASE, update={"kl_weight": 0.0}))
    before = copy.deepcopy(model.state_dict())
    old = np.full(samples.response_start[-1], np.nan, np.float32)
    assert learner.step(samples, np.arange(4), LossInputs(old))["actor/skipped"] == 1
    assert all(
        torch.equal(before[name], value) for name, value in model.state_dict().items()
    )
    assert (
        learner.step(samples, np.arange(4), LossInputs(learner.logprobs(samples)))[
            "actor/skipped"
        ]
        == 0
    )
    assert not any(
        torch.equal(before[name], value) for name, value in model.named_parameters()
    )


@pytest.mark.parametrize("largest", [0.0, 0.01])
def test_the_gradient_is_clipped_to_its_norm(model, steps, largest):
    samples = samples_from_steps(steps)
    config = replace(
        BASE, update={"kl_weight": 0.0}, optimiser={"gradient_clip": largest}
    )
    learner = make_learner(model, config)
    found = []

    def norm():
        squares = [float((each.grad**2).sum()) for each in model.parameters()]
        found.append(math.sqrt(sum(squares)))

    learner.accumulate(samples, np.arange(4), LossInputs())
    norm()
    learner.optimiser.zero_grad(set_to_none=True)
    learner.optimiser.step = norm
    metrics = learner.step(samples, np.arange(4), LossInputs())
    assert metrics["actor/grad_norm"] == pytest.approx(found[0], rel=1e-5)
    assert found[0] > 0.01
    assert found[1] == pytest.approx(largest or found[0], rel=1e-3)


def test_missing_rollout_logprobs_are_reported(model, steps):
    config = replace(BASE, update={"old_logprobs": "rollout"})
    with refused("recompute"):
        make_learner(model, config).update(
            samples_from_steps(steps.drop("response_logprobs")), rng(0)
        )


def test_out_of_memory_gives_advice(model, steps, monkeypatch):
    learner = make_learner(model, BASE)
    full = Mock(
        side_effect=torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB"
        )
    )
    monkeypatch.setattr("hgpo_train.training.update.scorer.response_logprobs", full)
    advice = (
        r"^.*micro_batch_tokens = 1000000; set .*update.micro_batch_tokens = 500000.*$"
    )
    with refused(advice):
        learner.update(samples_from_steps(steps), rng(0))


torch = Lazy("torch")
clipped_policy_loss, low_variance_kl, token_weights = lazily(
    "hgpo_train.training.update.losses",
    "clipped_policy_loss low_variance_kl token_weights",
)

values = st.floats(-4, 4, allow_nan=False, width=32)


def plain_loss(logprob, old, advantage, low, high, dual):
    """Return PPO's loss of one token as in the papers: minus the smaller of two objectives, bounded by a third."""
    ratio = math.exp(max(-20.0, min(20.0, logprob - old)))
    objective = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if dual is not None and advantage < 0:
        objective = max(objective, dual * advantage)
    return -objective


@given(
    values,
    values,
    values,
    st.sampled_from([0.1, 0.2]),
    st.sampled_from([0.2, 0.28]),
    st.sampled_from([None, 3.0, 1.5]),
)
def test_clipped_loss_matches_the_plain_loss(logprob, old, advantage, low, high, dual):
    values = (torch.tensor([x], dtype=torch.float64) for x in (logprob, old, advantage))
    got = clipped_policy_loss(*values, clip_low=low, clip_high=high, dual_clip=dual)
    assert got[0].item() == pytest.approx(
        plain_loss(logprob, old, advantage, low, high, dual), rel=1e-12, abs=1e-12
    )


@given(values, values)
def test_kl_matches_the_estimator_k3(logprob, reference):
    got = low_variance_kl(
        *(torch.tensor(x, dtype=torch.float64) for x in (logprob, reference))
    ).item()
    ratio = math.exp(reference - logprob)
    assert got == pytest.approx(min(ratio - 1 - math.log(ratio), 10.0), abs=1e-12)
    assert got >= -1e-12


def test_token_weights_match_values_by_hand():
    lengths = np.array([2, 0, 6])
    assert token_weights(lengths, "token_mean").tolist() == [1 / 8, 0, 1 / 8]
    assert token_weights(lengths, "sequence_mean").tolist() == [1 / 4, 0, 1 / 12]
    assert token_weights(lengths, "sequence_sum").tolist() == [1 / 2, 0, 1 / 2]
