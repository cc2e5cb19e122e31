"""Importance sampling: weights by hand, and the exact bias of the gradient with and without it."""

import copy
import importlib
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazily import Lazy
from refusals import refused

from hgpo_train.training.config import Config, replace
from hgpo_train.training.update.rollout_correction import rollout_correction

samples_from_steps = Lazy("hgpo_train.training.update.batches:samples_from_steps")
Learner = Lazy("hgpo_train.training.update.learner:Learner")

BASE = replace(
    Config(),
    model={"compute_dtype": "float32", "gradient_checkpointing": False},
    update={
        "kl_weight": 0.0,
        "entropy_weight": 0.0,
        "logit_chunk": 0,
        "micro_batch_tokens": 10**6,
    },
)
ratios = st.lists(
    st.lists(st.floats(-3, 3), min_size=0, max_size=4), min_size=1, max_size=5
).filter(any)


def flat(rows):
    """Return log ratios as one array, and where each response starts."""
    return np.array([value for row in rows for value in row]), np.cumsum(
        [0, *map(len, rows)]
    )


@given(ratios, st.sampled_from([0.5, 2.0, 1e9]), st.sampled_from([0.0, 0.4]))
def test_weights_match_a_loop_over_tokens(rows, threshold, least):
    values, start = flat(rows)
    token = [min(np.exp(value), threshold) for row in rows for value in row]
    sequence = [min(np.exp(sum(row)), threshold) for row in rows for _ in row]
    old = values - 5.0
    rollout = np.full(len(values), -5.0)
    np.testing.assert_allclose(
        rollout_correction(old, rollout, start, "token", threshold)[0], token
    )
    np.testing.assert_allclose(
        rollout_correction(old, rollout, start, "sequence", threshold)[0],
        sequence,
        rtol=1e-9,
    )
    for level, whole in (("token_mask", False), ("sequence_mask", True)):
        quotients = [
            np.exp(sum(row) if whole else value) for row in rows for value in row
        ]
        kept = [
            quotient if least <= quotient <= threshold else 0.0
            for quotient in quotients
        ]
        weight, statistics = rollout_correction(
            old, rollout, start, level, threshold, least
        )
        np.testing.assert_allclose(weight, kept, rtol=1e-9)
        assert statistics["rollout_corr/rollout_is_masked"] == np.mean(
            np.array(kept) == 0.0
        )


IMPOSSIBLE = st.sampled_from([-np.inf, np.inf, np.nan, -1e30, 1e30, 3.0])


@given(
    ratios,
    st.sampled_from(["token", "sequence", "token_mask", "sequence_mask"]),
    IMPOSSIBLE,
    IMPOSSIBLE,
    st.data(),
)
def test_impossible_values_change_no_other_response(rows, level, reported, own, data):
    values, start = flat(rows)
    old = values - 5.0
    rollout = np.full(len(values), -5.0)
    expected, _ = rollout_correction(old, rollout, start, level)
    place = data.draw(st.integers(0, len(values) - 1))
    others = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    others = others != others[place]
    here = np.arange(len(values)) == place
    for new_old, new_rollout in ((old, reported), (own, rollout), (own, reported)):
        both = np.where(here, new_old, old), np.where(here, new_rollout, rollout)
        weight, statistics = rollout_correction(*both, start, level)
        np.testing.assert_allclose(weight[others], expected[others], rtol=1e-12)
        assert np.isfinite(weight).all()
        assert (weight >= 0).all()
        assert np.isfinite(list(statistics.values())).all()
        assert (weight <= 2.0).all()


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_probability_of_zero_gives_the_largest_weight_and_an_unknown_one_none(level):
    old = np.full(4, -1.0)
    start = np.array([0, 2, 4])
    for reported, expected in ((-np.inf, 2.0), (-9999.0, 2.0), (np.nan, 0.0)):
        weight, _ = rollout_correction(
            old, np.array([reported, -1.0, -1.0, -1.0]), start, level
        )
        rest = expected if level == "sequence" else 1.0
        np.testing.assert_allclose(weight, [expected, rest, 1.0, 1.0], atol=1e-8)


