"""Updates of tabular policies along gradients of all seeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hgpo_research.arrays import Floats


@dataclass(frozen=True)
class FixedKL:
    """Moves each seed's policy by the same KL divergence, whatever the gradient's scale: η = √(2δ / gᵀFg).

    Attributes:
        kl: δ, the mean divergence per step to second order. A gradient of 0 moves nothing.
    """

    kl: float

    def __call__(self, gradient: Floats, square: Floats) -> Floats:
        """Return the changes of parameters, of shape (seeds, parameters), for gradients whose gᵀFg is `square`."""
        # A gradient of 0 has no direction.
        moves = square > 1e-300
        rate = np.sqrt(2 * self.kl / np.where(moves, square, 1.0))
        return np.where(moves, rate, 0.0)[:, None] * gradient


@dataclass
class Adam:
    """Adam (arXiv 1412.6980) with its usual constants; parameters that are not known yet have had gradients of 0.

    Attributes:
        learning_rate: The step size.
    """

    learning_rate: float
    _count: int = 0
    _mean: Floats = field(default_factory=lambda: np.zeros((1, 0)))
    _square: Floats = field(default_factory=lambda: np.zeros((1, 0)))

    def __call__(self, gradient: Floats, square: Floats) -> Floats:  # noqa: ARG002 - as `FixedKL`
        """Return the changes of parameters, of shape (seeds, parameters)."""
        self._count += 1
        # New parameters had gradients of 0 so far.
        more = (0, 0), (0, gradient.shape[1] - self._mean.shape[1])
        self._mean = 0.9 * np.pad(self._mean, more) + 0.1 * gradient
        self._square = 0.999 * np.pad(self._square, more) + 0.001 * gradient**2
        mean = self._mean / (1 - 0.9**self._count)
        variance = self._square / (1 - 0.999**self._count)
        change: Floats = self.learning_rate * mean / (np.sqrt(variance) + 1e-8)
        return change
