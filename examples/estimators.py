"""Three estimators of one's own, each a function from LazyFrame to LazyFrame.

    hgpo advantages RUN -e examples.estimators:hgpo_median
    hgpo advantages RUN -e examples.estimators:hgpo_leave_one_out --set history_length=4

docs/estimators.md lists the columns that they are written over.
"""

from __future__ import annotations

import polars as pl

from hgpo_train.advantages import estimator
from hgpo_train.advantages.input_columns import power
from hgpo_train.advantages.trajectories import steps_left
from hgpo_train.advantages.windows import normalise, quotient, size, weighted_mean, within


def hgpo_median(steps: pl.LazyFrame, *, history_length: int = 2, alpha: float = 1.0) -> pl.LazyFrame:
    """HGPO with a median baseline: A_k = R - median G_k, which one lucky rollout does not move."""
    levels = {}
    for k in range(history_length + 1):
        group = within(f"history_hash_{k}")
        shared = (pl.len().over(group) > 1) & group.is_not_null()
        advantage = pl.col("return") - pl.col("return").median().over(group)
        steps = steps.with_columns(pl.when(shared).then(advantage).alias(f"k{k}"))
        levels[f"k{k}"] = (k + 2) ** alpha
    return weighted_mean(steps, levels)


def hgpo_leave_one_out(steps: pl.LazyFrame, *, history_length: int = 2, alpha: float = 1.0) -> pl.LazyFrame:
    """HGPO against the other members of each group: A_k = R - mean of the others = (R - mean G_k) · n / (n - 1)."""
    groups = {f"k{k}": [f"history_hash_{k}"] for k in range(history_length + 1)}
    steps = normalise(steps, "return", groups, mode="mean_norm")
    for level in groups:
        n = pl.col(size(level))
        steps = steps.with_columns(quotient(pl.col(level) * n, n - 1).alias(level))
    return weighted_mean(steps, {f"k{k}": (k + 2) ** alpha for k in range(history_length + 1)})


@estimator("time_to_success", details=("credit",))
def time_to_success(steps: pl.LazyFrame, *, gamma: float = 0.9) -> pl.LazyFrame:
    """Steps against all steps of their task by how soon success follows: γ^(T - t), or 0 in a failed rollout."""
    won = pl.col("episode_return") > 0
    credit = pl.when(won).then(power(gamma, steps_left())).otherwise(0.0)
    steps = steps.with_columns(credit=credit)
    return normalise(steps, "credit", {"advantage": []}, alone=pl.lit(0.0))
