"""RLOO: REINFORCE with a leave-one-out baseline (arXiv 2402.14740; core_algos.py of verl).

    A(t) = S_i - mean_{j ≠ i} S_j = (S_i - mean S) · n / (n - 1)

S_i is the score of episode i, and n is the number of scores of the task.

Special cases, as in the official code: with `cross_steps` (its default), each *row* contributes a score, so the
baseline leaves out one step instead of one rollout; otherwise, only the first row of each trajectory contributes. The
advantage of a task's only score is the score itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.trajectories import first_step
from hgpo_train.advantages.windows import Level, normalise, quotient, size


@dataclass(frozen=True, kw_only=True)
class RLOO(Parameters):
    """The parameters of RLOO, in addition to those of returns.

    Attributes:
        cross_steps: Whether each row contributes a score (the official default); if false, each trajectory does.
    """

    cross_steps: bool = True


def rloo_advantages(steps: pl.LazyFrame, p: RLOO) -> pl.LazyFrame:
    """Add `advantage`."""
    score, n = pl.col("episode_score"), pl.col(size("centred"))
    sample = None if p.cross_steps else first_step()
    level = Level("episode_score", sample=sample, alone=score)
    steps = normalise(steps, {"centred": level}, mode="mean_norm")
    others = quotient(pl.col("centred") * n, n - 1)
    return steps.with_columns(advantage=pl.when(n > 1).then(others).otherwise("centred"))


ESTIMATOR = register(
    Estimator("rloo", "Compares each episode score with the mean of the task's others", RLOO, rloo_advantages)
)
