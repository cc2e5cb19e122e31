"""Gated BEPO: advantages from a Bellman fixed point on the graph of a task's rollouts (arXiv 2608.06861).

As described by secondary sources; compare with the paper before citing.

The states of a task are nodes, and each step is an observed transition from its state to the next one. The values are
the fixed point of the mean backup:

    V(s) = mean over the steps from s of r_t + γ V(s_{t+1});   0 after the last step
    δ_t  = r_t + γ V(s_{t+1}) - V(s_t)
    A_t  = Σ_j (γλ)^j δ_{t+j}                      GAE, see `bootstrapping.py`
    A(t) = A_t if s_t was left with several successors, else the episode's advantage of GRPO (`grpo.py`)

The sources do not say how the two terms are scaled. Here `mean_std_norm` z-scores A_t over the steps of the task, like
the episode's scores; with `mean_norm` A_t is as above, and the episode's advantage is S_i - mean S.

V differs from GAGPO's mean return M by W(s) = V(s) - M(s), the solution of

    W(s) = γ · mean over the steps from s of W(s_{t+1}) + M(s_{t+1}) - R_{t+1}

which is exactly 0 if the returns of each state are equal. It is iterated for all tasks at once; without cycles, as many
rounds as the longest path are exact. With cycles the error shrinks by the factor γ or less per round.

Special cases: cycles with γ = 1 converge as well, because each rollout ends, so that each state has a way to the end,
where V is 0; a state that is left for good once in n visits takes about 40 n rounds (at most 100,000 are computed). A
truncated trajectory ends like a terminated one. The successor of a last step is its `next_state`; ends without one
count as one successor. With `gate=False` all steps have A_t. A penalty with ``penalty_at="return"`` is compared within
the step's state, and not bootstrapped. A_t is 0 in a task with a single step.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Unpack

import numpy as np
import polars as pl
from msgspec import Meta

from hgpo_train.advantages.estimators.bootstrapping import (
    GaeLambda,
    generalised_advantage,
)
from hgpo_train.advantages.estimators.grpo import with_episode
from hgpo_train.advantages.parameters import (
    GAMMA,
    CallOptions,
    CrossSteps,
    Ddof,
    Discount,
    Epsilon,
    Mode,
    Precision,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import neighbour, normalise, within

if TYPE_CHECKING:
    from collections.abc import Sequence

Gate = Annotated[
    bool,
    Meta(
        description="Whether steps from states with a single observed successor have the episode's advantage."
    ),
]

_ROUNDS: Final = 100_000
# the largest change of a round, relative to the largest value
_CONVERGED: Final = 1e-15


@estimator(reads=("state_hash", "next_state_hash"), details=("value", "gate"))
def bepo(
    steps: pl.LazyFrame,
    *,
    gamma: Discount = GAMMA,
    gae_lambda: GaeLambda = 0.95,
    gate: Gate = True,
    mode: Mode = "mean_std_norm",
    cross_steps: CrossSteps = True,
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
    **_: Unpack[CallOptions],
) -> pl.LazyFrame:
    """Bootstrap from values at the Bellman fixed point of the task's state graph, where paths part."""
    # 1. The mean return of each state, and what the fixed point adds to it.
    state = within("state_hash")
    steps = normalise(
        steps, "(deviation)", "plain_return", state, mode="mean_norm", alone=0.0
    )
    steps = normalise(steps, "(charged)", "return", state, mode="mean_norm", alone=0.0)
    ahead = -neighbour("(deviation)", 1).fill_null(0.0)
    node = state.fill_null(0)  # aborted rollouts lead to no others
    steps = steps.with_columns(node.alias("(node)"), ahead.alias("(ahead)"))
    # Tasks are iterated together, each in its own scale, so that none depends on the others.
    scale = pl.col("(ahead)").abs().max().over("task_key")
    scaled = pl.when(scale > 0).then(pl.col("(ahead)") / scale).otherwise(0.0)
    added = pl.map_batches(
        ["(node)", "first", scaled], partial(_fixed_point, gamma=gamma), pl.Float64()
    )
    steps = steps.with_columns((added * scale).alias("(added)"))

    # 2. Advantages of both kinds.
    surplus = pl.col("(added)") - pl.col("(deviation)")
    steps = steps.with_columns(
        surplus.alias("(surplus)"),
        (pl.col("(added)") - pl.col("(charged)")).alias("(charged surplus)"),
        value=pl.col("plain_return") + surplus,
    )
    steps = generalised_advantage(steps, "(step)", gamma=gamma, gae_lambda=gae_lambda)
    steps = with_episode(
        steps,
        mode=mode,
        cross_steps=cross_steps,
        ddof=ddof,
        epsilon=epsilon,
        precision=precision,
    )
    if mode == "mean_std_norm":
        steps = normalise(
            steps, "(step)", "(step)", within(), ddof=ddof, epsilon=epsilon, alone=0.0
        )

    # 3. Whether a state was left in different ways.
    successor = pl.col("next_state_hash").fill_null(0)
    several = (
        successor.min().over(state) != successor.max().over(state)
        if gate
        else pl.lit(value=True)
    )
    steps = steps.with_columns(gate=several)
    return steps.with_columns(
        advantage=pl.when("gate").then("(step)").otherwise("episode")
    )


def _fixed_point(columns: Sequence[pl.Series], gamma: float) -> pl.Series:
    """Return each row's W(s) = γ · mean over the steps from s of W(s_{t+1}) + x_t.

    Args:
        columns: The int64 key of each row's state, whether the row is its trajectory's first, and x_t. Rows of a
            trajectory are next to each other, in order; x_t is 0 at its last step.
        gamma: γ.
    """
    keys, first, ahead = (column.to_numpy() for column in columns)
    _, state = np.unique(keys, return_inverse=True)
    visits = np.bincount(state)
    constant = gamma * np.bincount(state, ahead) / visits
    # The different transitions, of which a loop has few; those of last steps add nothing.
    before = np.flatnonzero(~first[1:])
    pairs = state[before] * len(visits) + state[before + 1]
    pairs, count = np.unique(pairs, return_counts=True)
    source, target = np.divmod(pairs, len(visits))
    weight = gamma * count / visits[source]
    value = constant
    for _ in range(_ROUNDS):
        updated = constant + np.bincount(source, weight * value[target], len(visits))
        change = np.abs(updated - value).max()
        value = updated
        # nor if a return has overflowed
        if not change > _CONVERGED * np.abs(value).max():
            break
    return pl.Series(value[state])
