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

from typing import Literal

import polars as pl

from hgpo_train.advantages.estimators.grpo import episode_term
from hgpo_train.advantages.parameters import Mode, Precision  # noqa: TC001 - evaluated with the annotations
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.similarity import similar_states
from hgpo_train.advantages.windows import normalise, within
from hgpo_train.settings import NonNegativeFloat  # noqa: TC001 - evaluated with the annotations


@estimator(reads=lambda p: ["state" if p.similarity else "history_hash_0"], details=("episode", "step", "size_step"))
def gigpo(
    steps: pl.LazyFrame,
    *,
    mode: Mode = "mean_std_norm",
    step_weight: float = 1.0,
    episode_weight: float = 1.0,
    cross_steps: bool = True,
    similarity: bool = False,
    similarity_threshold: float = 0.95,
    ddof: Literal[0, 1] = 1,
    epsilon: NonNegativeFloat = 1e-6,
    precision: Precision = "mixed",
) -> pl.LazyFrame:
    """Compare episode scores of a task, and steps in the same state.

    Args:
        steps: A table with the input columns of estimators.
        mode: ``mean_std_norm`` divides deviations by the standard deviation in both terms, ``mean_norm`` does not.
        step_weight: w, the weight of the step term.
        episode_weight: The weight of the episode term.
        cross_steps: Whether the episode term's mean and std are over all rows of the task (the official default); if
            false, over one row per trajectory.
        similarity: Whether states with similar texts are in one group.
        similarity_threshold: The minimum ratio of similar texts, in (0, 1).
        ddof: Delta degrees of freedom of the standard deviation: the divisor is n - ddof.
        epsilon: ε, added to standard deviations.
        precision: As in `Parameters`.
    """
    steps = episode_term(
        steps, "episode", mode, cross_steps=cross_steps, ddof=ddof, epsilon=epsilon, precision=precision
    )
    group = within("history_hash_0")
    if similarity:
        steps, group = similar_states(steps, similarity_threshold), within("similar_state")
    steps = normalise(steps, "step", "return", group, mode=mode, ddof=ddof, epsilon=epsilon, alone=0.0)
    return steps.with_columns(advantage=episode_weight * pl.col("episode") + step_weight * pl.col("step"))
