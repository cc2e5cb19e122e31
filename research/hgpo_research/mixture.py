"""The weights of several gradients in a mixture, from the cross-validated slopes of all batches so far.

D_j is the slope of success along gradient j, divided by its Fisher length, and ρ_jk the cosine of two of them. Sums
over batches, with older ones decayed, are less noisy. Of the gradients Σ_j w_j ĝ_j with w ≥ 0, the steepest per length
maximises w · D / √(wᵀ ρ w).

The first partner is trusted. The D of a partner that bootstraps is first lowered by a standard error of D_j - D_1, so
that bootstrapping needs evidence. The first partner has all the weight in the first updates, whose error is not known,
and as long as no D is positive.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from hgpo_research.arrays import Floats

PARTNERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "discounted_grpo": ("discounted_grpo", {}),
    "shrinkage_gae": ("shrinkage_gae", {}),
    "grpo": ("discounted_grpo", {"gamma": 1.0}),
}
"""The estimators of the gradients and the parameters that are fixed. Without a discount, the first one is GRPO."""

HANDICAPS: Final = {"shrinkage_gae": 1.0}
"""The standard errors by which the slopes of partners are lowered."""

FOLDS: Final = 4
DECAY: Final = 0.9
WAIT: Final = 3


class Mixture:
    """The slopes so far, of one or several runs.

    Args:
        partners: The names of the gradients.
    """

    def __init__(self, partners: Sequence[str] = tuple(PARTNERS)) -> None:
        self._partners = partners
        self._handicaps = np.array([HANDICAPS.get(name, 0.0) for name in partners])[
            :, None
        ]
        self._slopes: Any = 0.0
        self._squares: Any = 0.0
        self._cosines: Any = 0.0
        self._batches: Any = 0.0
        self._updates = 0

    def add(
        self, slopes: Floats, cosines: Floats, known: ArrayLike
    ) -> tuple[Floats, dict[str, Floats]]:
        """Add a batch.

        Args:
            slopes: D of the batch, of shape (partners, runs).
            cosines: ρ of the batch, of shape (runs, partners, partners).
            known: Whether all gradients differ from 0, of shape (runs,).

        Returns:
            The weights of the next update, of shape (partners, runs), and metrics of shape (runs,): for each partner
            ``weight_<name>``, the decayed mean ``slope_<name>``, and ``error_<name>``, the standard error of D_j - D_1.
        """
        # Sums over batches. The variance of a decayed sum is that of its parts with squared weights.
        self._slopes = DECAY * self._slopes + slopes
        self._squares = DECAY**2 * self._squares + (slopes - slopes[0]) ** 2
        self._cosines = DECAY * self._cosines + np.where(
            np.asarray(known)[:, None, None], cosines, 0.0
        )
        self._batches = DECAY * self._batches + np.asarray(known)
        batches = np.maximum(self._batches, 1e-9)
        # Batches are independent: the squares of their differences add up to the variance of the sum. These are squares
        # of the differences from 0, not from their mean: where the mean is not 0, the error is larger than it must be.
        errors = np.sqrt(self._squares)
        weights = np.zeros_like(slopes)
        weights[0] = 1.0
        # The error of a difference is itself unknown after few batches.
        if self._updates >= WAIT:
            lowered = self._slopes - self._handicaps * errors
            weights = mixture_weights(lowered, self._cosines / batches[:, None, None])
        self._updates += 1
        metrics = {}
        for number, name in enumerate(self._partners):
            metrics[f"weight_{name}"] = weights[number]
            metrics[f"slope_{name}"] = self._slopes[number] / batches
            metrics[f"error_{name}"] = errors[number] / batches
        return weights, metrics


def mixture_weights(slopes: Floats, cosines: Floats) -> Floats:
    """Return the weights of unit gradients in their steepest mixture, of shape (gradients, runs); they sum to 1.

    Args:
        slopes: The slopes along them, of shape (gradients, runs).
        cosines: Their cosines, of shape (runs, gradients, gradients).
    """
    count, runs = slopes.shape
    weights = np.zeros_like(slopes)
    weights[0] = 1.0
    best = np.zeros(runs)
    # The steepest mixture has positive weights on some of the gradients, ρ⁻¹ D of these alone, and the squared slope
    # w · D. So the best of all subsets with positive weights is it; the small number keeps equal gradients solvable.
    for size in range(1, count + 1):
        for chosen in map(list, combinations(range(count), size)):
            inner = cosines[:, chosen][:, :, chosen] + 1e-9 * np.eye(size)
            along = slopes[chosen]
            # one system of equations for each run, with one column
            found = np.linalg.solve(inner, along.T[:, :, None])[:, :, 0].T
            square = (found * along).sum(0)
            better = (found > 0).all(0) & (square > best)
            best = np.where(better, square, best)
            weights[:, better] = 0.0
            kept = found[:, better]
            weights[np.ix_(chosen, better)] = kept / kept.sum(0)
    return weights
