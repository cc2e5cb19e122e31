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
    assert got[0].item() == pytest.approx(plain_loss(logprob, old, advantage, low, high, dual), rel=1e-12, abs=1e-12)


@given(values, values)
def test_kl_matches_the_estimator_k3(logprob, reference):
    got = low_variance_kl(
        torch.tensor(logprob, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)
    ).item()
    ratio = math.exp(reference - logprob)
    assert got == pytest.approx(min(ratio - 1 - math.log(ratio), 10.0), abs=1e-12)
    assert got >= -1e-12


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
