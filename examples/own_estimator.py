"""Three custom estimators, each a function that takes and returns a LazyFrame.

    hgpo advantages RUN -e examples.own_estimator:hgpo_median
    hgpo advantages RUN -e examples.own_estimator:hgpo_leave_one_out --set history_length=4

docs/estimators.md lists the columns that the functions receive.
"""

from __future__ import annotations

import polars as pl

from hgpo_train.advantages import estimator
from hgpo_train.advantages.windows import normalise, weighted_mean, within


def hgpo_median(
    steps: pl.LazyFrame, *, history_length: int = 2, alpha: float = 1.0
) -> pl.LazyFrame:
    """HGPO with a median baseline, A_k = R - median G_k, which is robust to a single successful rollout."""
    levels = {}
    for k in range(history_length + 1):
        group = within(f"history_hash_{k}")
        shared = (pl.len().over(group) > 1) & group.is_not_null()
        advantage = pl.col("return") - pl.col("return").median().over(group)
        steps = steps.with_columns(pl.when(shared).then(advantage).alias(f"k{k}"))
        levels[f"k{k}"] = (k + 2) ** alpha
    return weighted_mean(steps, levels)


def hgpo_leave_one_out(
    steps: pl.LazyFrame, *, history_length: int = 2, alpha: float = 1.0
) -> pl.LazyFrame:
    """HGPO with a leave-one-out baseline: A_k = R - mean of the group's others = (R - mean G_k) · n / (n - 1)."""
    levels = {}
    for k in range(history_length + 1):
        steps = normalise(
            steps, f"k{k}", "return", within(f"history_hash_{k}"), mode="mean_norm"
        )
        n = pl.col(f"size_k{k}")
        steps = steps.with_columns((pl.col(f"k{k}") * n / (n - 1)).alias(f"k{k}"))
        levels[f"k{k}"] = (k + 2) ** alpha
    return weighted_mean(steps, levels)


@estimator("time_to_success", reads=(), details=("credit",))
def time_to_success(steps: pl.LazyFrame, *, gamma: float = 0.9) -> pl.LazyFrame:
    """Steps of a task, compared by the time to success: z-scores of γ^(T - t), or of 0 in failed rollouts."""
    won = pl.col("episode_return") > 0
    credit = pl.when(won).then(gamma ** pl.col("steps_left")).otherwise(0.0)
    steps = steps.with_columns(credit=credit)
    return normalise(steps, "advantage", "credit", within(), alone=0.0)
