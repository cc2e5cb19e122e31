"""Truncated importance sampling: correct the update for rollouts that another policy has sampled.

The rollout engine's probabilities differ from the trainer's: other kernels, another dtype, or weights of before. The
gradient of tokens sampled from μ is then not the policy's. Each token's policy loss is multiplied by a truncated
importance weight, which depends on the policy before the update and has no gradient.

Notation: π_old is the trainer's policy before the update, μ the engine's, y_t the t-th token of a step's response y.

    ρ(y_t) = π_old(y_t) / μ(y_t)
    token       w(y_t) = min(ρ(y_t), C)                per token: less variance, but biased for longer responses
    sequence    w(y_t) = min(Π_s ρ(y_s), C)            per response: without bias if C is never reached

Source: F. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"; levels, names of
the metrics and the limit of log ρ to ±20 as in verl 0.9.1 (`verl.trainer.ppo.rollout_corr_helper`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Level = Literal["token", "sequence"]

_LOG_LIMIT: Final = 20.0


def rollout_is_weights(
    old_logprob: NDArray[np.floating],
    rollout_logprob: NDArray[np.floating],
    response_start: NDArray[np.int64],
    level: Level,
    threshold: float = 2.0,
) -> NDArray[np.float64]:
    """Return the truncated importance weight of each response token.

    Args:
        old_logprob: log π_old, float of shape (tokens,), the tokens of all responses.
        rollout_logprob: log μ, of the same shape.
        response_start: int64 of shape (responses + 1,), the index of each response's first token.
        level: ``token`` or ``sequence``.
        threshold: The largest weight C.

    Returns:
        float64 of shape (tokens,), between 0 and `threshold`.

    >>> old, rollout = np.log([0.9, 0.2, 0.5]), np.log([0.3, 0.4, 0.5])
    >>> rollout_is_weights(old, rollout, np.array([0, 2, 3]), "sequence").round(2).tolist()
    [1.5, 1.5, 1.0]
    """
    log_ratio = old_logprob.astype(np.float64) - rollout_logprob
    if level == "sequence":
        log_ratio = np.repeat(_sums(log_ratio, response_start), np.diff(response_start))
    ratio: NDArray[np.float64] = np.exp(log_ratio.clip(-_LOG_LIMIT, _LOG_LIMIT))
    return ratio.clip(max=threshold)


def rollout_correction_metrics(
    old_logprob: NDArray[np.floating],
    rollout_logprob: NDArray[np.floating],
    response_start: NDArray[np.int64],
    level: Level,
    threshold: float = 2.0,
) -> dict[str, float]:
    """Return statistics of the weights and of the gap between π_old and μ, under verl's names.

    Means are over tokens; `rollout_is_ratio_fraction_high` and `_low` are the shares of ratios above C and below 1 / C:
    of tokens, or of responses at the level of sequences. `rollout_is_max` and `_min` are those of the truncated
    weights, and at the level of sequences of the ratios, as in verl. `rollout_is_eff_sample_size` is the effective
    sample size as a share of the tokens.

    Arguments are those of `rollout_is_weights`, with at least one token.
    """
    weight = rollout_is_weights(old_logprob, rollout_logprob, response_start, level, threshold)
    log_ratio = old_logprob.astype(np.float64) - rollout_logprob
    sums = _sums(log_ratio, response_start)[np.diff(response_start) > 0]
    tokens = np.exp(log_ratio.clip(-_LOG_LIMIT, _LOG_LIMIT))
    sequences = np.exp(sums.clip(-_LOG_LIMIT, _LOG_LIMIT))
    ratio, extreme = (tokens, weight) if level == "token" else (sequences, sequences)
    values = {
        "rollout_is_mean": weight.mean(),
        "rollout_is_max": extreme.max(),
        "rollout_is_min": extreme.min(),
        "rollout_is_std": weight.std(),
        "rollout_is_eff_sample_size": weight.mean() ** 2 / (weight**2).mean(),
        "rollout_is_ratio_fraction_high": (ratio > threshold).mean(),
        "rollout_is_ratio_fraction_low": (ratio < 1.0 / threshold).mean(),
        "kl": -log_ratio.mean(),
        "k3_kl": (np.exp(log_ratio) - log_ratio - 1.0).mean(),
        "chi2_token": (tokens**2).mean() - 1.0,
        "chi2_seq": (sequences**2).mean() - 1.0,
    }
    return {f"rollout_corr/{name}": float(value) for name, value in values.items()}


def _sums(values: NDArray[np.float64], start: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sum of each segment of a flat array; 0 for empty segments."""
    return np.diff(np.concatenate([[0.0], np.cumsum(values)])[start])
