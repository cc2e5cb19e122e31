"""GAGPO: generalised advantage grouped policy optimisation (arXiv 2605.13217).

As described by secondary sources; compare with the paper before citing.

    V(s) = mean of R_t over the visits of s by the task's rollouts;  0 after the last step
    δ_t  = r_t + γ V(s_{t+1}) - V(s_t)
    A_t  = Σ_j (γλ)^j δ_{t+j}                      GAE, see `bootstrapping.py`
    A(t) = (A_t - mean) / (std + ε)                over the steps of the task (`normalize="group"`) or of the batch

There is no episode term. The paper's loss has an importance ratio per action, normalised by length; that is an option
of the loss, not of the advantage.

Special cases: with λ = 1 nothing is bootstrapped, A_t = R_t - V(s_t): GiGPO's step term before its normalisation. A
state that is visited once has V(s) = R_t, so that the step before it is credited with its own return. A trajectory that
visits a state repeatedly counts as often. A truncated trajectory ends like a terminated one, with V = 0 after its last
step, as in all estimators here. The mean and std are over rows, so long trajectories have more weight; a single row has
advantage 0. If all returns of each state are equal, advantages are 0; with ``normalize="batch"`` only before the
batch's mean is subtracted. A penalty with ``penalty_at="return"`` is compared within the step's state, and not
bootstrapped.
"""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

import polars as pl
from msgspec import Meta

from hgpo_train.advantages.estimators.bootstrapping import (
    GaeLambda,
    generalised_advantage,
)
from hgpo_train.advantages.parameters import (
    GAMMA,
    CallOptions,
    Ddof,
    Discount,
    Epsilon,
    Mode,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import normalise, within

Normalize = Annotated[
    Literal["group", "batch"],
    Meta(
        description="Whether advantages are compared with those of the task's steps, or of the whole batch."
    ),
]


@estimator(reads=("state_hash",), details=("value",), scope="batch")
def gagpo(
    steps: pl.LazyFrame,
    *,
    gamma: Discount = GAMMA,
    gae_lambda: GaeLambda = 0.95,
    normalize: Normalize = "group",
    mode: Mode = "mean_std_norm",
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    **_: Unpack[CallOptions],
) -> pl.LazyFrame:
    """Bootstrap from the mean return of each state, and compare with the task or the batch."""
    state = within("state_hash")
    steps = normalise(
        steps, "(deviation)", "plain_return", state, mode="mean_norm", alone=0.0
    )
    steps = normalise(steps, "(charged)", "return", state, mode="mean_norm", alone=0.0)
    surplus = -pl.col("(deviation)")
    steps = steps.with_columns(
        surplus.alias("(surplus)"),
        (-pl.col("(charged)")).alias("(charged surplus)"),
        value=pl.col("plain_return") + surplus,
    )
    steps = generalised_advantage(steps, "(step)", gamma=gamma, gae_lambda=gae_lambda)
    compared = within() if normalize == "group" else within(of="batch_key")
    return normalise(
        steps,
        "advantage",
        "(step)",
        compared,
        mode=mode,
        ddof=ddof,
        epsilon=epsilon,
        alone=0.0,
    )
