"""GiGPO: group-in-group policy optimisation (arXiv 2505.10978; core_gigpo.py of verl-agent).

    A(t) = A_episode(t) + w · A_step(t)
    A_step(t) = (R_t - mean G(t)) / (std G(t) + ε)             `mean_std_norm`; without division `mean_norm`

A_episode is the advantage of GRPO (`grpo.py`). G(t) is the group of the task's steps in the same state or, with
`similarity`, in states with similar texts: difflib's ratio with the group's first text is at least
`similarity_threshold`.

Special cases, as in the official code: the variance's divisor is n - 1; A_step is 0 in singleton groups; a trajectory
that visits a state repeatedly is in its group several times. With `similarity`, a text is added to the first group with
a similar first text, in the order in which the groups were created. The official code processes rows in the order of
the table. This module sorts them by trajectory name and step, so that the result does not depend on the row order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from hgpo_train.advantages.estimators.grpo import episode_level
from hgpo_train.advantages.parameters import Mode, Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.similarity import similar_states
from hgpo_train.advantages.windows import Level, normalise


@dataclass(frozen=True, kw_only=True)
class GiGPO(Parameters):
    """The parameters of GiGPO, in addition to those of returns.

    Attributes:
        mode: ``mean_std_norm`` divides deviations by the standard deviation in both terms, ``mean_norm`` does not.
        step_weight: w, the weight of the step term; 0 skips it.
        episode_weight: The weight of the episode term; 0 skips it.
        cross_steps: Whether the episode term's mean and std are over all rows of the task (the official default); if
            false, over one row per trajectory.
        similarity: Whether states with similar texts are in one group.
        similarity_threshold: The minimum ratio of similar texts, in (0, 1).
        ddof: Delta degrees of freedom of the standard deviation: the divisor is n - ddof.
    """

    mode: Mode = "mean_std_norm"
    step_weight: float = 1.0
    episode_weight: float = 1.0
    cross_steps: bool = True
    similarity: bool = False
    similarity_threshold: float = 0.95
    ddof: Literal[0, 1] = 1


def gigpo_advantages(steps: pl.LazyFrame, p: GiGPO) -> pl.LazyFrame:
    """Add `advantage`, its terms `episode` and `step`, and the `size` of the step's group."""
    state = "history_hash_0"
    if p.similarity:
        steps = similar_states(steps, p.similarity_threshold)
        state = "similar_state"
    levels = {
        "episode": episode_level(p, mode=p.mode, cross_steps=p.cross_steps),
        "step": Level("return", [state], alone=pl.lit(0.0)),
    }
    steps = normalise(steps, levels, mode=p.mode, ddof=p.ddof, epsilon=p.epsilon)
    steps = steps.with_columns(size=pl.col("size_step"))
    return weighted_parts(steps, {"episode": p.episode_weight, "step": p.step_weight})


def weighted_parts(steps: pl.LazyFrame, weights: dict[str, float]) -> pl.LazyFrame:
    """Add `advantage`, the sum of weighted terms.

    Args:
        steps: A table with a column for each term.
        weights: The weight of each term's column. A term with the weight 0 is replaced by 0, so that the query does not
            compute it.
    """
    skipped = [pl.lit(0.0).alias(name) for name, weight in weights.items() if not weight]
    return steps.with_columns(skipped).with_columns(
        advantage=pl.sum_horizontal(weight * pl.col(name) for name, weight in weights.items())
    )


ESTIMATOR = register(
    Estimator(
        "gigpo",
        "Compares episode scores of a task, and steps in the same state",
        GiGPO,
        gigpo_advantages,
        lambda _: ("episode", "step", "size"),
        complete=lambda p: ("state" if p.similarity else "history_hash_0",),
    )
)
