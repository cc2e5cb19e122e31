"""G2PO: graph-based group policy optimisation (arXiv 2606.22995; core_g2po.py of its repository).

The states of a task are the nodes of a graph. The value of a visit of node s_t by a trajectory of T steps is γ^(T-t)
times the episode's reward S_i (t starts at 0). The value of a node is the mean of its visits:

    V(s)      = mean over visits of γ^(T-t) S_i
    V'(t)     = V(s_{t+1});  after the last step `success_reward` if S_i equals it, else 0
    A_node(t) = V'(t) - c_t, normalised over the steps of node s_t      c_t is the penalty of an invalid action
    A_edge(t) = V'(t) - V(s_t), normalised over all steps of the task
    A(t)      = A_episode(t) + w · (A_node(t) + A_edge(t))

Normalisation is (x - mean) / (std + ε), where the variance's divisor is n - 1, or x - mean for `mean_norm`. A_episode
is the advantage of GRPO (`grpo.py`).

A node is a state of the step table. G2PO's environment of ALFWorld defines nodes differently (`alfworld_nodes.py`).

Special cases, as in the official code: A_node is 0 for a node with a single visit; V' after the last step is 0 for an
episode with a partial reward, as for a failed one. A_edge is 0 for a task with a single step, where the official code
gives NaN.

γ = 0.95, the penalty 0.1 and the success reward 10 are constants of the official code, and parameters here. The
official scripts use w = 1; the paper's best value on WebShop is 0.8.
"""

from __future__ import annotations

from typing import Annotated, Unpack

import polars as pl
from msgspec import Meta

from hgpo_train.advantages.estimators.grpo import with_episode
from hgpo_train.advantages.input_columns import rounded
from hgpo_train.advantages.parameters import (
    GAMMA,
    CallOptions,
    CrossSteps,
    Ddof,
    Discount,
    EpisodeWeight,
    Epsilon,
    Mode,
    Precision,
    StepWeight,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import mean, neighbour, normalise, within

SuccessReward = Annotated[
    float,
    Meta(
        description="The episode reward of a success, and the value of the state after it."
    ),
]


@estimator(reads=("history_hash_0",), details=("episode", "node", "edge", "value"))
def g2po(
    steps: pl.LazyFrame,
    *,
    gamma: Discount = GAMMA,
    mode: Mode = "mean_std_norm",
    step_weight: StepWeight = 1.0,
    episode_weight: EpisodeWeight = 1.0,
    cross_steps: CrossSteps = True,
    success_reward: SuccessReward = 10.0,
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
    **_: Unpack[CallOptions],
) -> pl.LazyFrame:
    """Compare episode scores of a task, and gains along the edges of its state graph."""
    node = within("history_hash_0")
    reward = pl.col("episode_return")
    discount = rounded(gamma ** (pl.col("steps_left") + 1).cast(pl.Float64), precision)
    # rounded as in the official code
    steps = mean(steps, "value", rounded(discount * reward, precision), node)
    end = pl.when(reward == success_reward).then(success_reward).otherwise(0.0)
    steps = steps.with_columns(pl.coalesce(neighbour("value", 1), end).alias("(after)"))
    after = pl.col("(after)")
    value = pl.col("value")
    steps = with_episode(
        steps,
        mode=mode,
        cross_steps=cross_steps,
        ddof=ddof,
        epsilon=epsilon,
        precision=precision,
    )
    cost = pl.col("penalty")
    steps = normalise(
        steps,
        "node",
        after - cost,
        node,
        mode=mode,
        ddof=ddof,
        epsilon=epsilon,
        alone=0.0,
    )
    steps = normalise(
        steps,
        "edge",
        after - value,
        within(),
        mode=mode,
        ddof=ddof,
        epsilon=epsilon,
        alone=0.0,
    )
    graph = pl.col("node") + pl.col("edge")
    return steps.with_columns(
        advantage=episode_weight * pl.col("episode") + step_weight * graph
    )
