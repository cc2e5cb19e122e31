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

from dataclasses import dataclass

import polars as pl

from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.trajectories import first_step
from hgpo_train.advantages.windows import Level, mean, normalise, quotient
from hgpo_train.settings import NonNegativeFloat  # noqa: TC001 - evaluated with the annotations


@dataclass(frozen=True, kw_only=True)
class ReinforcePP(Parameters):
    """The parameters of REINFORCE++, in addition to those of returns.

    Attributes:
        baseline: Whether the task's mean score is subtracted first.
        cross_steps: Whether the task's mean is over all rows (the official default); if false, over one row per
            trajectory. Used only with `baseline`.
        epsilon: ε, added to the variance and to the number of rows.
    """

    baseline: bool = False
    cross_steps: bool = True
    epsilon: NonNegativeFloat = 1e-8


def reinforce_pp_advantages(steps: pl.LazyFrame, p: ReinforcePP) -> pl.LazyFrame:
    """Add `advantage`."""
    x = pl.col("episode_score")
    if p.baseline:
        sample = None if p.cross_steps else first_step()
        steps = normalise(steps, {"centred": Level(x, sample=sample, alone=x)}, mode="mean_norm")
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
        "reinforce_pp", "Whitens episode scores over the batch", ReinforcePP, reinforce_pp_advantages, scope="batch"
    )
)
