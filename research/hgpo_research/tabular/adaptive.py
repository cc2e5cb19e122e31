"""A mixture of several advantages, weighted by the cross-validated gain of the run's own batches.

Bootstrapping takes out the noise of later steps, and is biased where states hide what decides; a discount takes out
less of it, and is biased towards short ways. How much of each pays is measured in each batch, without truth
(`cross_validation`, `hgpo_research.mixture`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hgpo_research.mixture import FOLDS, Mixture
from hgpo_research.tabular.cross_validation import (
    cross_validated_slopes,
    table_advantages,
)
from hgpo_research.tabular.rollouts import step_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_research.arrays import Floats
    from hgpo_research.tabular.policy import TabularPolicy, Visits
    from hgpo_train.advantages import Estimator


class Adaptive:
    """The mixture, as a method of learning (`methods.Method`).

    Args:
        partners: Estimators by name; the first one is trusted without evidence.

    Attributes:
        metrics: For each update, those of `Mixture.add`.
    """

    def __init__(self, partners: Mapping[str, Estimator]) -> None:
        self._estimators = list(partners.values())
        self._mixture = Mixture(list(partners))
        self.metrics: list[dict[str, Floats]] = []

    def __call__(
        self,
        policy: TabularPolicy,
        visits: Visits,
        stream: Sequence[int],  # noqa: ARG002 - as other methods
    ) -> list[Floats]:
        """Return the advantages of each task's rows, and add to `metrics`."""
        scores = any(each.scores for each in self._estimators)
        table = step_table(policy, visits.rollouts, scores=scores)
        advantages = [
            table_advantages(each, table, visits.rollouts) for each in self._estimators
        ]
        gradients = [visits.gradient(each) for each in advantages]
        # All inner products of the partners' gradients: lengths on the diagonal, cosines beside it.
        products = np.array(
            [[visits.products(one, other) for other in gradients] for one in gradients]
        )
        lengths = np.sqrt(np.einsum("jjr->jr", products))
        safe = np.where(lengths > 0, lengths, 1.0)
        cosines = np.moveaxis(products / (safe[:, None] * safe), 2, 0)
        slopes = cross_validated_slopes(policy, visits, self._estimators, FOLDS)
        weights, metrics = self._mixture.add(slopes, cosines, (lengths > 0).all(0))
        self.metrics.append(metrics)
        # Gradients of equal length are mixed: a factor for each partner and seed.
        factors = np.where(lengths > 0, weights / safe, 0.0)
        return [
            (factors[:, rows.seed] * np.array(parts)).sum(0)
            for rows, *parts in zip(visits.rollouts, *advantages, strict=True)
        ]
