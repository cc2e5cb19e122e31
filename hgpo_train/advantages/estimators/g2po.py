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

from dataclasses import dataclass
from typing import Literal

import polars as pl

from hgpo_train.advantages.alfworld_nodes import with_alfworld_nodes
from hgpo_train.advantages.estimators.gigpo import weighted_parts
from hgpo_train.advantages.estimators.grpo import episode_level
from hgpo_train.advantages.input_columns import rounded
from hgpo_train.advantages.parameters import Mode, Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.trajectories import discount_to_end, neighbour
from hgpo_train.advantages.windows import Level, mean, normalise


@dataclass(frozen=True, kw_only=True)
class G2PO(Parameters):
    """The parameters of G2PO, in addition to those of returns.

    Attributes:
        mode: ``mean_std_norm`` divides deviations by the standard deviation, ``mean_norm`` does not.
        step_weight: w, the weight of the graph term; 0 skips it.
        episode_weight: The weight of the episode term; 0 skips it.
        cross_steps: Whether the episode term's mean and std are over all rows of the task (the official default); if
            false, over one row per trajectory.
        success_reward: The episode reward of a success, and the value of the state after it.
        ddof: Delta degrees of freedom of the standard deviation: the divisor is n - ddof.
        nodes: The definition of nodes: ``states`` for the states of the step table, ``alfworld`` for the nodes of
            G2PO's ALFWorld environment (`hgpo_train.advantages.alfworld_nodes`).
    """

    mode: Mode = "mean_std_norm"
    step_weight: float = 1.0
    episode_weight: float = 1.0
    cross_steps: bool = True
    success_reward: float = 10.0
    ddof: Literal[0, 1] = 1
    nodes: Literal["states", "alfworld"] = "states"


def g2po_advantages(steps: pl.LazyFrame, p: G2PO) -> pl.LazyFrame:
    """Add `advantage`, its terms `episode`, `node` and `edge`, and the state's `value`."""
    node = "history_hash_0"
    if p.nodes == "alfworld":
        steps = with_alfworld_nodes(steps)
        node = "alfworld_node"
    reward = pl.col("episode_return")
    visit = rounded(rounded(discount_to_end(p.gamma, further=1), p) * reward, p)  # rounded as in the official code
    steps = mean(steps, visit, {"value": [node]})
    end = pl.when(reward == p.success_reward).then(p.success_reward).otherwise(0.0)
    after = pl.coalesce(neighbour(pl.col("value"), 1), end)
    steps = steps.with_columns(after.alias("(after)"))
    after = pl.col("(after)")
    levels = {
        "episode": episode_level(p, mode=p.mode, cross_steps=p.cross_steps),
        "node": Level(after - pl.col("penalty"), [node], alone=pl.lit(0.0)),
        "edge": Level(after - pl.col("value"), alone=pl.lit(0.0)),
    }
    steps = normalise(steps, levels, mode=p.mode, ddof=p.ddof, epsilon=p.epsilon)
    steps = steps.with_columns((pl.col("node") + pl.col("edge")).alias("graph"))
    return weighted_parts(steps, {"episode": p.episode_weight, "graph": p.step_weight})


ESTIMATOR = register(
    Estimator(
        "g2po",
        "Compares episode scores of a task, and gains along the edges of its state graph",
        G2PO,
        g2po_advantages,
        lambda _: ("episode", "node", "edge", "value"),
        complete=lambda p: ("state", "admissible_actions") if p.nodes == "alfworld" else ("history_hash_0",),
    )
)
