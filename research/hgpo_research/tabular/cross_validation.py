"""Cross-validated gain: how much success improves along an estimator's gradient, from its own batches, without truth.

    D = Σ_f  ĝ_f · h_f / √(ĝ_fᵀ F ĝ_f)

The rollouts of each task are divided into folds. ĝ_f is the policy gradient with the estimator's advantages of all
rollouts but those of fold f, and F their Fisher information. h_f is the policy gradient of the rollouts of fold f with
their undiscounted success, minus the mean success of the task's others as a baseline, divided by the number of all
rollouts. The two are independent and h is unbiased, so that D has the expected slope of success along the gradient of
a batch without one fold; times √(2δ), it is the gain of an update of the divergence δ (`gain`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hgpo_research.tabular.rollouts import step_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_research.tabular.policy import TabularPolicy, Visits
    from hgpo_research.tabular.rollouts import Rollouts
    from hgpo_train.advantages import Estimator

    Floats = NDArray[np.float64]


def cross_validated_slopes(
    policy: TabularPolicy, visits: Visits, estimators: Sequence[Estimator], folds: int
) -> Floats:
    """Return D of estimators for each seed, of shape (estimators, seeds); 0 where a gradient is 0.

    Args:
        policy: The policies.
        visits: Their rollouts.
        estimators: The estimators.
        folds: The number of folds, at least 2.
    """
    batch, seeds, table = visits.rollouts, len(policy.seeds), step_table(policy, visits.rollouts)
    fold_of = [rows.rollout % folds for rows in batch]
    without = [[fold != held for fold in fold_of] for held in range(folds)]
    parts = [
        table.filter(pl.Series(np.concatenate(kept))).with_columns(pl.col("run") + held * seeds)
        for held, kept in enumerate(without)
    ]
    slopes = np.zeros((len(estimators), seeds))
    held_out = [visits.gradient(_held_out(batch, kept)) for kept in without]
    for number, estimator in enumerate(estimators):
        estimated = estimator(pl.concat(parts).lazy(), column="advantage").collect()["advantage"].to_numpy()
        ends = np.cumsum([part.height for part in parts])[:-1]
        for values, kept, against in zip(np.split(estimated, ends), without, held_out, strict=True):
            advantages = np.zeros(table.height)
            advantages[np.concatenate(kept)] = values
            gradient = visits.gradient(by_task(advantages, batch))
            length = np.sqrt(visits.products(gradient, gradient, kept))
            slopes[number] += np.where(
                length > 0, visits.dot(gradient, against) / np.where(length > 0, length, 1.0), 0.0
            )
    return slopes


def table_advantages(estimator: Estimator, table: pl.DataFrame, batch: Sequence[Rollouts]) -> list[Floats]:
    """Return the advantages of each task's rows in the step table of a batch."""
    return by_task(estimator(table.lazy(), column="advantage").collect()["advantage"].to_numpy(), batch)


def by_task(values: Floats, batch: Sequence[Rollouts]) -> list[Floats]:
    """Divide values of all rows by task."""
    return np.split(values, np.cumsum([len(rows.seed) for rows in batch])[:-1])


def _held_out(batch: Sequence[Rollouts], without: Sequence[NDArray[np.bool_]]) -> list[Floats]:
    """Return the advantages of held-out rows: success minus the mean success of the others; 0 for the others."""
    advantages = []
    for rows, kept in zip(batch, without, strict=True):
        ends = rows.last & kept
        base = np.bincount(rows.seed[ends], rows.won[ends]) / np.bincount(rows.seed[ends])
        success = np.bincount(rows.rollout, rows.won)[rows.rollout]
        advantages.append(np.where(kept, 0.0, success - base[rows.seed]))
    return advantages
