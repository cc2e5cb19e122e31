"""EMPG: entropy-modulated policy gradients (arXiv 2509.09265), as described by secondary sources.

Compare with the paper before citing: the equations are those of a summary and of the authors' pseudocode
(empgseed-seed.github.io), and no recording of theirs was available. With the score `entropy` H_t, the mean entropy of
the tokens of a response, and the batch's least and largest H:

    Ĥ_t  = (H_t - min H) / (max H - min H + 1e-8)
    g_t  = exp(-k Ĥ_t) / mean exp(-k Ĥ)            the mean is over the batch's steps
    B_t  = A_episode · g_t + ζ exp(-k' Ĥ_{t+1})    A_episode is GRPO's advantage (`grpo.py`)
    A(t) = B_t - mean B                            the mean is over the batch's steps

Confident steps count more, and a step that leads to a confident one has a bonus. The batch is the rows of one run and
iteration, or the whole table if it has no such columns, whatever the chunks. In training, these are the groups that are
trained on (`rollout.filter_groups`).

Special cases: a last step has no next one, and no bonus. With equal entropies Ĥ is 0, so that g is 1 and every bonus
is ζ. Where all returns are equal, A_episode is 0 and the bonuses remain: A is exactly 0 only with ζ = 0, or if all
bonuses are equal. A response without tokens has no entropy: its g is 1, the step before it has no bonus, and it is in
no mean of exp(-k Ĥ). A batch of one step has advantage 0. The episode term of a task's only rollout is that of GRPO.
"""

from __future__ import annotations

from typing import Annotated, Final, Unpack

import polars as pl
from msgspec import Meta

from hgpo_train.advantages.estimators.grpo import with_episode
from hgpo_train.advantages.parameters import (  # noqa: TC001 - evaluated annotations
    CrossSteps,
    Ddof,
    Epsilon,
    Mode,
    Precision,
    SharedOptions,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import mean, neighbour, normalise, within
from hgpo_train.settings import NonNegativeFloat

Sharpness = Annotated[
    NonNegativeFloat,
    Meta(description="k, how much confident steps count more; 0: not at all."),
]
FutureSharpness = Annotated[
    NonNegativeFloat,
    Meta(description="k', how fast the bonus falls with the next entropy."),
]
BonusWeight = Annotated[
    float, Meta(description="ζ, the weight of the bonus for a confident next step.")
]

_RANGE: Final = 1e-8
"""Added to the range of entropies, as in the authors' pseudocode."""


@estimator(
    reads=(), scores=("entropy",), scope="batch", details=("episode", "scale", "bonus")
)
def empg(
    steps: pl.LazyFrame,
    *,
    k: Sharpness = 1.0,
    future_k: FutureSharpness = 1.0,
    zeta: BonusWeight = 0.1,
    mode: Mode = "mean_std_norm",
    cross_steps: CrossSteps = True,
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
    **_: Unpack[SharedOptions],
) -> pl.LazyFrame:
    """Scale episode advantages by the confidence of the step, and add a bonus for a confident next step."""
    steps = with_episode(
        steps,
        mode=mode,
        cross_steps=cross_steps,
        ddof=ddof,
        epsilon=epsilon,
        precision=precision,
    )
    # The entropy among those of the batch.
    batch = within(of="batch_key")
    entropy = pl.col("entropy")
    least = entropy.min().over(batch)
    most = entropy.max().over(batch)
    steps = steps.with_columns(
        ((entropy - least) / (most - least + _RANGE)).alias("(entropy)")
    )

    # The factor of the step, and what its next step adds.
    confidence = (-k * pl.col("(entropy)")).exp()
    bonus = zeta * neighbour((-future_k * pl.col("(entropy)")).exp(), 1)
    steps = mean(steps, "(confidence)", confidence, batch)
    steps = steps.with_columns(
        (confidence / pl.col("(confidence)")).fill_null(1.0).alias("scale"),
        bonus.fill_null(0.0).alias("bonus"),
    )
    modulated = pl.col("episode") * pl.col("scale") + pl.col("bonus")
    return normalise(steps, "advantage", modulated, batch, mode="mean_norm", alone=0.0)
