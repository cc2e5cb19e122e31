"""Importance sampling: correct the update for rollouts that another policy has sampled.

The rollout engine's probabilities differ from the trainer's: other kernels, another dtype, or weights of before. The
gradient of tokens sampled from μ is then not the policy's. Each token's policy loss is multiplied by an importance
weight, truncated or masked, which depends on the policy before the update and has no gradient.

Notation: π_old is the trainer's policy before the update, μ the engine's, y_t the t-th token of a step's response y.

    ρ(y_t) = π_old(y_t) / μ(y_t)
    token       w(y_t) = min(ρ(y_t), C)                per token: less variance, but biased for longer responses
    sequence    w(y_t) = min(Π_s ρ(y_s), C)            per response: without bias if C is never reached
    …_mask      w(y_t) = 0 where ρ, or its product, is not in [c, C]: those that differ most are not trained on. The
                loss is still divided by all tokens, and the terms of KL and entropy stay.

An engine that reports μ(y_t) = 0 for a token that it has sampled has a large ratio like any other. Where either
probability is unknown (NaN), or π_old(y_t) is 0, the weight is practically 0.

Sources: F. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"; masks of tokens,
IcePop, arXiv 2510.18855; masks of responses, MIS, J. Liu et al. 2025, "When Speed Kills Stability"; both as TRL's modes
of these names. Levels, names of the metrics and the limit of log ρ to ±20 as in verl 0.9.1
(`verl.trainer.ppo.rollout_corr_helper`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Level = Literal["token", "sequence", "token_mask", "sequence_mask"]

_LOG_LIMIT: Final = 20.0
_FAR: Final = 1e6
"""The limit of a token's log ρ in the sum over its response."""


def rollout_correction(
    old_logprob: NDArray[np.floating],
    rollout_logprob: NDArray[np.floating],
    response_start: NDArray[np.int64],
    level: Level,
    threshold: float = 2.0,
    least: float = 0.0,
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Return the importance weight of each response token, and statistics under verl's names.

    Means are over tokens; `rollout_is_ratio_fraction_high` and `_low` are the shares of ratios above C and below 1 / C:
    of tokens, or of responses at the level of sequences. `rollout_is_max` and `_min` are those of the weights, and at
    the level of sequences of the ratios, as in verl. `rollout_is_eff_sample_size` is the effective sample size as a
    share of the tokens, and `rollout_is_masked`, with a mask, the share of tokens that are left out.

    Args:
        old_logprob: log π_old, float of shape (tokens,), the tokens of all responses, at least one.
        rollout_logprob: log μ, of the same shape.
        response_start: int64 of shape (responses + 1,), the index of each response's first token.
        level: ``token`` or ``sequence``, or one of these with ``_mask``.
        threshold: The largest weight C.
        least: c, the smallest ratio that a mask leaves.

    Returns:
        The weights, float64 of shape (tokens,), between 0 and `threshold`; and the statistics by name.

    >>> old, rollout = np.log([0.9, 0.2, 0.5]), np.log([0.3, 0.4, 0.5])
    >>> rollout_correction(old, rollout, np.array([0, 2, 3]), "sequence")[0].round(2).tolist()
    [1.5, 1.5, 1.0]
    """
    # 1. Ratios of tokens and of responses.
    with np.errstate(invalid="ignore"):  # the difference of two infinities is unknown
        log_ratio = old_logprob.astype(np.float64) - rollout_logprob
    log_ratio = np.nan_to_num(log_ratio.clip(-_FAR, _FAR), nan=-np.inf)
    lengths = np.diff(response_start)
    # A sum per response, not the difference of two sums over the batch, which rounds by the largest value in it.
    sums = np.bincount(
        np.repeat(np.arange(len(lengths)), lengths), log_ratio, len(lengths)
    )
    log_ratio = log_ratio.clip(-_LOG_LIMIT, _LOG_LIMIT)
    tokens: NDArray[np.float64] = np.exp(log_ratio)
    responses = np.exp(sums.clip(-_LOG_LIMIT, _LOG_LIMIT))

    # 2. Weights: ratios up to the threshold, or 0 where a mask leaves them out.
    by_token = level.startswith("token")
    weight = tokens if by_token else np.repeat(responses, lengths)
    masks = level.endswith("_mask")
    masked = masks & ((weight < least) | (weight > threshold))
    weight = np.where(masked, 0.0, weight.clip(max=threshold))

    # 3. Statistics. An empty response has the ratio 1, which is that of nothing.
    sequences = responses[lengths > 0]
    ratio = tokens if by_token else sequences
    extreme = weight if by_token else sequences
    values = {
        "rollout_is_mean": weight.mean(),
        "rollout_is_max": extreme.max(),
        "rollout_is_min": extreme.min(),
        "rollout_is_std": weight.std(),
        "rollout_is_eff_sample_size": weight.mean() ** 2
        / max((weight**2).mean(), np.finfo(float).tiny),
        "rollout_is_ratio_fraction_high": (ratio > threshold).mean(),
        "rollout_is_ratio_fraction_low": (ratio < 1.0 / threshold).mean(),
        "kl": -log_ratio.mean(),
        "k3_kl": (tokens - log_ratio - 1.0).mean(),
        "chi2_token": (tokens**2).mean() - 1.0,
        "chi2_seq": (sequences**2).mean() - 1.0,
    }
    if masks:
        values["rollout_is_masked"] = masked.mean()
    return weight, {
        f"rollout_corr/{name}": float(value) for name, value in values.items()
    }
