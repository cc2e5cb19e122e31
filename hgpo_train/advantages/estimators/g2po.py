"""G2PO: graph-based group policy optimisation (arXiv 2606.22995; core_g2po.py of its repository).

The states of a task are the nodes of a graph. A visit of node s_t by a trajectory of T steps is worth γ^(T-t) times
the episode's reward (t from 0), and a node what its visits are worth on average:

    V(s)      = mean over visits of γ^(T-t) S_i
    V'(t)     = V(s_{t+1});  after the last step `success_reward` if the episode's reward is that, else 0
    A_node(t) = V'(t) - c_t, normalised among the steps of node s_t     c_t the penalty of an invalid action
    A_edge(t) = V'(t) - V(s_t), normalised among all steps of the task
    A(t)      = A_episode(t) + w · (A_node(t) + A_edge(t))

Normalised is (x - mean) / (std + ε) with std by n - 1, or x - mean for `mean_norm`. A_episode is GRPO's (`grpo.py`).

A node is a state of the step table; in ALFWorld, G2PO's environment names nodes in its own way (`alfworld_nodes.py`).

Special cases, as in the official code: a node with one visit has A_node 0; an episode that earned part of the reward
ends in 0 like a failure. A task with one step, where the official code gives NaN, has A_edge 0.

The official code has γ = 0.95, the penalty 0.1 and the success reward 10 written into it; they are parameters here.
Its scripts use w = 1; the paper's best on WebShop is 0.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import polars as pl

from hgpo_train.advantages.alfworld_nodes import with_alfworld_nodes
from hgpo_train.advantages.estimators.gigpo import weighted_parts
from hgpo_train.advantages.estimators.grpo import episode_advantages
from hgpo_train.advantages.input_columns import power, rounded
from hgpo_train.advantages.parameters import Mode, Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.trajectories import neighbour, steps_left
from hgpo_train.advantages.windows import mean, normalise


@dataclass(frozen=True, kw_only=True)
class G2PO(Parameters):
    """G2PO's parameters, besides those of returns.

    Attributes:
        mode: Whether deviations are divided by standard deviations.
        step_weight: w, the weight of the graph's part; 0 skips it.
        episode_weight: The weight of the episode's part; 0 skips it.
        cross_steps: Whether the episode's mean and std are over rows (the official default) or over trajectories.
        success_reward: The episode reward that is a success, and what the state after it is worth.
        ddof: 0 divides squares by n, 1 by n - 1.
        nodes: What makes a node: ``states`` are the step table's; ``alfworld`` is what G2PO's environment makes of
            ALFWorld's (`hgpo_train.advantages.alfworld_nodes`).
    """

    mode: Mode = "mean_std_norm"
    step_weight: float = 1.0
    episode_weight: float = 1.0
    cross_steps: bool = True
    success_reward: float = 10.0
    ddof: Literal[0, 1] = 1
    nodes: Literal["states", "alfworld"] = "states"


def g2po_advantages(steps: pl.LazyFrame, p: G2PO) -> pl.LazyFrame:
    """Adds `advantage`, its parts `episode`, `node` and `edge`, and the state's `value`."""
    node = "history_hash_0"
    if p.nodes == "alfworld":
        steps = with_alfworld_nodes(steps)
        node = "alfworld_node"
    reward = pl.col("episode_return")
    visit = rounded(rounded(power(p.gamma, steps_left() + 1), p) * reward, p)  # the official code's float32
    steps = mean(steps, visit, {"value": [node]})
    end = pl.when(reward == p.success_reward).then(p.success_reward).otherwise(0.0)
    after = pl.coalesce(neighbour(pl.col("value"), 1), end)
    steps = steps.with_columns(after.alias("(after)"))
    after = pl.col("(after)")
    normalised = partial(normalise, mode=p.mode, ddof=p.ddof, epsilon=p.epsilon, alone=pl.lit(0.0))
    steps = normalised(steps, after - pl.col("penalty"), {"node": [node]})
    steps = normalised(steps, after - pl.col("value"), {"edge": []})
    steps = episode_advantages(steps, p, mode=p.mode, cross_steps=p.cross_steps, ddof=p.ddof)
    steps = steps.with_columns((pl.col("node") + pl.col("edge")).alias("graph"))
    return weighted_parts(steps, {"episode": p.episode_weight, "graph": p.step_weight})


ESTIMATOR = register(
    Estimator(
        "g2po",
        "Episode scores, and gains over the graph of states",
        G2PO,
        g2po_advantages,
        lambda _: ("episode", "node", "edge", "value"),
        complete=lambda p: ("state", "admissible_actions") if p.nodes == "alfworld" else ("history_hash_0",),
    )
)
