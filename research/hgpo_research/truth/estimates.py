"""Means over replicates and their standard errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from hgpo_research.arrays import Booleans, Floats

_PRIOR: Final = 4
"""Degrees of freedom with which the task's pooled variance enters each variance: a few rollouts that happen to have
equal returns must not look exact."""


class Estimates:
    """Means and variances of one quantity per step of the rollouts, over replicates."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, values: Floats) -> None:
        """Add replicates, an even number of them: float64 of shape (steps, replicates)."""
        if not self.count:
            # Sums of differences from the first replicate lose fewer digits than sums of the values.
            self._shift = values[:, 0].copy()
            self._sums = np.zeros((2, len(values)))
            self._squares = np.zeros(len(values))
        away = values - self._shift[:, None]
        self.count += values.shape[1]
        self._sums += away[:, ::2].sum(1), away[:, 1::2].sum(1)
        self._squares += np.square(away).sum(1)

    @property
    def halves(self) -> Floats:
        """The means over the replicates with even and with odd numbers, float64 of shape (2, steps)."""
        means: Floats = self._shift + self._sums / (self.count / 2)
        return means

    def errors(self, certain: Booleans) -> Floats:
        """Return the standard errors of the means over all replicates, float64 of shape (steps,).

        Args:
            certain: Whether a step's quantity is exact. Its error is 0.
        """
        # Σ (x - mean)² = Σ x² - (Σ x)² / n, which rounding can make negative.
        deviations = np.maximum(self._squares - self._sums.sum(0) ** 2 / self.count, 0)
        freedom = self.count - 1
        # Steps with few different returns borrow the variance of the task's others.
        pooled = 0.0 if certain.all() else deviations[~certain].mean() / freedom
        variance = (deviations + _PRIOR * pooled) / (freedom + _PRIOR)
        return np.where(certain, 0.0, np.sqrt(variance / self.count))
