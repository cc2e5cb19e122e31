"""REINFORCE++: episode scores whitened over the whole batch (arXiv 2501.03262; core_algos.py of verl).

    A(t) = (x_t - mean x) / √(var x + ε)          x_t = S_i, or S_i - mean S of its task with `baseline`

Mean and variance (with the divisor n - 1) are over all rows of the batch: the rows of one run and iteration, or the
whole table if it has no such columns.

Special cases, as in the official code: ε is 1e-8 and added under the root. It is also added to the number of rows in
means, so the advantages in a batch of equal scores S are not exactly 0 but at most S · ε/n / √ε. With `baseline`, a
task's only score is used without a baseline. A batch of one row, for which the official code raises an error, has
variance 0.

Differences from the official code: it whitens over tokens, so rows with long responses have more weight; here, all rows
of a step table have the same weight. With `gamma` below 1, it also discounts scores over the tokens of a response;
step tables have no tokens.
"""

from __future__ import annotations

from typing import Annotated, Unpack

import polars as pl
from msgspec import Meta

from hgpo_train.advantages.parameters import (  # noqa: TC001 - evaluated annotations
    CrossSteps,
    SharedOptions,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import mean, normalise, within
from hgpo_train.settings import NonNegativeFloat

Baseline = Annotated[
    bool, Meta(description="Whether the task's mean score is subtracted first.")
]
BatchEpsilon = Annotated[
    NonNegativeFloat,
    Meta(description="ε, added to the variance and to the number of rows."),
]


@estimator(reads=(), scope="batch")
def reinforce_pp(
    steps: pl.LazyFrame,
    *,
    baseline: Baseline = False,
    cross_steps: CrossSteps = True,
    epsilon: BatchEpsilon = 1e-8,
    **_: Unpack[SharedOptions],
) -> pl.LazyFrame:
    """Whiten episode scores over the batch."""
    x = pl.col("episode_score")
    if baseline:
        sample = None if cross_steps else pl.col("first")
        steps = normalise(
            steps, "centred", x, within(), mode="mean_norm", sample=sample, alone=x
        )
        x = pl.col("centred")
    n = pl.len().over("batch_key").cast(pl.Float64)
    batch = within(of="batch_key")
    steps = mean(steps, "(batch mean)", x, batch)
    steps = steps.with_columns(
        (x - pl.col("(batch mean)") * (n / (n + epsilon))).alias("centred")
    )
    steps = mean(steps, "(batch square)", pl.col("centred") ** 2, batch)
    variance = pl.col("(batch square)") * (n / (n + epsilon)) * n / (n - 1).clip(1)
    return steps.with_columns(advantage=pl.col("centred") / (variance + epsilon).sqrt())
