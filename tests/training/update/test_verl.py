"""The loss and the rollout correction against functions of verl and TRL, where these are installed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lazily import Lazy, lazily

from hgpo_train.training.config import UpdateConfig
from hgpo_train.training.update.rollout_correction import rollout_correction

torch = Lazy("torch")
policy_loss, token_weights = lazily(
    "hgpo_train.training.update.losses", "policy_loss token_weights"
)

CASES = 200
RESPONSES = 6
TOKENS = 12
MODES = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
}


def python_with(module, variable):
    """Return a Python that imports a module: this one, or the one in an environment variable."""
    python = os.environ.get(variable, sys.executable)
    if subprocess.run(
        [python, "-c", f"import {module}"], capture_output=True
    ).returncode:
        pytest.skip(
            f"needs {module.partition('.')[0]}, or {variable} set to a Python that has it"
        )
    return python


def results_of(script, python, cases, folder):
    np.savez(folder / "cases.npz", **cases)
    command = [
        python,
        str(Path(__file__).parent / script),
        str(folder / "cases.npz"),
        str(folder / "results.npz"),
    ]
    subprocess.run(command, check=True, cwd=folder)
    return dict(np.load(folder / "results.npz"))


@pytest.fixture(scope="module")
def cases():
    """Return random log-probabilities whose ratios reach all branches of the loss."""
    rng = np.random.default_rng(0)
    shape = (CASES, RESPONSES, TOKENS)
    length = rng.integers(1, TOKENS + 1, shape[:2])
    logprob = -rng.gamma(1.0, 1.0, shape)
    spread = rng.choice([0.05, 0.5, 2.0], (CASES, 1, 1))
    given = {
        "logprob": logprob,
        "old": np.minimum(logprob + spread * rng.normal(size=shape), 0.0),
        "reference": np.minimum(logprob + spread * rng.normal(size=shape), 0.0),
        "entropy": rng.gamma(2.0, 1.0, shape),
        "advantage": rng.normal(size=shape[:2]),
        "clip_low": rng.choice([0.1, 0.2], CASES),
        "clip_high": rng.choice([0.2, 0.28], CASES),
        "mask": np.arange(TOKENS) < length[..., None],
    }
    given["rollout"] = np.minimum(
        given["old"] + 0.3 * spread * rng.normal(size=shape), 0.0
    )
    return {name: values.astype(np.float32) for name, values in given.items()}


@pytest.fixture(scope="module")
def expected(cases, tmp_path_factory):
    python = python_with("verl.trainer.ppo.core_algos", "HGPO_VERL_PYTHON")
    return results_of(
        "verl_reference.py", python, cases, tmp_path_factory.mktemp("verl")
    )


@pytest.fixture(scope="module")
def expected_by_trl(cases, tmp_path_factory):
    return results_of(
        "trl_reference.py",
        python_with("trl", "HGPO_TRL_PYTHON"),
        cases,
        tmp_path_factory.mktemp("trl"),
    )


def flat(cases, name, case):
    return cases[name][case][cases["mask"][case] > 0]


def starts(cases, case):
    return np.concatenate(
        [[0], np.cumsum(cases["mask"][case].sum(-1).astype(np.int64))]
    )


@pytest.mark.parametrize("level", ["none", "token", "sequence"])
@pytest.mark.parametrize("mode", MODES)
def test_the_loss_and_its_gradient_are_verls(cases, expected, mode, level):
    for case in range(CASES):
        length = np.diff(starts(cases, case))
        logprob = torch.from_numpy(flat(cases, "logprob", case)).requires_grad_()
        old, reference, entropy = (
            torch.from_numpy(flat(cases, n, case))
            for n in ("old", "reference", "entropy")
        )
        weight = None
        clips = {name: float(cases[name][case]) for name in ("clip_low", "clip_high")}
        if level != "none":
            values, _ = rollout_correction(
                old.numpy(),
                flat(cases, "rollout", case),
                starts(cases, case),
                level,
                2.0,
            )
            weight = torch.from_numpy(values.astype(np.float32))
        loss, _, totals = policy_loss(
            logprob,
            entropy,
            old,
            reference,
            torch.from_numpy(np.repeat(cases["advantage"][case], length)),
            torch.from_numpy(
                np.repeat(token_weights(length, MODES[mode]), length).astype(np.float32)
            ),
            UpdateConfig(**clips, dual_clip=3.0, kl_weight=0.01, entropy_weight=0.001),
            weight,
        )
        loss.backward()
        scale = max(1.0, abs(float(expected[f"loss {mode} {level}"][case])))
        assert loss.item() == pytest.approx(
            expected[f"loss {mode} {level}"][case], abs=2e-6 * scale
        )
        gradient = expected[f"gradient {mode} {level}"][case][cases["mask"][case] > 0]
        np.testing.assert_allclose(
            logprob.grad, gradient, atol=2e-6 * max(1.0, np.abs(gradient).max())
        )
        assert totals["clip_fraction"] / length.sum() == pytest.approx(
            expected["pg_clipfrac"][case], abs=1e-6
        )
        dual = totals["dual_clip_fraction"] / length.sum()
        assert dual == pytest.approx(expected["pg_clipfrac_lower"][case], abs=1e-6)


def test_the_cases_reach_every_branch(expected):
    assert expected["pg_clipfrac"].max() > 0.3
    assert expected["pg_clipfrac_lower"].max() > 0.1
    assert expected["token rollout_corr/rollout_is_ratio_fraction_high"].max() > 0.1


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_weights_and_metrics_of_the_rollout_correction_are_verls(
    cases, expected, level
):
    for case in range(CASES):
        given = (
            flat(cases, "old", case),
            flat(cases, "rollout", case),
            starts(cases, case),
            level,
            2.0,
        )
        weight = expected[f"weight {level}"][case][cases["mask"][case] > 0]
        weights, statistics = rollout_correction(*given)
        np.testing.assert_allclose(weights, weight, rtol=1e-5)
        for name, value in statistics.items():
            assert value == pytest.approx(
                expected[f"{level} {name}"][case], rel=1e-4, abs=2e-6
            ), name


@pytest.mark.parametrize("level", ["token_mask", "sequence_mask"])
def test_masked_weights_are_zero_where_verl_rejects(cases, expected, level):
    for case in range(CASES):
        given = (
            flat(cases, "old", case),
            flat(cases, "rollout", case),
            starts(cases, case),
        )
        weights, _ = rollout_correction(*given, level, 2.0, 0.5)
        verls = expected[f"weight {level}"][case][cases["mask"][case] > 0]
        np.testing.assert_allclose(weights, verls, rtol=1e-5)


def check_loss(cases, case, loss, gradient, aggregation, **settings):
    """Check the loss of a case, in float64 and without dual clip, and its gradient."""
    length = np.diff(starts(cases, case))
    clips = {name: float(cases[name][case]) for name in ("clip_low", "clip_high")}
    logprob, *given = (
        torch.from_numpy(flat(cases, name, case)).double()
        for name in ("logprob", "entropy", "old", "reference")
    )
    logprob.requires_grad_()
    advantage, weight, response = (
        torch.from_numpy(np.repeat(values, length))
        for values in (
            cases["advantage"][case],
            token_weights(length, aggregation),
            np.arange(RESPONSES),
        )
    )
    terms = UpdateConfig(**clips, dual_clip=None, entropy_weight=0.0, **settings)
    found, *_ = policy_loss(
        logprob, *given, advantage, weight, terms, response=response
    )
    found.backward()
    scale = max(1.0, abs(float(loss)), float(np.abs(gradient).max()))
    assert found.item() == pytest.approx(loss, abs=2e-6 * scale)
    np.testing.assert_allclose(
        logprob.grad, gradient[cases["mask"][case] > 0], atol=2e-6 * scale
    )


def test_the_loss_of_gspo_is_verls(cases, expected):
    for case in range(CASES):
        given = expected["loss GSPO"][case], expected["gradient GSPO"][case]
        check_loss(
            cases, case, *given, "sequence_mean", ratio="sequence", kl_weight=0.0
        )


TRL = {
    "GSPO": ("sequence_mean", {"ratio": "sequence", "kl_weight": 0.0}),
    "GSPO, token mean": ("token_mean", {"ratio": "sequence", "kl_weight": 0.0}),
    "KL": ("token_mean", {"kl_weight": 0.05}),
    "unbiased KL": ("token_mean", {"kl_weight": 0.05, "unbiased_kl": True}),
}


@pytest.mark.parametrize("name", TRL)
def test_the_loss_and_its_gradient_are_trls(cases, expected_by_trl, name):
    aggregation, settings = TRL[name]
    estimate = np.exp(gap := cases["reference"] - cases["logprob"]) - gap - 1
    # TRL has no limit
    compared = [
        case for case in range(CASES) if "KL" not in name or estimate[case].max() < 10
    ]
    assert len(compared) > CASES / 2
    for case in compared:
        given = (
            expected_by_trl[f"loss {name}"][case],
            expected_by_trl[f"gradient {name}"][case],
        )
        check_loss(cases, case, *given, aggregation, **settings)
