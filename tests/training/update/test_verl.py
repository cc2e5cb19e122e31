"""The loss and the rollout correction against verl's own functions, where verl is installed."""

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
policy_loss, token_weights = lazily("hgpo_train.training.update.losses", "policy_loss token_weights")

CASES, RESPONSES, TOKENS = 200, 6, 12
MODES = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean", "seq-mean-token-sum": "sequence_sum"}


@pytest.fixture(scope="module")
def verl_python() -> str:
    """Return a Python with verl: this one, or the one in HGPO_VERL_PYTHON."""
    python = os.environ.get("HGPO_VERL_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import verl.trainer.ppo.core_algos"], capture_output=True).returncode:
        pytest.skip("needs verl 0.9, or HGPO_VERL_PYTHON set to a Python that has it")
    return python


@pytest.fixture(scope="module")
def cases() -> dict[str, np.ndarray]:
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
    given["rollout"] = np.minimum(given["old"] + 0.3 * spread * rng.normal(size=shape), 0.0)
    return {name: values.astype(np.float32) for name, values in given.items()}


@pytest.fixture(scope="module")
def expected(verl_python, cases, tmp_path_factory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("verl")
    np.savez(folder / "cases.npz", **cases)
    script = Path(__file__).parent / "verl_reference.py"
    command = [verl_python, str(script), str(folder / "cases.npz"), str(folder / "results.npz")]
    subprocess.run(command, check=True, cwd=folder)
    return dict(np.load(folder / "results.npz"))


def flat(cases, name, case):
    return cases[name][case][cases["mask"][case] > 0]


def starts(cases, case):
    return np.concatenate([[0], np.cumsum(cases["mask"][case].sum(-1).astype(np.int64))])


@pytest.mark.parametrize("level", ["none", "token", "sequence"])
@pytest.mark.parametrize("mode", MODES)
def test_the_loss_and_its_gradient_are_verls(cases, expected, mode, level):
    for case in range(CASES):
        length = np.diff(starts(cases, case))
        logprob = torch.from_numpy(flat(cases, "logprob", case)).requires_grad_()
        old, reference, entropy = (torch.from_numpy(flat(cases, n, case)) for n in ("old", "reference", "entropy"))
        weight, clips = None, {name: float(cases[name][case]) for name in ("clip_low", "clip_high")}
        if level != "none":
            values, _ = rollout_correction(old.numpy(), flat(cases, "rollout", case), starts(cases, case), level, 2.0)
            weight = torch.from_numpy(values.astype(np.float32))
        loss, _, totals = policy_loss(
            logprob,
            entropy,
            old,
            reference,
            torch.from_numpy(np.repeat(cases["advantage"][case], length)),
            torch.from_numpy(np.repeat(token_weights(length, MODES[mode]), length).astype(np.float32)),
            UpdateConfig(**clips, dual_clip=3.0, kl_weight=0.01, entropy_weight=0.001),
            weight,
        )
        loss.backward()
        scale = max(1.0, abs(float(expected[f"loss {mode} {level}"][case])))
        assert loss.item() == pytest.approx(expected[f"loss {mode} {level}"][case], abs=2e-6 * scale)
        gradient = expected[f"gradient {mode} {level}"][case][cases["mask"][case] > 0]
        np.testing.assert_allclose(logprob.grad, gradient, atol=2e-6 * max(1.0, np.abs(gradient).max()))
        assert totals["clip_fraction"] / length.sum() == pytest.approx(expected["pg_clipfrac"][case], abs=1e-6)
        dual = totals["dual_clip_fraction"] / length.sum()
        assert dual == pytest.approx(expected["pg_clipfrac_lower"][case], abs=1e-6)


def test_the_cases_reach_every_branch(expected):
    assert expected["pg_clipfrac"].max() > 0.3
    assert expected["pg_clipfrac_lower"].max() > 0.1
    assert expected["token rollout_corr/rollout_is_ratio_fraction_high"].max() > 0.1


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_weights_and_metrics_of_the_rollout_correction_are_verls(cases, expected, level):
    for case in range(CASES):
        given = flat(cases, "old", case), flat(cases, "rollout", case), starts(cases, case), level, 2.0
        weight = expected[f"weight {level}"][case][cases["mask"][case] > 0]
        weights, statistics = rollout_correction(*given)
        np.testing.assert_allclose(weights, weight, rtol=1e-5)
        for name, value in statistics.items():
            assert value == pytest.approx(expected[f"{level} {name}"][case], rel=1e-4, abs=2e-6), name
