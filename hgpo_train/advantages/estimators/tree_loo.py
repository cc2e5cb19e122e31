"""Leave-one-out over trees: RLOO (arXiv 2402.14740) at every node of a tree of rollouts.

    A(t) = Q(e) - mean of Q over the other steps that leave e's node,     e = the first step of t's segment

A segment is what lies between two nodes with several children; its steps share the advantage of the first one, as the
steps of a rollout do in RLOO. Q and the weights, by which advantages are multiplied, are those of
`hgpo_train.advantages.trees`. The other children are independent of the step given the node, so that the expectation
of A at e is the true advantage. With γ = 1, the weighted sum over all steps is an unbiased policy gradient. With γ < 1
it is not: n steps after e, the expectation of A is γ^n times the true advantage, and e depends on where was branched.

Without branches and penalties, and with γ = 1, this is `rloo` with ``cross_steps=False``.
"""

from __future__ import annotations

from typing import Unpack

import polars as pl

from hgpo_train.advantages.parameters import GAMMA, CallOptions, Discount
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.trees import Fresh, TreeWeights, with_tree
from hgpo_train.advantages.windows import neighbour, within


@estimator(reads=(), details=("children", "weight"), branches=True)
def tree_loo(
    steps: pl.LazyFrame,
    *,
    gamma: Discount = GAMMA,
    fresh: Fresh = False,
    tree_weights: TreeWeights = True,
    **_: Unpack[CallOptions],
) -> pl.LazyFrame:
    """Compare each segment of a tree of rollouts with the others that leave its node."""
    steps = with_tree(steps, gamma=gamma, fresh=fresh)
    value = pl.col("tree_return")
    n = pl.col("children")
    node = within("node")
    least = value.min().over(node)
    # sums are rounded
    is_constant = value.max().over(node) - least <= 1e-12 * least.abs()
    others = (value.sum().over(node) - value) / (n - 1)
    edge = pl.when(is_constant).then(0.0).otherwise(value - others)
    edge = pl.when(n > 1).then(edge).otherwise(value)

    # Rows between two nodes with several children have the advantage of the first one.
    begins = (n > 1) | neighbour("step", -1).is_null()
    steps = steps.with_columns(edge.alias("(edge)"))
    segment = pl.when(begins).then("(edge)").forward_fill()
    weight = pl.col("weight") if tree_weights else 1.0
    return steps.with_columns(advantage=(segment - pl.col("penalty")) * weight)
