"""Updates of tabular policies along gradients of all seeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FixedKL:
    """Moves each seed's policy by the same KL divergence, whatever the gradient's scale: η = √(2δ / gᵀFg).

    Attributes:
        kl: δ, the mean divergence per step to second order. A gradient of 0 moves nothing.
    """

    kl: float

    def __call__(self, gradient: list[Floats], square: Floats) -> list[Floats]:
        """Return the changes of parameters, for gradients whose gᵀFg is `square`."""
        moves = square > 1e-300
        rate = np.where(moves, np.sqrt(2 * self.kl / np.where(moves, square, 1.0)), 0.0)
        return [rate[:, None] * each for each in gradient]


@dataclass
class Adam:
    """Adam (arXiv 1412.6980) with its usual constants; parameters that are not known yet have had gradients of 0.

    Attributes:
        learning_rate: The step size.
    """

    learning_rate: float
    _count: int = 0
    _means: list[Floats] = field(default_factory=list)
    _squares: list[Floats] = field(default_factory=list)

    def __call__(self, gradient: list[Floats], square: Floats) -> list[Floats]:  # noqa: ARG002 - as `FixedKL`
        """Return the changes of parameters, for gradients whose gᵀFg is `square`."""
        self._count += 1
        means, squares = self._means or [0.0 * each for each in gradient], self._squares or [0.0 * g for g in gradient]
        self._means = [0.9 * _wider(m, g) + 0.1 * g for m, g in zip(means, gradient, strict=True)]
        self._squares = [0.999 * _wider(s, g) + 0.001 * g * g for s, g in zip(squares, gradient, strict=True)]
        first, second = 1 - 0.9**self._count, 1 - 0.999**self._count
        return [
            self.learning_rate * (mean / first) / (np.sqrt(variance / second) + 1e-8)
            for mean, variance in zip(self._means, self._squares, strict=True)
        ]


def _wider(old: Floats, new: Floats) -> Floats:
    """Return an array with further columns of 0, as many as another one has."""
    return np.pad(old, ((0, 0), (0, new.shape[1] - old.shape[1])))
