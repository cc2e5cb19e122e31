"""Adaptive: a mixture of advantages, weighted by what their gradients are worth in the run's own batches. Experimental.

    A = Σ_j w_j (L_1 / L_j) A_j

A_j are the advantages of the partners in `hgpo_research.mixture`, and L the Fisher lengths of their gradients, so that
each has the scale of the first one, `discounted_grpo`. The weights w are set before each update from the
cross-validated slopes of success along the gradients, of this batch and earlier ones. Slopes, lengths and the
gradients' cosines are computed from sketches of the gradients of log π of each step (`comparison.row_gradients`) as in
`comparison.gain`, averaged over folds. Only groups with both outcomes count.

It needs the policy, so only `hgpo train` can use it. Metrics of each iteration are, for each partner, `weight_`,
`slope_` and `error_` of all batches so far (`Mixture.add`), `batch_slope_` of its batch, and `cosine_` of each pair. A
resumed run reads the batches' figures from these.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.wording import listed
from hgpo_research.comparison.gain import held_out
from hgpo_research.comparison.row_gradients import row_gradients
from hgpo_research.mixture import FOLDS, PARTNERS, Mixture
from hgpo_train.advantages import compute_many, estimator, get
from hgpo_train.advantages.parameters import (
    GAMMA,
    HISTORY_LENGTH,
    Discount,
)
from hgpo_train.advantages.variants import Variant
from hgpo_train.rollout.outcomes import groups_with_mixed_outcomes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_research.arrays import Floats
    from hgpo_train.advantages.parameters import Parameters
    from hgpo_train.models.hf import Model


_NAMES: Final = list(PARTNERS)
_PAIRS: Final = {
    (one, other): f"cosine_{_NAMES[one]}_{_NAMES[other]}"
    for one, other in combinations(range(len(_NAMES)), 2)
}
"""The names of the metrics of pairs of partners."""


class Mixing:
    """The advantages of one training run.

    Args:
        parameters: The parameters of all partners.
        model: The policy, whose parameters change between calls.
        metrics: Those of the run's earlier iterations.
    """

    def __init__(
        self,
        parameters: Parameters,
        model: Model,
        metrics: Sequence[Mapping[str, float]] = (),
    ) -> None:
        self._variants = []
        for name, (base, fixed) in PARTNERS.items():
            given = asdict(parameters) | fixed | {"column": name}
            self._variants.append(Variant(name, get(base).with_parameters(**given), {}))
        self._model = model
        self._mixture = Mixture()
        # A resumed run has the same sums as one that was never interrupted.
        for line in metrics:
            if f"adaptive/batch_slope_{_NAMES[0]}" in line:
                slopes = np.array(
                    [line[f"adaptive/batch_slope_{name}"] for name in _NAMES]
                )
                cosines = np.eye(len(_NAMES))
                for (one, other), name in _PAIRS.items():
                    cosines[one, other] = cosines[other, one] = line[f"adaptive/{name}"]
                self._add(slopes, cosines)

    def __call__(self, steps: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, float]]:
        """Return an iteration's steps with `advantage`, and the metrics.

        Raises:
            InputError: `row_gradients` cannot use the steps.
        """
        rows = compute_many(steps, [each.estimator for each in self._variants]).collect(
            engine="in-memory"
        )
        slopes, cosines, scales = self._measured(steps)
        # The weights of all batches so far, and the scale of this one.
        weights, metrics = self._add(slopes, cosines)
        if not scales.any():  # nothing is known of this batch
            weights = scales = np.eye(len(_NAMES))[0]
        mixed = pl.lit(0.0)
        for number, name in enumerate(_NAMES):
            mixed = mixed + pl.col(name) * (weights * scales)[number]
            metrics[f"weight_{name}"] = weights[number]
        metrics |= {
            f"batch_slope_{name}": slope
            for name, slope in zip(_NAMES, slopes, strict=True)
        }
        metrics |= {name: cosines[pair] for pair, name in _PAIRS.items()}
        found = {f"adaptive/{name}": float(value) for name, value in metrics.items()}
        return rows.with_columns(advantage=mixed).drop(_NAMES), found

    def _add(self, slopes: Floats, cosines: Floats) -> tuple[Floats, dict[str, Any]]:
        """Add a batch to the mixture of this one run."""
        weights, metrics = self._mixture.add(
            slopes[:, None],
            cosines[None],
            slopes.any(keepdims=True),
        )
        return weights[:, 0], {name: values[0] for name, values in metrics.items()}

    def _measured(self, steps: pl.DataFrame) -> tuple[Floats, Floats, Floats]:
        """Return a batch's slopes D, the gradients' cosines, and L_1 / L_j; slopes and scales are 0 if unknown."""
        zeros = np.zeros(len(_NAMES))
        unknown = zeros, np.eye(len(_NAMES)), zeros

        # 1. The groups from which a fold can be left out. Others teach nothing.
        mixed = groups_with_mixed_outcomes(steps.lazy(), "success").collect()
        complete = steps.filter(~pl.col("aborted")).join(
            mixed,
            on=mixed.columns,
            how="semi",
            maintain_order="left",
        )
        complete = complete.filter(
            pl.col("trajectory").n_unique().over(mixed.columns) >= 2 * FOLDS
        )
        if complete.is_empty():
            return unknown

        # 2. Gradients are computed without dropout; training goes on as before.
        training = self._model.training
        gradients = row_gradients(complete.lazy(), self._model)
        self._model.train(training)

        # 3. Sums over the folds.
        held = held_out(
            complete.lazy(),
            self._variants,
            gradients,
            folds=FOLDS,
        )
        slopes = sum(
            ((part.against * part.slopes).sum(0) / part.rollouts for part in held),
            zeros,
        )
        products: Floats = sum(part.products for part in held)  # type: ignore[assignment]  # there are folds
        lengths = sum((part.lengths for part in held), zeros)
        square = products.diagonal()
        if not square.all() or not lengths.all():
            return unknown
        return (
            slopes,
            products / np.sqrt(np.outer(square, square)),
            lengths[0] / lengths,
        )


def mixed_in_training(
    steps: pl.DataFrame,
    parameters: Parameters,
    model: Model,
    metrics: Sequence[Mapping[str, float]],
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Mix the advantages of an iteration of training; see `Mixing`."""
    return Mixing(parameters, model, metrics)(steps)


@estimator(
    reads=[f"history_hash_{k}" for k in range(HISTORY_LENGTH + 1)],
    scope="batch",
    in_training=mixed_in_training,
    smallest_group=2 * FOLDS,
)
def adaptive(steps: pl.LazyFrame, *, gamma: Discount = GAMMA) -> pl.LazyFrame:  # noqa: ARG001 - of the partners
    """Experimental: mix advantages by what their gradients are worth; in `hgpo train`."""
    raise InputError(
        "adaptive: expected `hgpo train`, received a table alone; it needs the policy's gradients. On a saved run, use "
        f"one of {listed(_NAMES)}"
    )
