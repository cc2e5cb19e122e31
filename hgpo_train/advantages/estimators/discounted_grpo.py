"""Discounted GRPO: GRPO's comparison of episodes, on returns to go. Of this project.

    A(t) = (R_t - mean_{j ≠ i} M_j) / std S,    R_t = r_t + γ R_(t+1),    M_j = mean over the steps of j of its R

S_i is the score of rollout i, the sum of its rewards r, and std S the deviation of the task's scores, with the divisor
n - 1. With one reward, at the last step T, R_t is γ^(T-t) S_i: an early step of a long rollout is credited with less
of its success than a late one. That takes out noise of what comes later, and favours short ways. The baseline leaves
the own rollout out, so that it depends on none of the own actions.

With `per_visit`, A(t) is divided by the number of steps of the rollout in the same state: a rollout that returns to a
state has there, in all, the weight of one step.

Special cases: the advantage is exactly 0 where all scores of the task are equal, also in tasks of one rollout; the
penalty of an invalid action is subtracted from that step's return, and has no effect on the baseline or the scale. With
γ = 1 and one reward at the end, A is GRPO's `mean_std_norm` over rollouts (`cross_steps=False`), times n / (n - 1).
"""

from __future__ import annotations

from typing import Annotated, Unpack

import polars as pl
from msgspec import Meta

from hgpo_train.advantages.parameters import SharedOptions  # noqa: TC001 - evaluated annotations
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import within

PerVisit = Annotated[
    bool,
    Meta(
        description="Whether advantages are divided by the number of steps of the rollout in the same state."
    ),
]


@estimator(reads=lambda parameters: ("state_hash",) if parameters.per_visit else ())
def discounted_grpo(
    steps: pl.LazyFrame,
    *,
    per_visit: PerVisit = False,
    **_: Unpack[SharedOptions],
) -> pl.LazyFrame:
    """Compare returns to go with the mean returns of the task's other rollouts."""
    task = "task_key"
    first = pl.col("first").cast(pl.Float64)
    score = pl.col("episode_return")
    own = pl.col("plain_return").mean().over("trajectory_key")
    # One term a rollout: its first step stands for it, so that long rollouts count no more than short ones.
    others = first.sum().over(task) - 1.0
    base = ((own * first).sum().over(task) - own) / others
    deviation = pl.when("first").then(score).std().over(task)
    visits = (
        pl.len().over(within("state_hash", of="trajectory_key")) if per_visit else 1.0
    )
    # Scores of equal values have a deviation of 0, or of rounding.
    varies = score.max().over(task) > score.min().over(task)
    credit = (pl.col("return") - base) / deviation / visits
    return steps.with_columns(advantage=pl.when(varies).then(credit).otherwise(0.0))
