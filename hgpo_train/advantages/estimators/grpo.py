"""GRPO: group relative policy optimisation on episodes (arXiv 2402.03300; core_algos.py of verl).

    A(t) = (S_i - mean S) / (std S + ε)     `mean_std_norm`        A(t) = S_i - mean S     `mean_norm` (Dr. GRPO)

S_i is the score of episode i (the sum of its rewards); mean and std are those of the task's rollouts. All steps of a
rollout have the same advantage, except for the penalty of a step's invalid action, which the official code subtracts
from that row's score.

Special cases, as in the official code: with `cross_steps` (its default), mean and std are over all *rows* of the task,
so long trajectories have more weight; otherwise, they are over the first row of each trajectory. If this is a single
row, mean is 0 and std is 1: the advantage is the score itself, with `mean_std_norm` divided by 1 + ε, a sum that is
rounded to float32. The variance's divisor is n - 1. Without `cross_steps`, an invalid action after the first row, in a
task whose first rows have equal scores, has the advantage -penalty / ε, which is -100,000 by default, as in the
official code: use `penalty_at="reward"` or ``mode="mean_norm"`` there.

This is also the episode term of other estimators (`with_episode`), such as GiGPO, and HGPO's `base_group`. There, that
advantage is -penalty.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np
import polars as pl

from hgpo_train.advantages.parameters import (  # noqa: TC001 - evaluated annotations
    CrossSteps,
    Ddof,
    Epsilon,
    Mode,
    Precision,
    SharedOptions,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import normalise, within


@estimator(reads=())
def grpo(
    steps: pl.LazyFrame,
    *,
    mode: Mode = "mean_std_norm",
    cross_steps: CrossSteps = True,
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
    **_: Unpack[SharedOptions],
) -> pl.LazyFrame:
    """Compare episode scores of a task."""
    score = pl.col("episode_score")
    sample = None if cross_steps else pl.col("first")
    lone = score
    if mode == "mean_std_norm":
        lone = score / (
            1 + epsilon if precision == "float64" else float(np.float32(1 + epsilon))
        )
    return normalise(
        steps,
        "advantage",
        score,
        within(),
        mode=mode,
        ddof=ddof,
        epsilon=epsilon,
        sample=sample,
        alone=lone,
    )


def with_episode(
    steps: pl.LazyFrame,
    *,
    mode: Mode = "mean_std_norm",
    cross_steps: CrossSteps = True,
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
) -> pl.LazyFrame:
    """Add `episode`, GRPO's advantage, as a term of other estimators.

    It differs from `grpo` where the standard deviation is 0: a penalty after the first row is not divided by ε.
    """
    steps = grpo.function(
        steps,
        mode=mode,
        cross_steps=cross_steps,
        ddof=ddof,
        epsilon=epsilon,
        precision=precision,
    )
    episode = pl.col("advantage")
    if mode == "mean_std_norm" and not cross_steps:
        score = pl.col("episode_score")
        baseline = pl.when("first").then(score)
        least = baseline.min().over("task_key")
        most = baseline.max().over("task_key")
        is_constant = most - least <= 1e-12 * most.abs()  # sums of rewards are rounded
        several = pl.col("size_advantage") > 1
        episode = pl.when(is_constant & several).then(score - least).otherwise(episode)
    return steps.with_columns(episode.alias("episode"))
