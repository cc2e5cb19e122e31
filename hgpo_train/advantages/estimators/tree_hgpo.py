"""HGPO over trees of rollouts: groups of equal histories, weighted by the probability of their steps.

    A_k(t) = (Q(t) - mean G_k(t)) / (std G_k(t) + ε),    A(t) = Σ_k w_k A_k(t),    w_k ∝ (k + 2)^α

G_k are the steps of a task with an equal state and equal k states before it, as in `hgpo`; their mean and standard
deviation are weighted by the probability of a step in the tree (`hgpo_train.advantages.trees`), and Q is the return
over the branches below. So a state that was branched often counts as often as rollouts reach it, and the steps that
leave a node, whose histories are equal to the start, are compared at every depth.

Without branches this is `hgpo` with ``precision="float64"``. For steps that were chosen by outcomes use `tree_loo` or
`carl` with ``fresh=True``.
"""

from __future__ import annotations

from typing import Unpack

import polars as pl

from hgpo_train.advantages.estimators.hgpo import Alpha  # noqa: TC001 - evaluated annotations
from hgpo_train.advantages.input_columns import CHAINS
from hgpo_train.advantages.parameters import (
    GAMMA,
    HISTORY_LENGTH,
    CallOptions,
    Context,
    Discount,
    Epsilon,
    HistoryLength,
    Mode,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.trees import TreeWeights, weighted_normalise, with_tree
from hgpo_train.advantages.windows import weighted_mean, within


@estimator(
    reads=lambda p: [f"{CHAINS[p.context]}{k}" for k in range(p.history_length + 1)],
    details=("children", "weight"),
    branches=True,
)
def tree_hgpo(
    steps: pl.LazyFrame,
    *,
    history_length: HistoryLength = HISTORY_LENGTH,
    alpha: Alpha = 1.0,
    mode: Mode = "mean_std_norm",
    context: Context = "states",
    gamma: Discount = GAMMA,
    epsilon: Epsilon = 1e-6,
    tree_weights: TreeWeights = True,
    **_: Unpack[CallOptions],
) -> pl.LazyFrame:
    """Compare steps with equal histories of states, over a tree of rollouts."""
    steps = with_tree(steps, gamma=gamma)
    value = pl.col("tree_return") - pl.col("penalty")
    weight = pl.col("weight")
    levels = {}
    for k in range(history_length + 1):
        group = within(f"{CHAINS[context]}{k}")
        steps = weighted_normalise(
            steps,
            f"k{k}",
            value,
            group,
            weight=weight,
            mode=mode,
            ddof=0,
            epsilon=epsilon,
        )
        levels[f"k{k}"] = float((k + 2) ** alpha)
    steps = weighted_mean(steps, levels, epsilon=epsilon)
    return steps.with_columns(
        advantage=pl.col("advantage") * (weight if tree_weights else 1.0)
    )
