"""RLOO: REINFORCE with a leave-one-out baseline (arXiv 2402.14740; core_algos.py of verl).

    A(t) = S_i - mean_{j ≠ i} S_j = (S_i - mean S) · n / (n - 1)

S_i is the episode's score, n how many scores the task has.

Special cases, as in the official code: with `cross_steps` (its default) scores are counted once a *row*, so what is
left out is one step, not one rollout; without it, once a trajectory, by its first row. A task with one score keeps
it: its advantage is the score itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.trajectories import first_step
from hgpo_train.advantages.windows import normalise, quotient, size


@dataclass(frozen=True, kw_only=True)
class RLOO(Parameters):
    """RLOO's parameters, besides those of returns.

    Attributes:
        cross_steps: Whether scores are counted by rows (the official default) or by trajectories.
    """

    cross_steps: bool = True


def rloo_advantages(steps: pl.LazyFrame, p: RLOO) -> pl.LazyFrame:
    """Adds `advantage`."""
    score, n = pl.col("episode_score"), pl.col(size("centred"))
    sample = None if p.cross_steps else first_step()
    steps = normalise(steps, score, {"centred": []}, mode="mean_norm", sample=sample, alone=score)
    others = quotient(pl.col("centred") * n, n - 1)
    return steps.with_columns(advantage=pl.when(n > 1).then(others).otherwise("centred"))


ESTIMATOR = register(
    Estimator("rloo", "Episode scores against the mean of the task's other ones", RLOO, rloo_advantages)
)
