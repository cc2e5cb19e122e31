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

from typing import Unpack

import polars as pl

from hgpo_train.advantages.estimators.grpo import with_episode
from hgpo_train.advantages.estimators.similarity import clusters
from hgpo_train.advantages.parameters import (  # noqa: TC001 - evaluated annotations
    CrossSteps,
    Ddof,
    EpisodeWeight,
    Epsilon,
    Mode,
    Precision,
    SharedOptions,
    Similarity,
    SimilarityThreshold,
    StepWeight,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import normalise, within


@estimator(
    reads=lambda p: ["state" if p.similarity else "history_hash_0"],
    details=("episode", "step", "size_step"),
)
def gigpo(
    steps: pl.LazyFrame,
    *,
    mode: Mode = "mean_std_norm",
    step_weight: StepWeight = 1.0,
    episode_weight: EpisodeWeight = 1.0,
    cross_steps: CrossSteps = True,
    similarity: Similarity = False,
    similarity_threshold: SimilarityThreshold = 0.95,
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
    **_: Unpack[SharedOptions],
) -> pl.LazyFrame:
    """Compare episode scores of a task, and steps in the same state."""
    steps = with_episode(
        steps,
        mode=mode,
        cross_steps=cross_steps,
        ddof=ddof,
        epsilon=epsilon,
        precision=precision,
    )
    group = within("history_hash_0")
    if similarity:
        similar = clusters({"cluster": pl.col("state")}, similarity_threshold)
        steps = steps.with_columns(similar.struct.field("cluster"))
        group = within("cluster")
    steps = normalise(
        steps, "step", "return", group, mode=mode, ddof=ddof, epsilon=epsilon, alone=0.0
    )
    return steps.with_columns(
        advantage=episode_weight * pl.col("episode") + step_weight * pl.col("step")
    )
