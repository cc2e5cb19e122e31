"""The loss of the policy update, one function per term.

Every term has one value per response token; `policy_loss` returns their weighted sum. The weights are computed for a
whole mini-batch before its first micro-batch (`token_weights`). The gradient accumulated over micro-batches of any size
is therefore the gradient of the mini-batch.

Notation: π is the policy being trained, π_old the policy that the ratio compares it with, π_ref the reference policy, y
a response token of a step, and A the step's advantage, which is the same for all its tokens.

    r(y)      = π(y) / π_old(y)                                              the ratio
    s(y)      = exp(mean over the response's tokens z of log r(z))           that of GSPO, in the place of r
    L_clip(y) = max(−A r, −A clip(r, 1 − ε_low, 1 + ε_high))                 PPO, asymmetric
    L(y)      = min(L_clip, −A c)  where A < 0                               dual clip, c > 1
    L(y)     ← ρ(y) L(y)                                                     rollout correction, if used
    KL(y)     = exp(d) − d − 1,  d = log π_ref(y) − log π(y)                 low-variance estimate
    KL(y)    ← r(y) KL(y)                                                    unbiased, also its gradient
    loss      = Σ_y w(y) (L(y) + β KL(y) − η H(y))                           H the entropy of π at y

Sources: PPO, arXiv 1707.06347 equation 7; asymmetric clip and token mean, DAPO, arXiv 2503.14476 equations 8 to 12;
dual clip, arXiv 1912.09729 equation 5; GSPO, arXiv 2507.18071 equations 7 and 14; the KL estimate, J. Schulman 2020,
"Approximating KL Divergence", estimator k3, limited as verl limits it; the unbiased one, DeepSeek-V3.2, arXiv
2512.02556, as TRL's `use_bias_correction_kl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from hgpo_train.training.config import UpdateConfig

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum"]

_LOG_LIMIT = 20.0
_KL_LIMIT = 10.0


def clipped_policy_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return L, the loss of PPO's clipped surrogate objective with asymmetric bounds and dual clip.

    Args:
        logprob: log π(y), float of shape (tokens,).
        old_logprob: log π_old(y), of the same shape, without gradient.
        advantage: A of each token's step, of the same shape.
        clip_low: ε_low.
        clip_high: ε_high.
        dual_clip: c > 1; None disables the dual clip.

    Returns:
        L, the ratio without gradient, and whether the clip and the dual clip changed L, each of shape (tokens,).

    >>> one = torch.zeros(1)
    >>> clipped_policy_loss(one + 1.0, one, one + 2.0)[0].item()  # ratio e is clipped to 1.2
    -2.4...
    >>> clipped_policy_loss(one + 2.0, one, one - 1.0)[0].item()  # ratio e² is more than c = 3
    3.0
    """
    ratio = (logprob - old_logprob).clamp(-_LOG_LIMIT, _LOG_LIMIT).exp()
    free = -advantage * ratio
    bounded = -advantage * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(free, bounded)
    clipped = bounded > free
    dual_clipped = torch.zeros_like(clipped)
    if dual_clip is not None:
        ceiling = -advantage * dual_clip
        dual_clipped = (advantage < 0) & (loss > ceiling)
        loss = torch.where(dual_clipped, ceiling, loss)
    return loss, ratio.detach(), clipped, dual_clipped


def sequence_old_logprob(
    logprob: Tensor, old_logprob: Tensor, response: Tensor
) -> Tensor:
    """Return the values in the place of log π_old with which the ratio of each token is s, the ratio of its response.

    As in GSPO-token, the gradient of a token's ratio is s ∇ log π(y). With equal weights of a response's tokens, the
    gradient of the loss is GSPO's.

    Args:
        logprob: log π(y), float of shape (tokens,).
        old_logprob: log π_old(y), of the same shape.
        response: int of the same shape, the response of each token. Tokens of a response are next to each other.
    """
    present = logprob.detach()
    _, place, length = torch.unique_consecutive(
        response, return_inverse=True, return_counts=True
    )
    sums = torch.zeros_like(length, dtype=present.dtype).index_add(
        0, place, present - old_logprob
    )
    mean: Tensor = (sums / length)[place]
    return present - mean


