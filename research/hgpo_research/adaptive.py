"""Adaptive: a mixture of an unbiased and a bootstrapped advantage, weighted by the run's own batches. Experimental.

    A = (1 - m) A_u + m (L_u / L_b) A_b

A_u is the advantage of `discounted_grpo`, A_b that of `shrinkage_gae`, and L are the Fisher lengths of their gradients,
so that m = 1 has the scale of m = 0. The weight m is set before each update from the cross-validated slopes of success
along both gradients, of this batch and earlier ones (`hgpo_research.mixture`). Slopes, lengths and the gradients'
cosine are computed from sketches of the gradients of log π of each step (`comparison.row_gradients`): of the rollouts
of the other folds as in `comparison.gain`, averaged over folds. Only groups with both outcomes count.

It needs the policy, so only `hgpo train` can use it. Metrics of each iteration are `adaptive/weight`; `slope_unbiased`,
`slope_bootstrapped` and `batch_cosine` of its batch; and of all batches so far, older ones decayed, `unbiased`,
`bootstrapped`, `error` and `cosine`. A resumed run reads the batches' figures from these.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_research.comparison.gain import held_out
from hgpo_research.comparison.row_gradients import row_gradients
from hgpo_research.mixture import BOOTSTRAPPED, FOLDS, UNBIASED, Mixture
from hgpo_train.advantages import compute_many, estimator, get
from hgpo_train.advantages.parameters import GAMMA, HISTORY_LENGTH, Discount
from hgpo_train.advantages.variants import Variant
from hgpo_train.rollout.outcomes import groups_with_mixed_outcomes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hgpo_train.advantages.parameters import Parameters
    from hgpo_train.models.hf import Model

    Floats = NDArray[np.float64]


class Mixing:
    """The advantages of one training run.

    Args:
        parameters: The parameters of both estimators.
        model: The policy, whose parameters change between calls.
        metrics: Those of the run's earlier iterations.

    Attributes:
        smallest_group: The number of rollouts of a group that the folds need; `hgpo train` checks it before it begins.
    """

    smallest_group: Final = 2 * FOLDS

    def __init__(self, parameters: Parameters, model: Model, metrics: Sequence[Mapping[str, float]] = ()) -> None:
        estimators = [get(name).with_parameters(column=name, **asdict(parameters)) for name in (UNBIASED, BOOTSTRAPPED)]
        self._variants = [Variant(each.name, each, {}) for each in estimators]
        self._model, self._mixture = model, Mixture()
        for line in metrics:
            if "adaptive/slope_unbiased" in line:
                slopes = np.array([[line["adaptive/slope_unbiased"]], [line["adaptive/slope_bootstrapped"]]])
                self._mixture.add(slopes, np.array([line["adaptive/batch_cosine"]]), slopes.any(0))

    def __call__(self, steps: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, float]]:
        """Return an iteration's steps with `advantage`, and the metrics.

        Raises:
            InputError: `row_gradients` cannot use the steps.
        """
        rows = compute_many(steps, [each.estimator for each in self._variants]).collect(engine="in-memory")
        slopes, cosine, scale = self._measured(steps)
        found = self._mixture.add(slopes[:, None], np.array([cosine]), slopes.any(keepdims=True))
        weight = float(found["weight"][0])
        if not scale:  # nothing is known of this batch
            weight = 0.0
        mixed = (1.0 - weight) * pl.col(UNBIASED) + weight * scale * pl.col(BOOTSTRAPPED)
        batch = {"slope_unbiased": slopes[0], "slope_bootstrapped": slopes[1], "batch_cosine": cosine}
        numbers = batch | {name: values[0] for name, values in found.items()} | {"weight": weight}
        metrics = {f"adaptive/{name}": float(value) for name, value in numbers.items()}
        return rows.with_columns(advantage=mixed).drop(UNBIASED, BOOTSTRAPPED), metrics

    def _measured(self, steps: pl.DataFrame) -> tuple[Floats, float, float]:
        """Return the slopes D of a batch, the cosine of both gradients, and L_u / L_b; zeros if nothing is known."""
        mixed = groups_with_mixed_outcomes(steps.lazy(), "success").collect()
        complete = steps.filter(~pl.col("aborted")).join(mixed, on=mixed.columns, how="semi", maintain_order="left")
        complete = complete.filter(pl.col("trajectory").n_unique().over(mixed.columns) >= self.smallest_group)
        if complete.is_empty():
            return np.zeros(2), 0.0, 0.0
        training = self._model.training
        gradients = row_gradients(complete.lazy(), self._model)
        self._model.train(training)
        held = held_out(complete.lazy(), self._variants, gradients, folds=FOLDS)
        slopes = sum(((part.against * part.slopes).sum(0) * part.factors for part in held), np.zeros(2))
        products = sum((part.slopes.T @ part.slopes for part in held), np.zeros((2, 2)))
        length = np.sqrt(products.diagonal())
        if not length.all():
            return np.zeros(2), 0.0, 0.0
        return slopes, float(products[0, 1] / length.prod()), float(length[0] / length[1])


@estimator(reads=[f"history_hash_{k}" for k in range(HISTORY_LENGTH + 1)], scope="batch", in_training=Mixing)
def adaptive(steps: pl.LazyFrame, *, gamma: Discount = GAMMA) -> pl.LazyFrame:  # noqa: ARG001 - of both estimators
    """Experimental: mix an unbiased and a bootstrapped advantage by what their gradients are worth; in `hgpo train`."""
    raise InputError(
        "adaptive: expected `hgpo train`, received a table alone; it needs the policy's gradients. On a saved run, use "
        f"{UNBIASED} or {BOOTSTRAPPED}"
    )
