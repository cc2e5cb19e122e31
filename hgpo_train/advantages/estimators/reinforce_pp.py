"""REINFORCE++: episode scores whitened over the whole batch (arXiv 2501.03262; core_algos.py of verl).

    A(t) = (x_t - mean x) / √(var x + ε)          x_t = S_i, or S_i - mean S of its task with `baseline`

Mean and variance (by n - 1) are over all rows of the batch: the rows of one run and iteration, or of the whole table
where it has no such columns.

Special cases, as in the official code: ε is 1e-8, under the root, and it is also added to the number of rows when a
mean is taken, so that a batch of equal scores S is not quite 0 but up to S · ε/n / √ε. With `baseline`, a task with
one score keeps it. A batch of one row, where the official code raises an error, has variance 0.

Where the official code differs: it whitens over tokens, so that rows with long responses weigh more; a step table's
rows weigh the same. With `gamma` below 1 it also discounts scores back over the tokens of one response; steps have
no such tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.trajectories import first_step
from hgpo_train.advantages.windows import mean, normalise, quotient
from hgpo_train.settings import NonNegativeFloat  # noqa: TC001 - evaluated with the annotations


@dataclass(frozen=True, kw_only=True)
class ReinforcePP(Parameters):
    """REINFORCE++'s parameters, besides those of returns.

    Attributes:
        baseline: Whether the task's mean score is subtracted first.
        cross_steps: With `baseline`: whether that mean is over rows (the official default) or over trajectories.
        epsilon: Added to the variance, and to the number of rows.
    """

    baseline: bool = False
    cross_steps: bool = True
    epsilon: NonNegativeFloat = 1e-8


def reinforce_pp_advantages(steps: pl.LazyFrame, p: ReinforcePP) -> pl.LazyFrame:
    """Adds `advantage`."""
    x = pl.col("episode_score")
    if p.baseline:
        sample = None if p.cross_steps else first_step()
        steps = normalise(steps, x, {"centred": []}, mode="mean_norm", sample=sample, alone=x)
        x = pl.col("centred")
    n = pl.len().over("batch_key").cast(pl.Float64)
    share = quotient(n, n + p.epsilon)
    steps = mean(steps, x, {"(mean of batch)": []}, of="batch_key")
    steps = steps.with_columns((x - pl.col("(mean of batch)") * share).alias("centred"))
    centred = pl.col("centred")
    steps = mean(steps, centred * centred, {"(square of batch)": []}, of="batch_key")
    variance = quotient(pl.col("(square of batch)") * share * n, (n - 1).clip(1))
    return steps.with_columns(advantage=quotient(centred, (variance + p.epsilon).sqrt()))


ESTIMATOR = register(
    Estimator(
        "reinforce_pp", "Episode scores whitened over the batch", ReinforcePP, reinforce_pp_advantages, scope="batch"
    )
)