def low_variance_kl(logprob: Tensor, reference_logprob: Tensor) -> Tensor:
    """Return Schulman's k3 estimate of KL(π ‖ π_ref) from sampled tokens: exp(d) − d − 1, d = log π_ref − log π.

    It is never negative, and 0 where both policies agree. As in verl, d is clamped to ±20 and the value to at most 10.
    """
    difference = (reference_logprob - logprob).clamp(-_LOG_LIMIT, _LOG_LIMIT)
    return (difference.exp() - difference - 1.0).clamp(max=_KL_LIMIT)


def token_weights(
    response_lengths: NDArray[np.int64], aggregation: Aggregation
) -> NDArray[np.float64]:
    """Return the weight w that the tokens of each response of a mini-batch have in the loss.

    token_mean      w = 1 / Σ_j |y_j|          all tokens have equal weight (DAPO, verl's default)
    sequence_mean   w = 1 / (n |y_i|)          all responses have equal weight (GRPO's paper)
    sequence_sum    w = 1 / n                  summed over tokens, averaged over responses (Dr. GRPO, up to a constant)

    Args:
        response_lengths: int64 of shape (responses,), the lengths |y_j| in tokens. Empty responses have weight 0; n is
            the number of other responses.
        aggregation: One of the above.

    Returns:
        float64 of shape (responses,), the weight of every token of each response.

    >>> token_weights(np.array([1, 4]), "sequence_mean").tolist()
    [0.5, 0.125]
    """
    filled = (response_lengths > 0).astype(np.float64)
    if aggregation == "token_mean":
        return filled / max(float(response_lengths.sum()), 1.0)
    responses = max(float(filled.sum()), 1.0)
    return filled / (
        responses * np.maximum(response_lengths, 1)
        if aggregation == "sequence_mean"
        else responses
    )


def policy_loss(
    logprob: Tensor,
    entropy: Tensor,
    old_logprob: Tensor,
    reference_logprob: Tensor | None,
    advantage: Tensor,
    weight: Tensor,
    terms: UpdateConfig,
    rollout_is: Tensor | None = None,
    response: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Return the loss of one micro-batch, a sum over its tokens: Σ w (ρ L + β KL − η H).

    Args:
        logprob: log π(y), float32 of shape (tokens,).
        entropy: H of π at each token in nats, of the same shape; needs a gradient only if its weight is not 0.
        old_logprob: log π_old(y), of the same shape.
        reference_logprob: log π_ref(y), of the same shape, or None without a reference model.
        advantage: A of each token's step, of the same shape.
        weight: w of each token, of the same shape, from `token_weights` over the whole *mini-batch*.
        terms: The settings with the clipping bounds and the weights of the terms.
        rollout_is: ρ, the importance weight of each token (`rollout_correction`), of the same shape; None for 1.
        response: int of the same shape, the response of each token, whose tokens are adjacent and all in this
            micro-batch; needed for the ratio of sequences.

    Returns:
        The loss, a scalar with a gradient; its parts, weighted sums over tokens; and sums over tokens without weights,
        which divided by the number of tokens are means.
    """
    compared = old_logprob
    if terms.ratio == "sequence":
        assert response is not None
        compared = sequence_old_logprob(logprob, old_logprob, response)
    clipped_loss, ratio, clipped, dual_clipped = clipped_policy_loss(
        logprob,
        compared,
        advantage,
        clip_low=terms.clip_low,
        clip_high=terms.clip_high,
        dual_clip=terms.dual_clip,
    )
    policy = (
        weight * (clipped_loss if rollout_is is None else rollout_is * clipped_loss)
    ).sum()
    mean_entropy = (weight * entropy).sum()
    loss = policy - terms.entropy_weight * mean_entropy
    parts = {"pg_loss": policy, "entropy": mean_entropy}
    totals = {
        "clip_fraction": clipped.float().sum(),
        "dual_clip_fraction": dual_clipped.float().sum(),
        "nll": -logprob.sum(),
        "ratio": ratio.sum(),
        "approx_kl": (old_logprob - logprob).sum(),
    }
    if reference_logprob is not None:
        estimate = low_variance_kl(logprob, reference_logprob)
        if terms.unbiased_kl:
            estimate = (
                estimate * (logprob - old_logprob).clamp(-_LOG_LIMIT, _LOG_LIMIT).exp()
            )
        divergence = (weight * estimate).sum()
        loss = loss + terms.kl_weight * divergence
        parts["kl_loss"] = divergence
    parts["loss"] = loss
    parts, totals = (
        {name: value.detach() for name, value in values.items()}
        for values in (parts, totals)
    )
    return loss, parts, totals
