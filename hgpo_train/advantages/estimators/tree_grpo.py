"""GRPO over trees of rollouts: episode scores, weighted by the probability of their leaves.

    S̄(t) = the rewards before t + Q(t) with γ = 1            the mean score of the leaves below t
    A(t) = (S̄(t) - mean) / (std + ε)                         mean and std over the leaves of the task, weighted

A branch is no independent rollout: the leaves below one rollout share its weight of 1, so that mean and std are those
of the policy's scores, wherever the tree was branched (`hgpo_train.advantages.trees`). Advantages are multiplied by the
weight of their step. Without branches and penalties this is `grpo` with ``cross_steps=False`` and
``precision="float64"``, also for a single rollout, whose advantage is its score. With penalties it differs where all
scores of a task are equal: the advantage of an invalid action is -penalty there, and not -penalty / ε.

For steps that were chosen by outcomes use `tree_loo` or `carl` with ``fresh=True``: these scores have no such form.
"""

from __future__ import annotations

from typing import Unpack

import polars as pl

from hgpo_train.advantages.parameters import (  # noqa: TC001 - evaluated annotations
    Ddof,
    Epsilon,
    Mode,
    SharedOptions,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.trees import TreeWeights, weighted_normalise, with_tree
from hgpo_train.advantages.windows import neighbour, within


@estimator(reads=(), details=("children", "weight"), branches=True)
def tree_grpo(
    steps: pl.LazyFrame,
    *,
    mode: Mode = "mean_std_norm",
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    tree_weights: TreeWeights = True,
    **_: Unpack[SharedOptions],
) -> pl.LazyFrame:
    """Compare the mean episode score below each step with the task's, over a tree of rollouts."""
    steps = with_tree(steps, gamma=1.0)
    ahead = pl.col("step_reward").cum_sum(reverse=True).over("trajectory_key")
    before = pl.col("episode_return") - ahead
    steps = steps.with_columns(
        (before + pl.col("tree_return") - pl.col("penalty")).alias("(score)")
    )
    is_leaf = neighbour("step", 1).is_null()
    leaf = pl.when(is_leaf).then("weight").otherwise(0.0)
    score = pl.col("(score)")
    steps = weighted_normalise(
        steps,
        "(compared)",
        score,
        within(),
        weight=leaf,
        mode=mode,
        ddof=ddof,
        epsilon=epsilon,
    )
    alone = score / (1 + epsilon) if mode == "mean_std_norm" else score
    weight = pl.col("weight") if tree_weights else 1.0
    return steps.with_columns(advantage=pl.coalesce("(compared)", alone) * weight)
