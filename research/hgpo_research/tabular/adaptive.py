"""A mixture of an unbiased and a bootstrapped advantage, weighted by the cross-validated gain of the run's own batches.

Bootstrapping takes out the noise of later steps, and is biased where states hide what decides. How much of it pays is
measured in each batch, without truth (`cross_validation`, `hgpo_research.mixture`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hgpo_research.mixture import FOLDS, Mixture
from hgpo_research.tabular.cross_validation import cross_validated_slopes, table_advantages
from hgpo_research.tabular.rollouts import step_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_research.tabular.policy import TabularPolicy, Visits
    from hgpo_train.advantages import Estimator

    Floats = NDArray[np.float64]


class Adaptive:
    """The mixture, as a method of learning (`methods.Method`).

    Args:
        unbiased: The estimator that is trusted without evidence.
        bootstrapped: The other one.

    Attributes:
        metrics: For each update, what `Mixture.add` returns.
    """

    def __init__(self, unbiased: Estimator, bootstrapped: Estimator) -> None:
        self._estimators, self._mixture = (unbiased, bootstrapped), Mixture()
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
        cosine = visits.products(gradients[0], gradients[1]) / safe.prod(0)
        self.metrics.append(self._mixture.add(slopes, cosine, known))
        weight = self.metrics[-1]["weight"]
        factors = np.where(lengths > 0, [1.0 - weight, weight] / safe, 0.0)
        return [
            factors[0][rows.seed] * one + factors[1][rows.seed] * two
            for rows, one, two in zip(visits.rollouts, first, second, strict=True)
        ]
