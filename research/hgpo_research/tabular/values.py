"""True values of tabular policies: exact where a task's graph is complete and small, else means of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hgpo_envs.errors import InputError
from hgpo_research.random_numbers import subkey
from hgpo_research.tabular.rollouts import play

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_research.arrays import Floats
    from hgpo_research.tabular.policy import TabularPolicy
    from hgpo_research.tabular.rollouts import Rollouts

_NODES: Final = 300
"""The largest number of nodes of a graph whose values are exact."""


def exact_values(policy: TabularPolicy, task: int, gamma: float) -> Floats:
    """Return V by backward induction on a complete graph, float64 of shape (steps + 1, seeds, nodes)."""
    graph = policy.tasks.graphs[task].graph
    edges = graph.edges
    seeds = len(policy.seeds)
    limit = policy.tasks.max_steps
    # All nodes that have choices, for each seed.
    nodes = np.unique(edges.node[: edges.count])
    seed = np.repeat(np.arange(seeds), len(nodes))
    node = np.tile(nodes, seeds)
    choices = policy.choices(task, seed, node)
    edge = choices.edge
    values = np.zeros((limit + 1, seeds, graph.nodes))
    for step in reversed(range(limit)):
        last = edges.ended[edge] | (step + 1 == limit)
        later = gamma * values[step + 1][seed[:, None], edges.target[edge]]
        after = np.where(last, edges.final[edge], later)
        values[step][seed, node] = (choices.probability * after).sum(1)
    return values


def sampled_values(
    policy: TabularPolicy,
    task: int,
    rows: Rollouts,
    gamma: float,
    samples: int,
    stream: Sequence[int],
) -> Floats:
    """Return the mean discounted success of further rollouts from each row's node; equal states share them."""
    # Rows of one seed, step and node have the same value.
    states, of_row = np.unique(
        np.stack([rows.seed, rows.step, rows.node]),
        axis=1,
        return_inverse=True,
    )
    seed, step, node = (np.repeat(each, samples) for each in states)
    graph = policy.tasks.graphs[task]
    number = np.tile(np.arange(samples), states.shape[1])
    # A node's number depends on when it was discovered, so its state is part of the key instead.
    keys = subkey(
        policy.keys[seed],
        step,
        graph.state[node],
        *stream,
        task,
        number,
    )
    totals = np.zeros(len(seed))
    for move in play(policy, task, seed, keys, node, step):
        sample, at, _, edge = (column[move.ended] for column in move[:4])
        totals[sample] = graph.graph.edges.final[edge] * gamma ** (at - step[sample])
    means: Floats = totals.reshape(-1, samples).mean(1)[of_row.ravel()]
    return means


def true_advantages(
    policy: TabularPolicy,
    batch: Sequence[Rollouts],
    *,
    gamma: float,
    samples: int,
    stream: Sequence[int],
) -> list[Floats]:
    """Return Q - V of the rows of each task, for the score as the reward.

    Args:
        policy: The policies.
        batch: The rollouts of each task.
        gamma: γ.
        samples: Number of rollouts from each state if values are not exact; 0 requires exact ones.
        stream: What their random numbers depend on.

    Raises:
        InputError: A task has chance and is too large for exact values.
    """
    advantages = []
    for task, rows in enumerate(batch):
        if policy.tasks.graphs[task].close(_NODES):
            values = exact_values(policy, task, gamma)
            value = values[rows.step, rows.seed, rows.node]
            q = _exact_q(policy, task, rows, values, gamma)
        elif policy.tasks.graphs[task].chance:
            raise InputError(
                f"true advantages under chance: expected a task of at most {_NODES} nodes; use smaller ones"
            )
        else:
            value = sampled_values(policy, task, rows, gamma, samples, stream)
            # Transitions are deterministic: Q is the discounted value of the next row.
            q = np.where(rows.last, rows.score, gamma * np.append(value[1:], 0.0))
        advantages.append(q - value)
    return advantages


def _exact_q(
    policy: TabularPolicy, task: int, rows: Rollouts, values: Floats, gamma: float
) -> Floats:
    """Return Q of the rows, the mean over what chance can make of their actions."""
    # The row after is the rollout's next step, because rows are by rollout and step.
    later = np.where(
        rows.last,
        rows.score,
        gamma * np.append(values[rows.step, rows.seed, rows.node][1:], 0.0),
    )
    graph = policy.tasks.graphs[task]
    if not graph.chance:
        return later
    edges = graph.graph.edges
    edge, _, probability = policy.choices(task, rows.seed, rows.node)
    # The edges of one action differ by chance alone, over which the policy has no power.
    same = graph.action[edge] == graph.action[rows.edge][:, None]
    weight = probability * same
    last = edges.ended[edge] | (rows.step[:, None] + 1 == policy.tasks.max_steps)
    next_step = rows.step[:, None] + 1
    after = gamma * values[next_step, rows.seed[:, None], edges.target[edge]]
    worth = np.where(last, edges.final[edge], after)
    means: Floats = (weight * worth).sum(1) / weight.sum(1)
    return means
