"""CARL: credit at the nodes of a tree of rollouts (arXiv 2512.04949), as described by secondary sources.

    V(leaf) = 0,  V(u) = mean over the children of u of (r + γ V(child))      unweighted means over the tree
    A(edge u → v) = E[R below v] - E[R below u] = Q(edge) - V(u)
    A = 0 where all children of a node have the same action                    only other nodes are trained

The paper was not at hand: compare with it before you call results CARL's. Rollouts of a group that begin with the same
action are different children of its first node here; a tree that merges them has other means.

V(u) contains the edge itself, so that the expectation of A is (n - 1) / n of the true advantage at a node with n
children; `tree_loo` has no such factor. `fresh` and `tree_weights` are described in `hgpo_train.advantages.trees`.
"""

from __future__ import annotations

from typing import Unpack

import polars as pl

from hgpo_train.advantages.parameters import (
    GAMMA,
    CallOptions,
    Discount,
    Epsilon,
    Mode,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.trees import Fresh, TreeWeights, with_tree
from hgpo_train.advantages.windows import normalise, within


@estimator(reads=("action_hash",), details=("children", "weight"), branches=True)
def carl(
    steps: pl.LazyFrame,
    *,
    gamma: Discount = GAMMA,
    mode: Mode = "mean_norm",
    fresh: Fresh = False,
    tree_weights: TreeWeights = False,
    epsilon: Epsilon = 1e-6,
    **_: Unpack[CallOptions],
) -> pl.LazyFrame:
    """Compare the steps that leave a node of the tree of rollouts, where their actions differ."""
    steps = with_tree(steps, gamma=gamma, fresh=fresh)
    value = pl.col("tree_return") - pl.col("penalty")
    steps = normalise(
        steps, "(edge)", value, within("node"), mode=mode, epsilon=epsilon, alone=0.0
    )
    differ = pl.col("action_hash").n_unique().over(within("node")) > 1
    weight = pl.col("weight") if tree_weights else 1.0
    return steps.with_columns(
        advantage=pl.when(differ).then(pl.col("(edge)") * weight).otherwise(0.0)
    )
