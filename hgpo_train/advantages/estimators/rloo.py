"""RLOO: REINFORCE with a leave-one-out baseline (arXiv 2402.14740; core_algos.py of verl).

    A(t) = S_i - mean_{j ≠ i} S_j = (S_i - mean S) · n / (n - 1)

S_i is the score of episode i, and n is the number of scores of the task.

Special cases, as in the official code: with `cross_steps` (its default), each *row* contributes a score, so the
baseline leaves out one step instead of one rollout; otherwise, only the first row of each trajectory contributes. The
advantage of a task's only score is the score itself.
"""

from __future__ import annotations

from typing import Unpack

import polars as pl

from hgpo_train.advantages.parameters import (  # noqa: TC001 - evaluated annotations
    CrossSteps,
    SharedOptions,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import normalise, within


@estimator(reads=())
def rloo(
    steps: pl.LazyFrame, *, cross_steps: CrossSteps = True, **_: Unpack[SharedOptions]
) -> pl.LazyFrame:
    """Compare each episode score with the mean of the task's others."""
    score = pl.col("episode_score")
    centred = pl.col("centred")
    n = pl.col("size_centred")
    sample = None if cross_steps else pl.col("first")
    steps = normalise(
        steps, "centred", score, within(), mode="mean_norm", sample=sample, alone=score
    )
    return steps.with_columns(
        advantage=pl.when(n > 1).then(centred * n / (n - 1)).otherwise(centred)
    )
