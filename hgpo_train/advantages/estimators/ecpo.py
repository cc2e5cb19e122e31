"""ECPO: evidence-calibrated policy optimisation (arXiv 2606.05885).

As described by secondary sources; compare with the paper before citing.

Steps of a task in the same state are compared by their action a, the text that was parsed out of the response. Few
occurrences of an action are little evidence, so that its mean return is shrunk towards that of the state:

    μ(s)     = mean of R over the n(s) steps in s;   Ḡ(s, a) = mean of R over the n(s, a) of them with the action a
    μ̃(s, a)  = (n(s, a) Ḡ(s, a) + κ μ(s)) / (n(s, a) + κ)
    A_act(t) = (μ̃(s, a) - mean) / (std + ε)        over the different actions in s, each counted once
    ρ(s)     = tanh(n(s) / τ) · B(s) / (B(s) + W(s) + ε)
    A(t)     = A_episode(t) + ω · ρ(s) · A_act(t)

The gate ρ suppresses states in which the returns of the same action differ more than those of different actions. B(s)
is the variance of returns between actions, the mean over the steps of (Ḡ(s, a) - μ(s))², and W(s) the rest of their
variance. A_episode is the advantage of GRPO (`grpo.py`).

The sources give κ = 2. τ, ω, what the actions are weighted by in mean, std and variances, and the divisors are choices
of this project. `mean_norm` does not divide by std.

Special cases: a state in which only one action was taken has A_act = 0, and so has one in which all returns are equal.
`kappa=0` with `gate=False` compares plain means of actions, close to the part of BiPACE (arXiv 2606.25556) for equal
states: with one occurrence per action it is GiGPO's step term with the divisor n. Invalid actions are actions like any
other, and their penalty is part of R.
"""

from __future__ import annotations

from typing import Annotated, Unpack

import polars as pl
from msgspec import Meta

from hgpo_train.advantages.estimators.grpo import with_episode
from hgpo_train.advantages.parameters import (  # noqa: TC001 - evaluated annotations
    CrossSteps,
    EpisodeWeight,
    Epsilon,
    Mode,
    Precision,
    SharedOptions,
    StepWeight,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import mean, normalise, within
from hgpo_train.settings import NonNegativeFloat, PositiveFloat

Kappa = Annotated[
    NonNegativeFloat,
    Meta(
        description="κ, the number of occurrences that the state's mean counts as in the mean of an action."
    ),
]
Tau = Annotated[
    PositiveFloat,
    Meta(description="τ, the number of steps in a state that are much evidence."),
]
VarianceGate = Annotated[
    bool,
    Meta(description="Whether the step term is multiplied by ρ(s); if false, ρ is 1."),
]


@estimator(
    reads=("state_hash", "action_hash"), details=("episode", "step", "value", "gate")
)
def ecpo(
    steps: pl.LazyFrame,
    *,
    kappa: Kappa = 2.0,
    gate: VarianceGate = True,
    tau: Tau = 4.0,
    mode: Mode = "mean_std_norm",
    step_weight: StepWeight = 1.0,
    episode_weight: EpisodeWeight = 1.0,
    cross_steps: CrossSteps = True,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
    **_: Unpack[SharedOptions],
) -> pl.LazyFrame:
    """Compare episode scores of a task, and actions in the same state, with little trust in few occurrences."""
    steps = with_episode(
        steps, mode=mode, cross_steps=cross_steps, epsilon=epsilon, precision=precision
    )
    state = within("state_hash")
    action = within("state_hash", "action_hash")
    steps = steps.with_columns(
        state.alias("(state)"),
        action.alias("(action)"),
    )

    # 1. The mean of each action, shrunk towards that of the state; exactly that if all returns are equal.
    steps = mean(steps, "(state mean)", "return", state)
    steps = mean(steps, "(action mean)", "return", action)
    centre = pl.col("(state mean)")
    between = pl.col("(action mean)") - centre
    n = pl.len().over("(action)").cast(pl.Float64)
    steps = steps.with_columns(value=centre + n / (n + kappa) * between)
    once = pl.col("(action)").is_first_distinct()
    steps = normalise(
        steps,
        "step",
        "value",
        state,
        mode=mode,
        epsilon=epsilon,
        sample=once,
        alone=0.0,
    )

    # 2. The gate. The variance of the returns is that between actions plus that within them.
    ratio = pl.lit(1.0)
    if gate:
        explained = (between**2).mean().over("(state)")
        variance = ((pl.col("return") - centre) ** 2).mean().over("(state)")
        evidence = (pl.len().over("(state)").cast(pl.Float64) / tau).tanh()
        ratio = (
            pl.when(variance > 0)
            .then(evidence * explained / (variance + epsilon))
            .otherwise(0.0)
        )
    steps = steps.with_columns(gate=ratio)
    step = step_weight * pl.col("gate") * pl.col("step")
    return steps.with_columns(advantage=episode_weight * pl.col("episode") + step)
