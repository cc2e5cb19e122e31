"""Losses against a plain Python reference, finite differences and values by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazily import Lazy

from hgpo_train.training.config import UpdateConfig

torch = Lazy("torch")
clipped_policy_loss = Lazy("hgpo_train.training.update.losses:clipped_policy_loss")
low_variance_kl = Lazy("hgpo_train.training.update.losses:low_variance_kl")
policy_loss = Lazy("hgpo_train.training.update.losses:policy_loss")
token_weights = Lazy("hgpo_train.training.update.losses:token_weights")


values = st.floats(-4, 4, allow_nan=False, width=32)


def plain_loss(logprob, old, advantage, low, high, dual):
    """Return PPO's loss of one token as in the papers: minus the smaller of two objectives, bounded by a third."""
    ratio = math.exp(max(-20.0, min(20.0, logprob - old)))
    objective = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if dual is not None and advantage < 0:
        objective = max(objective, dual * advantage)
    return -objective


@given(
    values, values, values, st.sampled_from([0.1, 0.2]), st.sampled_from([0.2, 0.28]), st.sampled_from([None, 3.0, 1.5])
)
def test_clipped_loss_matches_the_plain_loss(logprob, old, advantage, low, high, dual):
    got = clipped_policy_loss(
        *(torch.tensor([x], dtype=torch.float64) for x in (logprob, old, advantage)),
        clip_low=low,
        clip_high=high,
        dual_clip=dual,
    )
    assert got.loss.item() == pytest.approx(plain_loss(logprob, old, advantage, low, high, dual), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped", "dual"),
    [
        (1.1, 2.0, -2.2, -2.2, False, False),  # within the bounds
        (1.5, 2.0, -2.4, 0.0, True, False),  # above 1 + 0.2, no gradient
        (0.5, 2.0, -1.0, -1.0, False, False),  # below, but the unclipped objective is the smaller one
        (0.5, -2.0, 1.6, 0.0, True, False),  # below 1 - 0.2 with a bad action
        (2.0, -2.0, 4.0, 4.0, False, False),  # above with a bad action: unclipped
        (5.0, -2.0, 6.0, 0.0, False, True),  # beyond the dual clip 3
    ],
)
def test_loss_and_gradient_of_each_branch_match_values_by_hand(ratio, advantage, loss, gradient, clipped, dual):
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    got = clipped_policy_loss(
        logprob, torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    )
    got.loss.sum().backward()
    assert got.loss.item() == pytest.approx(loss)
    assert logprob.grad.item() == pytest.approx(gradient)
    assert (bool(got.clipped), bool(got.dual_clipped)) == (clipped, dual)


def test_asymmetric_clipping_lets_rare_tokens_increase():
    logprob = torch.tensor([math.log(1.25)], requires_grad=True)
    clipped_policy_loss(logprob, torch.zeros(1), torch.ones(1), clip_low=0.2, clip_high=0.28).loss.sum().backward()
    assert logprob.grad.item() == pytest.approx(-1.25)


@given(values, values)
def test_kl_matches_the_estimator_k3(logprob, reference):
    got = low_variance_kl(
        torch.tensor(logprob, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)
    ).item()
    ratio = math.exp(reference - logprob)
    assert got == pytest.approx(min(ratio - 1 - math.log(ratio), 10.0), abs=1e-12)
    assert got >= -1e-12


def test_kl_is_unbiased_on_average():
    generator = torch.Generator().manual_seed(0)
    policy, reference = (torch.log_softmax(torch.randn(20, generator=generator), 0) for _ in range(2))
    exact = (policy.exp() * (policy - reference)).sum()
    estimate = (policy.exp() * low_variance_kl(policy, reference)).sum()
    assert estimate.item() == pytest.approx(exact.item(), rel=1e-5)


def test_token_weights_match_values_by_hand():
    lengths = np.array([2, 0, 6])
    assert token_weights(lengths, "token_mean").tolist() == [1 / 8, 0, 1 / 8]
    assert token_weights(lengths, "sequence_mean").tolist() == [1 / 4, 0, 1 / 12]
    assert token_weights(lengths, "sequence_sum").tolist() == [1 / 2, 0, 1 / 2]


def test_the_gradient_of_the_loss_matches_finite_differences():
    generator = torch.Generator().manual_seed(1)
    n = 12
    logits = torch.randn(n, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    target = torch.randint(0, 7, (n,), generator=generator)
    old, reference, advantage = (
        torch.randn(n, dtype=torch.float64, generator=generator) - shift for shift in (2.0, 2.0, 0.0)
    )
    weight = torch.rand(n, dtype=torch.float64, generator=generator)
    terms = UpdateConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0, kl_weight=0.3, entropy_weight=0.2)

    def loss(logits):
        log_softmax = torch.log_softmax(logits, -1)
        logprob = log_softmax.gather(-1, target[:, None]).squeeze(-1)
        entropy = -(log_softmax.exp() * log_softmax).sum(-1)
        return policy_loss(logprob, entropy, old, reference, advantage, weight, terms)[0]

    assert torch.autograd.gradcheck(loss, logits, eps=1e-7, atol=1e-5)


def test_the_parts_of_the_loss_sum_to_the_loss():
    generator = torch.Generator().manual_seed(2)
    logprob, entropy, old, reference, advantage, weight = torch.rand(6, 10, generator=generator)
    terms = UpdateConfig(kl_weight=0.5, entropy_weight=0.25)
    loss, parts, _ = policy_loss(logprob, entropy, old, reference, advantage, weight, terms)
    added = parts["pg_loss"] + 0.5 * parts["kl_loss"] - 0.25 * parts["entropy"]
    assert loss.item() == parts["loss"].item() == pytest.approx(added.item())
