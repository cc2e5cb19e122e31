"""G2PO: graph-based group policy optimisation (arXiv 2606.22995; core_g2po.py of its repository).

The states of a task are the nodes of a graph. A visit of node s_t by a trajectory of T steps is worth γ^(T-t) times
the episode's reward (t from 0), and a node what its visits are worth on average:

    V(s)      = mean over visits of γ^(T-t) S_i
    V'(t)     = V(s_{t+1});  after the last step `success_reward` if the episode's reward is that, else 0
    A_node(t) = V'(t) - c_t, normalised among the steps of node s_t     c_t the penalty of an invalid action
    A_edge(t) = V'(t) - V(s_t), normalised among all steps of the task
    A(t)      = A_episode(t) + w · (A_node(t) + A_edge(t))

Normalised is (x - mean) / (std + ε) with std by n - 1, or x - mean for `mean_norm`. A_episode is GRPO's (`grpo.py`).

A node is a state of the step table; in ALFWorld, G2PO's environment names nodes in a way of its own (`nodes.py`).

Special cases, as in the official code: a node with one visit has A_node 0; an episode that earned part of the reward
ends in 0 like a failure. A task with one step, where the official code gives NaN, has A_edge 0.

The official code has γ = 0.95, the penalty 0.1 and the success reward 10 written into it; they are parameters here.
Its scripts use w = 1; the paper's best on WebShop is 0.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from hgpo_train.advantages.estimators.gigpo import step_advantages
from hgpo_train.advantages.estimators.grpo import episode_advantages
from hgpo_train.advantages.groups import Groups, add_up, encode_pairs, value_order
from hgpo_train.advantages.nodes import alfworld_nodes
from hgpo_train.advantages.parameters import Mode, Parameters
from hgpo_train.advantages.registry import Estimator, Needs, register
from hgpo_train.advantages.returns import episode_rewards, penalties, rounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_train.advantages.registry import Columns
    from hgpo_train.advantages.steps import Steps


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
            ALFWorld's (`hgpo_train.advantages.nodes`).
    """

    mode: Mode = "mean_std_norm"
    step_weight: float = 1.0
    episode_weight: float = 1.0
    cross_steps: bool = True
    success_reward: float = 10.0
    ddof: Literal[0, 1] = 1
    nodes: Literal["states", "alfworld"] = "states"


def estimate(steps: Steps, p: G2PO, details: bool) -> Columns:
    """G2PO's advantages: `advantage`; with details its parts `episode`, `node`, `edge`, and the state's `value`."""
    if p.nodes == "alfworld":
        node_of = alfworld_nodes(steps.complete("state"), steps.complete("admissible_actions"), steps.first)
    else:
        node_of, _ = steps.context(0, "states")
    nodes = encode_pairs(steps.task, node_of)
    rewards = episode_rewards(steps, p)
    value = node_values(steps, nodes, rewards, p)
    after = np.where(steps.last, np.where(rewards == p.success_reward, p.success_reward, 0.0), np.roll(value, -1))
    node = step_advantages(after - penalties(steps, p), nodes, p.mode, p.ddof, p.epsilon)
    edge = step_advantages(after - value, steps.task, p.mode, p.ddof, p.epsilon)
    episode = np.zeros(steps.height)
    if p.episode_weight:
        episode = episode_advantages(steps, p, mode=p.mode, cross_steps=p.cross_steps, ddof=p.ddof)
    columns: Columns = {"advantage": p.episode_weight * episode + p.step_weight * (node + edge)}
    if details:
        columns |= {"episode": episode, "node": node, "edge": edge, "value": value}
    return columns


def node_values(steps: Steps, nodes: Groups, rewards: NDArray[np.float64], p: G2PO) -> NDArray[np.float64]:
    """V of each step's state; float64 of shape (rows,)."""
    to_go = np.repeat(steps.starts + steps.lengths, steps.lengths) - np.arange(steps.height)
    worth = rounded(rounded(p.gamma**to_go, p) * rewards, p)  # the official code's float32
    order = value_order(worth)
    total = add_up(nodes.code[order], worth[order], nodes.number)
    value: NDArray[np.float64] = (total / nodes.size().clip(min=1))[nodes.code]
    return value


def needs(p: G2PO) -> Needs:
    """States, or what ALFWorld's nodes are made of."""
    return Needs(state_text=True, admissible_actions=True) if p.nodes == "alfworld" else Needs(depth=0)


def detail_columns(p: G2PO) -> dict[str, pl.DataType]:  # noqa: ARG001  (an Estimator's signature)
    """The optional columns."""
    return {name: pl.Float64() for name in ("episode", "node", "edge", "value")}


ESTIMATOR = register(
    Estimator("g2po", "Episode scores, and gains over the graph of states", G2PO, estimate, needs, detail_columns)
)
