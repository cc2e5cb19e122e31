"""GRPO: group relative policy optimisation on episodes (arXiv 2402.03300; core_algos.py of verl).

    A(t) = (S_i - mean S) / (std S + ε)     `mean_std_norm`        A(t) = S_i - mean S     `mean_norm` (Dr. GRPO)

S_i is the score of episode i (the sum of its rewards); mean and std are those of the task's rollouts. All steps of a
rollout have the same advantage, except for the penalty of a step's invalid action, which the official code subtracts
from that row's score.

Special cases, as in the official code: with `cross_steps` (its default), mean and std are over all *rows* of the task,
so long trajectories have more weight; otherwise, they are over the first row of each trajectory. If this is a single
row, mean is 0 and std is 1: the advantage is the score itself, with `mean_std_norm` divided by 1 + ε, a sum that is
rounded to float32. The variance's divisor is n - 1.

This is also the episode term of GiGPO, G2PO and GraphGPO, and HGPO's `base_group`.
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
        lone = score / (1 + epsilon if precision == "float64" else float(np.float32(1 + epsilon)))
    return normalise(
        steps, "advantage", score, within(), mode=mode, ddof=ddof, epsilon=epsilon, sample=sample, alone=lone
    )
