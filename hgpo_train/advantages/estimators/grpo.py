"""GRPO: group relative policy optimisation on episodes (arXiv 2402.03300; core_algos.py of verl).

    A(t) = (S_i - mean S) / (std S + ε)     `mean_std_norm`        A(t) = S_i - mean S     `mean_norm` (Dr. GRPO)

S_i is the episode's score (the sum of its rewards) and mean and std are those of the task's rollouts; every step of a
rollout has the same advantage, but for the penalty of its own invalid action, which the official code takes off that
row's score.

Special cases, as in the official code: `cross_steps` (its default) takes mean and std over all *rows* of the task, so
long trajectories weigh more; without it, over one row a trajectory, its first. A task with one such row keeps mean 0
and std 1, so its raw score is the advantage (over 1 + ε, a sum made in float32). std divides by n - 1.

This is also the episode's part of GiGPO, G2PO and GraphGPO, and HGPO's `base_group`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from hgpo_train.advantages.parameters import Mode, Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.trajectories import first_step
from hgpo_train.advantages.windows import normalise


@dataclass(frozen=True, kw_only=True)
class GRPO(Parameters):
    """GRPO's parameters, besides those of returns.

    Attributes:
        mode: Whether deviations are divided by the task's standard deviation.
        cross_steps: Whether mean and std are over rows (the official default) or over trajectories.
        ddof: 0 divides squares by n, 1 by n - 1.
    """

    mode: Mode = "mean_std_norm"
    cross_steps: bool = True
    ddof: Literal[0, 1] = 1


def grpo_advantages(steps: pl.LazyFrame, p: GRPO) -> pl.LazyFrame:
    """Adds `advantage`."""
    return episode_advantages(steps, p, "advantage", mode=p.mode, cross_steps=p.cross_steps, ddof=p.ddof)


def episode_advantages(
    steps: pl.LazyFrame,
    p: Parameters,
    into: str = "episode",
    *,
    mode: Mode,
    cross_steps: bool = True,
    ddof: int = 1,
    lone_scale: float | None = None,
) -> pl.LazyFrame:
    """Adds each row's episode score, normalised within its task.

    Args:
        steps: The table.
        p: How scores are made.
        into: The new column.
        mode: Whether deviations are divided by the task's standard deviation.
        cross_steps: Whether mean and std are over rows or over trajectories.
        ddof: 0 divides squares by n, 1 by n - 1.
        lone_scale: What divides the score of a task that has but one; None is 1 + ε as float32.
    """
    if lone_scale is None:
        lone_scale = 1 + p.epsilon if p.precision == "float64" else float(np.float32(1 + p.epsilon))
    score = pl.col("episode_score")
    return normalise(
        steps,
        score,
        {into: []},
        mode=mode,
        ddof=ddof,
        epsilon=p.epsilon,
        sample=None if cross_steps else first_step(),
        alone=score if mode == "mean_norm" else score / lone_scale,
    )


ESTIMATOR = register(Estimator("grpo", "Episode scores against those of the same task", GRPO, grpo_advantages))
