"""GiGPO: group-in-group policy optimisation (arXiv 2505.10978; core_gigpo.py of verl-agent).

    A(t) = A_episode(t) + w · A_step(t)
    A_step(t) = (R_t - mean G(t)) / (std G(t) + ε)             `mean_std_norm`; without division `mean_norm`

A_episode is GRPO's (`grpo.py`). G(t) are the steps of the task at the same state, or, with `similarity`, at a state
whose text is similar: difflib's ratio with the group's first text is at least `similarity_threshold`.

Special cases, as in the official code: std divides by n - 1; a lone step has A_step 0; a trajectory that comes back
to a state is in its group each time. By similarity, a text joins the first group that it is similar to, in the order
in which groups were opened. The official code goes through rows as they come; here they are gone through by
trajectory (in order of name) and step, so that row order does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import polars as pl

from hgpo_train.advantages.estimators.grpo import episode_advantages
from hgpo_train.advantages.parameters import Mode, Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.similarity import similar_states
from hgpo_train.advantages.windows import normalise


@dataclass(frozen=True, kw_only=True)
class GiGPO(Parameters):
    """GiGPO's parameters, besides those of returns.

    Attributes:
        mode: Whether deviations are divided by standard deviations, in both parts.
        step_weight: w, the weight of the step's part; 0 skips it.
        episode_weight: The weight of the episode's part; 0 skips it.
        cross_steps: Whether the episode's mean and std are over rows (the official default) or over trajectories.
        similarity: Whether states with similar texts are one group.
        similarity_threshold: The least ratio of similar texts, in (0, 1).
        ddof: 0 divides squares by n, 1 by n - 1.
    """

    mode: Mode = "mean_std_norm"
    step_weight: float = 1.0
    episode_weight: float = 1.0
    cross_steps: bool = True
    similarity: bool = False
    similarity_threshold: float = 0.95
    ddof: Literal[0, 1] = 1


def gigpo_advantages(steps: pl.LazyFrame, p: GiGPO) -> pl.LazyFrame:
    """Adds `advantage`, its parts `episode` and `step`, and `size` of the step's group."""
    state = "history_hash_0"
    if p.similarity:
        steps = similar_states(steps, p.similarity_threshold)
        state = "similar_state"
    steps = episode_advantages(steps, p, mode=p.mode, cross_steps=p.cross_steps, ddof=p.ddof)
    normalised = partial(normalise, mode=p.mode, ddof=p.ddof, epsilon=p.epsilon, alone=pl.lit(0.0))
    steps = normalised(steps, "return", {"step": [state]})
    steps = steps.with_columns(size=pl.col("size_step"))
    return weighted_parts(steps, {"episode": p.episode_weight, "step": p.step_weight})


def weighted_parts(steps: pl.LazyFrame, weights: dict[str, float]) -> pl.LazyFrame:
    """Adds `advantage`, Σ w A over some columns; one of weight 0 is 0 and is not computed."""
    skipped = [pl.lit(0.0).alias(name) for name, weight in weights.items() if not weight]
    return steps.with_columns(skipped).with_columns(
        advantage=pl.sum_horizontal(weight * pl.col(name) for name, weight in weights.items())
    )


ESTIMATOR = register(
    Estimator(
        "gigpo",
        "Episode scores, and steps against those at the same state",
        GiGPO,
        gigpo_advantages,
        lambda _: ("episode", "step", "size"),
        complete=lambda p: ("state" if p.similarity else "history_hash_0",),
    )
)