@pytest.mark.parametrize(
    "update",
    [{"old_logprobs": "rollout"}, {"rollout_is": "token"}, {"rollout_is": "sequence"}],
)
def test_the_update_takes_minus_infinity(model, steps, update):
    reported = [[-5.5] * len(tokens) for tokens in steps["response_token_ids"]]
    reported[1][0] = -np.inf
    steps = steps.with_columns(
        pl.Series("response_logprobs", reported, dtype=pl.List(pl.Float32))
    )
    learner = Learner(
        copy.deepcopy(model), replace(BASE, update=update | {"kl_weight": 0.1})
    )
    metrics = learner.update(samples_from_steps(steps), np.random.default_rng(0))
    assert metrics["actor/skipped"] == 0
    assert np.isfinite(
        [value for name, value in metrics.items() if name != "actor/lr"]
    ).all()


@pytest.fixture(scope="module")
def study():
    """Return the benchmark that computes the exact bias of the update's gradient over all responses of two tokens."""
    folder = str(Path(__file__).parents[3] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("rollout_correction")
    finally:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def policy(study):
    return study.make_policy()


@pytest.mark.slow
@pytest.mark.parametrize("gap", ["bfloat16", 0.003, 0.01])
def test_the_correction_removes_bias(study, policy, gap):
    behaviour = study.behaviour_of(policy, gap)
    exact = study.expected_gradient(policy, policy)

    def bias(level):
        return (study.expected_gradient(policy, behaviour, level) - exact).norm()

    none, token, sequence = map(bias, study.LEVELS)
    assert sequence < token < none / 2


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_update_applies_the_weights_and_reports_them(model, steps, level):
    # the rollout's log-probabilities are constant, -5.5
    samples = samples_from_steps(steps)
    settings = {
        "rollout_is": level,
        "rollout_is_threshold": 1.5,
        "mini_batch_size": 100,
    }
    plain, corrected = (
        Learner(copy.deepcopy(model), replace(BASE, update=update))
        for update in ({}, settings)
    )
    old = plain.logprobs(samples)
    weight, _ = rollout_correction(
        old, samples.rollout_logprob, samples.response_start, level, 1.5
    )
    metrics = corrected.update(samples, np.random.default_rng(0))
    token_advantage = np.repeat(samples.advantage, samples.response_length)
    assert metrics["actor/pg_loss"] == pytest.approx(
        -(weight * token_advantage).mean(), abs=1e-5
    )
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(
        weight.mean(), rel=1e-6
    )
    uncorrected = plain.update(samples, np.random.default_rng(0))
    assert uncorrected["actor/pg_loss"] == pytest.approx(
        -token_advantage.mean(), abs=1e-5
    )
    assert not any(name.startswith("rollout_corr/") for name in uncorrected)


def test_the_kl_and_entropy_terms_are_not_weighted(model, steps):
    samples = samples_from_steps(steps)
    found = []
    for level in (None, "token"):
        config = replace(
            BASE, update={"kl_weight": 0.1, "entropy_weight": 0.1, "rollout_is": level}
        )
        learner = Learner(copy.deepcopy(model), config)
        learner.model.load_state_dict(
            {name: value * 1.1 for name, value in model.state_dict().items()}
        )
        found.append(learner.update(samples, np.random.default_rng(0)))
    assert found[0]["actor/kl_loss"] == found[1]["actor/kl_loss"] > 0
    assert found[0]["actor/entropy"] == found[1]["actor/entropy"]
    assert found[0]["actor/pg_loss"] != found[1]["actor/pg_loss"]


def test_missing_log_probabilities_and_settings_without_effect_are_reported(
    model, steps
):
    config = replace(BASE, update={"rollout_is": "token"})
    with refused(r"expected response_logprobs.*set update.rollout_is to none"):
        Learner(model, config).update(
            samples_from_steps(steps.drop("response_logprobs")),
            np.random.default_rng(0),
        )
    with refused(r'update.rollout_is: expected old_logprobs = "recompute"'):
        replace(BASE, update={"rollout_is": "token", "old_logprobs": "rollout"})
