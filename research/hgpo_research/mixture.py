"""The weight of a bootstrapped gradient beside an unbiased one, from the cross-validated slopes of all batches so far.

D_u and D_b are the slopes of success along the two gradients, each divided by its Fisher length, and ρ is their cosine.
Sums over batches, with older ones decayed, are less noisy. Of the gradients (1 - m) ĝ_u + m ĝ_b, the steepest per
length is that with

    m / (1 - m) = (D_b - ρ D_u) / (D_u - ρ D_b),    m in [0, 1]

D_b is first lowered by a standard error of D_b - D_u, so that bootstrapping needs evidence. m is 0 in the first
updates, whose error is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

UNBIASED: Final = "discounted_grpo"
BOOTSTRAPPED: Final = "shrinkage_gae"
"""The estimators of the two gradients."""

FOLDS: Final = 4
DECAY: Final = 0.9
HANDICAP: Final = 1.0
WAIT: Final = 3


class Mixture:
    """The slopes so far, of one or several runs."""

    def __init__(self) -> None:
        self._slopes: Any = 0.0
        self._squares: Any = 0.0
        self._cosine: Any = 0.0
        self._batches: Any = 0.0
        self._updates = 0

    def add(self, slopes: Floats, cosine: Floats, known: ArrayLike) -> dict[str, Floats]:
        """Add a batch; return arrays of shape (runs,).

        These are the ``weight`` m of the next update; the decayed means ``unbiased`` D_u, ``bootstrapped`` D_b and
        ``cosine`` ρ; and ``error``, the standard error of D_b - D_u.

        Args:
            slopes: D_u and D_b of the batch, of shape (2, runs).
            cosine: ρ of the batch, of shape (runs,).
            known: Whether both gradients differ from 0, of shape (runs,).
        """
        self._slopes = DECAY * self._slopes + slopes
        self._squares = DECAY**2 * self._squares + (slopes[1] - slopes[0]) ** 2
        self._cosine = DECAY * self._cosine + np.where(known, cosine, 0.0)
        self._batches = DECAY * self._batches + np.asarray(known)
        batches, error = np.maximum(self._batches, 1e-9), np.sqrt(self._squares)
        weight = mixture_weight(self._slopes[0], self._slopes[1] - HANDICAP * error, self._cosine / batches)
        weight = np.where(self._updates < WAIT, 0.0, weight)
        self._updates += 1
        return {
            "weight": weight,
            "unbiased": self._slopes[0] / batches,
            "bootstrapped": self._slopes[1] / batches,
            "error": error / batches,
            "cosine": self._cosine / batches,
        }


def mixture_weight(first: Floats, second: Floats, cosine: Floats) -> Floats:
    """Return the weight of the second of two unit gradients in their steepest mixture, between 0 and 1.

    Args:
        first: The slope along the first one.
        second: The slope along the second one.
        cosine: Their cosine.
    """
    one, two = first - cosine * second, second - cosine * first
    inside = (one > 0) & (two > 0)
    steeper = (second > first) & (second > 0)
    weight: Floats = np.where(inside, two / np.where(inside, one + two, 1.0), steeper.astype(np.float64))
    return weight
