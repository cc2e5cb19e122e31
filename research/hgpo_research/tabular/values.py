"""True values of tabular policies: exact where a task's graph is complete and small, else means of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hgpo_research.random_numbers import subkey
from hgpo_research.tabular.rollouts import play

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_research.tabular.policy import TabularPolicy
    from hgpo_research.tabular.rollouts import Rollouts

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

_NODES: Final = 300
"""The largest number of nodes of a graph whose values are exact."""


def exact_values(policy: TabularPolicy, task: int, gamma: float) -> Floats:
    """Return V by backward induction on a complete graph, float64 of shape (steps + 1, seeds, nodes)."""
    graph, seeds, limit = policy.tasks.graphs[task], len(policy.seeds), policy.tasks.max_steps
    nodes = np.unique(graph.owner)
    values = np.zeros((limit + 1, seeds, graph.graph.nodes))
    seed, node = (each.ravel() for each in np.meshgrid(np.arange(seeds), nodes, indexing="ij"))
    choices, edges = policy.choices(task, seed, node), graph.graph.edges
    edge, going = choices.edge, ~edges.ended[choices.edge]
    for step in reversed(range(limit)):
        last = edges.final[edge] if step + 1 == limit else np.where(going, 0.0, edges.final[edge])
        after = last + np.where(going, gamma * values[step + 1][seed[:, None], edges.target[edge]], 0.0)
        values[step][seed, node] = (choices.probability * after).sum(1)
    return values


def sampled_values(
    policy: TabularPolicy, task: int, rows: Rollouts, gamma: float, samples: int, stream: Sequence[int]
) -> Floats:
    """Return the mean discounted success of further rollouts from each row's node; equal states share them."""
    states, of_row = np.unique(np.stack([rows.seed, rows.step, rows.node]), axis=1, return_inverse=True)
    seed, step, node = (np.repeat(each, samples) for each in states)
    graph = policy.tasks.graphs[task]
    keys = subkey(subkey(policy.keys[seed], step), graph.state[node])
    for part in (*stream, task, np.tile(np.arange(samples), states.shape[1])):
        keys = subkey(keys, np.asarray(part, np.int64))
    totals = np.zeros(len(seed))
    for move in play(policy, task, seed, keys, node, step):
        sample, at, _, edge = (column[move.ended] for column in move[:4])
        totals[sample] = graph.graph.edges.final[edge] * gamma ** (at - step[sample])
    means: Floats = totals.reshape(-1, samples).mean(1)[of_row.ravel()]
    return means


def true_advantages(
    policy: TabularPolicy, batch: Sequence[Rollouts], *, gamma: float, samples: int, stream: Sequence[int]
) -> list[Floats]:
    """Return Q - V of the rows of each task, for success as the reward.

    Args:
        policy: The policies.
        batch: The rollouts of each task.
        gamma: γ.
        samples: Number of rollouts from each state if values are not exact; 0 requires exact ones.
        stream: What their random numbers depend on.
    """
    advantages = []
    for task, rows in enumerate(batch):
        if policy.tasks.graphs[task].close(_NODES):
            value = exact_values(policy, task, gamma)[rows.step, rows.seed, rows.node]
        else:
            value = sampled_values(policy, task, rows, gamma, samples, stream)
        later = np.where(rows.last, rows.won, gamma * np.append(value[1:], 0.0))
        advantages.append(later - value)
    return advantages
