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

    from hgpo_research.arrays import Booleans, Floats
    from hgpo_research.tabular.policy import TabularPolicy, Visits
    from hgpo_research.tabular.rollouts import Rollouts
    from hgpo_train.advantages import Estimator


def cross_validated_slopes(
    policy: TabularPolicy,
    visits: Visits,
    estimators: Sequence[Estimator],
    folds: int,
) -> Floats:
    """Return D of estimators for each seed, of shape (estimators, seeds); 0 where a gradient is 0.

    Args:
        policy: The policies.
        visits: Their rollouts.
        estimators: The estimators.
        folds: The number of folds, at least 2.
    """
    batch = visits.rollouts
    seeds = len(policy.seeds)
    scores = any(each.scores for each in estimators)
    table = step_table(policy, batch, scores=scores)
    without = [
        [rows.rollout % folds != held for rows in batch] for held in range(folds)
    ]
    held_out = [visits.gradient(_held_out(batch, kept)) for kept in without]

    # One call of an estimator gets all folds, as batches of different runs.
    chosen = [np.concatenate(kept) for kept in without]
    parts = [
        table.filter(pl.Series(rows)).with_columns(pl.col("run") + held * seeds)
        for held, rows in enumerate(chosen)
    ]
    ends = np.cumsum([part.height for part in parts])[:-1]
    slopes = np.zeros((len(estimators), seeds))
    for number, estimator in enumerate(estimators):
        estimated = np.split(_estimated(estimator, pl.concat(parts)), ends)
        for values, rows, kept, against in zip(
            estimated, chosen, without, held_out, strict=True
        ):
            advantages = np.zeros(table.height)
            advantages[rows] = values
            gradient = visits.gradient(by_task(advantages, batch))
            # The length of the steps that the gradient has seen, as of a batch without the fold.
            length = np.sqrt(visits.products(gradient, gradient, kept))
            slope = visits.dot(gradient, against) / np.where(length > 0, length, 1.0)
            slopes[number] += np.where(length > 0, slope, 0.0)
    return slopes


def table_advantages(
    estimator: Estimator,
    table: pl.DataFrame,
    batch: Sequence[Rollouts],
) -> list[Floats]:
    """Return the advantages of each task's rows in the step table of a batch."""
    return by_task(_estimated(estimator, table), batch)


def by_task(values: Floats, batch: Sequence[Rollouts]) -> list[Floats]:
    """Divide values of all rows by task."""
    return np.split(values, np.cumsum([len(rows.seed) for rows in batch])[:-1])


def _estimated(estimator: Estimator, table: pl.DataFrame) -> Floats:
    advantages: Floats = (
        estimator(table.lazy(), column="advantage").collect()["advantage"].to_numpy()
    )
    return advantages


def _held_out(batch: Sequence[Rollouts], without: Sequence[Booleans]) -> list[Floats]:
    """Return the advantages of held-out rows: success minus the mean success of the others; 0 for the others."""
    advantages = []
    for rows, kept in zip(batch, without, strict=True):
        # The baseline is of rollouts that the held-out ones do not affect.
        ends = rows.last & kept
        base = np.bincount(rows.seed[ends], rows.score[ends]) / np.bincount(
            rows.seed[ends]
        )
        success = np.bincount(rows.rollout, rows.score)[rows.rollout]
        advantages.append(np.where(kept, 0.0, success - base[rows.seed]))
    return advantages
