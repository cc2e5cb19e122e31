"""HCAPO: hindsight credit assignment (arXiv 2603.08754, equations 3 to 10 as a public transcription gives them).

Compare with the paper before citing. The score `hindsight` (`hgpo_train/scores/hindsight.py`) is the mean
log-probability h_t of the tokens of a response, after a prompt that also shows the trajectory's last state:

    π_t   = exp(h_t / temperature)
    ρ_t   = π_t / (mean of π over the trajectory's steps), clipped to [ratio_low, ratio_high]
    Q_t   = ρ_t γ^(T - t) R                        R is the sum of the trajectory's rewards, T its last step
    macro = (R - mean R) / (std R + ε)             over the trajectories of the task
    micro = (Q_t - mean Q) / (std Q + ε)           over the steps of the task, or those of it in the same state
    A(t)  = macro + ω micro                        in successful trajectories, micro is at least 0

With `smoothing`, Q_t is replaced by (Q_t + Q_{t+1}) / 2 before it is normalised, except at the last step. The caption
of equation 8 takes the micro term at one time step, while section 5.2 and algorithm 1 compare across states. So
`micro="group"` takes all steps of the task, and `micro="state"` those in the same state.

Special cases: a trajectory is successful if R > 0; with graded rewards, `reward="success"` makes that the won ones. The
penalty of an invalid action is subtracted from that step's Q, after smoothing. A task with one trajectory has a macro
term of 0, and a single step of a group a micro term of 0. Without any reward in a task, all its advantages are exactly
0, apart from penalties; where all succeed alike, the macro term is exactly 0, and the micro term orders their steps. A
response without tokens has no score: its ρ is 1, and it is in no mean of π.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, Unpack

import polars as pl
from msgspec import Meta

from hgpo_envs.errors import InputError
from hgpo_train.advantages.parameters import (
    GAMMA,
    CallOptions,
    Ddof,
    Discount,
    Epsilon,
    Mode,
    StepWeight,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import mean, neighbour, normalise, within
from hgpo_train.settings import NonNegativeFloat

Flatness = Annotated[
    float,
    Meta(
        gt=0, description="By what mean log-probabilities are divided; 1: as they are."
    ),
]
Lowest = Annotated[NonNegativeFloat, Meta(description="The lowest ρ.")]
Highest = Annotated[NonNegativeFloat, Meta(description="The highest ρ.")]
Smoothing = Annotated[
    bool, Meta(description="Whether Q_t is the mean of Q_t and Q_{t+1}.")
]
Micro = Annotated[
    Literal["group", "state"],
    Meta(
        description="What Q is compared with: all steps of the task, or those of it in the same state."
    ),
]


def reads(p: Any) -> list[str]:  # noqa: ANN401 - of a class that is made of the signature below
    """Return the hashes that are read."""
    return ["history_hash_0"] if p.micro == "state" else []


@estimator(reads=reads, scores=("hindsight",), details=("macro", "micro", "ratio"))
def hcapo(
    steps: pl.LazyFrame,
    *,
    temperature: Flatness = 5.0,
    ratio_low: Lowest = 0.8,
    ratio_high: Highest = 1.2,
    smoothing: Smoothing = False,
    micro: Micro = "group",
    step_weight: StepWeight = 1.0,
    mode: Mode = "mean_std_norm",
    ddof: Ddof = 1,
    gamma: Discount = GAMMA,
    epsilon: Epsilon = 1e-6,
    **_: Unpack[CallOptions],
) -> pl.LazyFrame:
    """Compare episodes, plus steps by how likely their actions are for someone who knows how the episode ends."""
    if ratio_low > ratio_high:
        raise InputError(
            f"ratio_low: expected at most ratio_high = {ratio_high:g}, received {ratio_low:g}"
        )

    # 1. The hindsight ratio. Probabilities are taken relative to the trajectory's largest, which cannot underflow.
    score = pl.col("hindsight")
    likelihood = ((score - score.max().over("trajectory_key")) / temperature).exp()
    steps = mean(steps, "(likelihood)", likelihood, pl.col("trajectory_key"))
    ratio = (
        (likelihood / pl.col("(likelihood)")).clip(ratio_low, ratio_high).fill_null(1.0)
    )

    # 2. Q of each step.
    total = pl.col("episode_return")
    q = pl.col("ratio") * gamma ** pl.col("steps_left").cast(pl.Float64) * total
    steps = steps.with_columns(ratio.alias("ratio")).with_columns(q.alias("(q)"))
    if smoothing:
        following = neighbour("(q)", 1).fill_null(pl.col("(q)"))
        steps = steps.with_columns(((pl.col("(q)") + following) / 2).alias("(q)"))

    # 3. Both terms.
    compared = partial(normalise, mode=mode, ddof=ddof, epsilon=epsilon, alone=0.0)
    group = within("history_hash_0") if micro == "state" else within()
    steps = compared(steps, "macro", total, within(), sample=pl.col("first"))
    steps = compared(steps, "micro", pl.col("(q)") - pl.col("penalty"), group)
    harmless = pl.when(total > 0).then(pl.col("micro").clip(0.0)).otherwise("micro")
    steps = steps.with_columns(harmless.alias("micro"))
    return steps.with_columns(advantage=pl.col("macro") + step_weight * pl.col("micro"))
