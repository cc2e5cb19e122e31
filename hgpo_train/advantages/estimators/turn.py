"""Credit of turns from their own rewards ("MT-GRPO", arXiv 2505.11821; its bias: issue 7244 of verl).

As described by secondary sources; compare with the paper before citing. t counts the steps of a trajectory from 0.

    form="turn"      A(t) = (r_t - mean) / (std + ε) + λ · A_episode(t)     over the task's steps with the same t
    form="return"    A(t) = R_t - 1 / (N - 1) · Σ R_t of the task's other rollouts

r_t is the step's reward minus the penalty of an invalid action, A_episode the advantage of GRPO (`grpo.py`), and λ is
`episode_weight`. R_t is the return from step t, and N the number of rollouts of the task; a rollout that stopped before
t counts 0.

`form="turn"` is biased where the policy decides when to stop: the mean of r_t is over the rollouts that reached t, so
that steps which lose on average cost nothing. That is a hidden bonus for each further step, and the gradient of going
on lacks what comes later. In `form="return"` the baseline of a step is the sum of other rollouts' returns, which its
action does not change, and it is the same whether or not others have stopped: with γ = 1 the expected gradient is
exactly that of the expected sum of rewards.

Special cases: a step that no other rollout of the task reached has the z-score 0. `form="return"` is 0 for a task's
only rollout, has the scale of returns, since dividing by a standard deviation would bias it again, and does not use
`mode`, `ddof`, `cross_steps` and `episode_weight`. `returns="from_end"` does not change r_t.
"""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

import polars as pl
from msgspec import Meta

from hgpo_train.advantages.estimators.grpo import with_episode
from hgpo_train.advantages.parameters import (  # noqa: TC001 - evaluated annotations
    CrossSteps,
    Ddof,
    EpisodeWeight,
    Epsilon,
    Mode,
    Precision,
    SharedOptions,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import normalise, within

Form = Annotated[
    Literal["turn", "return"],
    Meta(
        description="turn compares rewards of steps with the same number, plus the episode's advantage, and is biased "
        "if the policy decides when to stop; return compares returns from there on with all rollouts, and is not."
    ),
]


@estimator(reads=(), details=("episode", "step"))
def turn(
    steps: pl.LazyFrame,
    *,
    form: Form = "turn",
    mode: Mode = "mean_std_norm",
    episode_weight: EpisodeWeight = 1.0,
    cross_steps: CrossSteps = True,
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
    **_: Unpack[SharedOptions],
) -> pl.LazyFrame:
    """Compare steps with the same number in their trajectories, by their rewards or their returns."""
    number = pl.int_range(pl.len(), dtype=pl.Int64).over("trajectory_key")
    steps = steps.with_columns(number.alias("(number)"))
    same = within("(number)")
    if form == "turn":
        reward = pl.col("step_reward") - pl.col("penalty")
        steps = with_episode(
            steps,
            mode=mode,
            cross_steps=cross_steps,
            ddof=ddof,
            epsilon=epsilon,
            precision=precision,
        )
        steps = normalise(
            steps,
            "step",
            reward,
            same,
            mode=mode,
            ddof=ddof,
            epsilon=epsilon,
            alone=0.0,
        )
        return steps.with_columns(
            advantage=pl.col("step") + episode_weight * pl.col("episode")
        )

    # The mean over all rollouts is that over the rollouts that are there, times their share.
    steps = normalise(steps, "(deviation)", "return", same, mode="mean_norm", alone=0.0)
    deviation = pl.col("(deviation)")
    rollouts = pl.col("first").sum().over("task_key").cast(pl.Float64)
    stopped = 1.0 - pl.col("size_(deviation)") / rollouts
    centred = deviation + stopped * (pl.col("return") - deviation)
    alone = rollouts == 1
    step = pl.when(alone).then(0.0).otherwise(centred * rollouts / (rollouts - 1.0))
    return steps.with_columns(advantage=step, step=step, episode=0.0)
