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

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from hgpo_train.advantages.parameters import Mode, Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.trajectories import first_step
from hgpo_train.advantages.windows import Level, normalise


@dataclass(frozen=True, kw_only=True)
class GRPO(Parameters):
    """The parameters of GRPO, in addition to those of returns.

    Attributes:
        mode: ``mean_std_norm`` divides deviations by the task's standard deviation, ``mean_norm`` does not.
        cross_steps: Whether mean and std are over all rows of the task (the official default); if false, over one row
            per trajectory.
        ddof: Delta degrees of freedom of the standard deviation: the divisor is n - ddof.
    """

    mode: Mode = "mean_std_norm"
    cross_steps: bool = True
    ddof: Literal[0, 1] = 1


def grpo_advantages(steps: pl.LazyFrame, p: GRPO) -> pl.LazyFrame:
    """Add `advantage`."""
    levels = {"advantage": episode_level(p, mode=p.mode, cross_steps=p.cross_steps)}
    return normalise(steps, levels, mode=p.mode, ddof=p.ddof, epsilon=p.epsilon)


def episode_level(p: Parameters, *, mode: Mode, cross_steps: bool = True, lone_scale: float | None = None) -> Level:
    """Return the level of `normalise` that compares episode scores within a task.

    Args:
        p: The parameters, of which ε and the precision are used.
        mode: ``mean_std_norm`` divides deviations by the task's standard deviation, ``mean_norm`` does not.
        cross_steps: Whether mean and std are over all rows of the task; if false, over one row per trajectory.
        lone_scale: The divisor of a task's only score with ``mean_std_norm``; by default 1 + ε, rounded to float32
            unless the precision is ``float64``.
    """
    if lone_scale is None:
        lone_scale = 1 + p.epsilon if p.precision == "float64" else float(np.float32(1 + p.epsilon))
    score = pl.col("episode_score")
    return Level(
        "episode_score",
        sample=None if cross_steps else first_step(),
        alone=score if mode == "mean_norm" else score / lone_scale,
    )


ESTIMATOR = register(Estimator("grpo", "Compares episode scores of a task", GRPO, grpo_advantages))
