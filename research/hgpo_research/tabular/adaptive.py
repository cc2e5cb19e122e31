"""A mixture of an unbiased and a bootstrapped advantage, weighted by the cross-validated gain of the run's own batches.

Bootstrapping takes out the noise of later steps, and is biased where states hide what decides. How much of it pays is
measured in each batch, without truth: D_u and D_b are the cross-validated slopes (`cross_validation`) of the two
gradients, each divided by its Fisher length, and ρ is their cosine. Sums over iterations, with older ones decayed, are
less noisy. Of the gradients (1 - m) ĝ_u + m ĝ_b, the steepest per length is that with

    m / (1 - m) = (D_b - ρ D_u) / (D_u - ρ D_b),    m in [0, 1]

D_b is first lowered by a standard error of D_b - D_u, so that bootstrapping needs evidence. m is 0 in the first
updates, whose error is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hgpo_research.tabular.cross_validation import cross_validated_slopes, table_advantages
from hgpo_research.tabular.rollouts import step_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_research.tabular.policy import TabularPolicy, Visits
    from hgpo_train.advantages import Estimator

    Floats = NDArray[np.float64]

FOLDS: Final = 4
DECAY: Final = 0.9
HANDICAP: Final = 1.0
WAIT: Final = 3


class Adaptive:
    """The mixture, as a method of learning (`methods.Method`).

    Args:
        unbiased: The estimator that is trusted without evidence.
        bootstrapped: The other one.

    Attributes:
        metrics: For each update, arrays with one number a seed: `weight` m; `unbiased` and `bootstrapped`, the decayed
            means of slopes, and `error`, the standard error of their difference; `cosine` ρ.
    """

    def __init__(self, unbiased: Estimator, bootstrapped: Estimator) -> None:
        self._estimators = unbiased, bootstrapped
        self._slopes: Any = 0.0
        self._squares: Any = 0.0
        self._cosine: Any = 0.0
        self._batches: Any = 0.0
        self.metrics: list[dict[str, Floats]] = []

    def __call__(self, policy: TabularPolicy, visits: Visits, stream: Sequence[int]) -> list[Floats]:  # noqa: ARG002
        """Return the advantages of each task's rows, and add to `metrics`."""
        table = step_table(policy, visits.rollouts)
        first, second = (table_advantages(each, table, visits.rollouts) for each in self._estimators)
        gradients = [visits.gradient(each) for each in (first, second)]
        lengths = np.sqrt([visits.products(each, each) for each in gradients])
        known = (lengths > 0).all(0)
        safe = np.where(lengths > 0, lengths, 1.0)
        slopes = cross_validated_slopes(policy, visits, self._estimators, FOLDS)
        self._slopes = DECAY * self._slopes + slopes
        self._squares = DECAY**2 * self._squares + (slopes[1] - slopes[0]) ** 2
        self._cosine = DECAY * self._cosine + np.where(
            known, visits.products(gradients[0], gradients[1]) / safe.prod(0), 0.0
        )
        self._batches = DECAY * self._batches + known
        batches, error = np.maximum(self._batches, 1e-9), np.sqrt(self._squares)
        cosine = self._cosine / batches
        weight = mixture_weight(self._slopes[0], self._slopes[1] - HANDICAP * error, cosine)
        weight = np.where(len(self.metrics) < WAIT, 0.0, weight)
        self.metrics.append(
            {
                "weight": weight,
                "unbiased": self._slopes[0] / batches,
                "bootstrapped": self._slopes[1] / batches,
                "error": error / batches,
                "cosine": cosine,
            }
        )
        factors = np.where(lengths > 0, [1.0 - weight, weight] / safe, 0.0)
        return [
            factors[0][rows.seed] * one + factors[1][rows.seed] * two
            for rows, one, two in zip(visits.rollouts, first, second, strict=True)
        ]


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
