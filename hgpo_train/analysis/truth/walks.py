"""Rollouts on a task's graph: all move together, one NumPy operation a step for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hgpo_train.analysis.truth.graph import UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_train.analysis.truth.graph import Graph


def walk(
    graph: Graph,
    node: NDArray[np.int64],
    step: NDArray[np.int64],
    edge: NDArray[np.int64],
    gamma: float,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], int]:
    """Play rollouts to their ends and return their discounted rewards.

    Args:
        graph: The graph, which is expanded where the rollouts go.
        node: The node in which each rollout begins, int64 of shape (n,). The nodes have distributions.
        step: The step at which it begins, from 0.
        edge: The first edge that it follows; later ones are drawn.
        gamma: γ.
        rng: The source of uniform numbers.

    Returns:
        The sums of rewards, float64 of shape (n,), discounted to the first step, and the number of steps.
    """
    edges, total, steps = graph.edges, np.zeros(len(node)), 0
    walker, weight = np.arange(len(node)), np.ones(len(node))
    node, step, edge = node.copy(), step.copy(), edge.copy()
    while len(walker):
        steps += len(walker)
        new, where = np.unique(edge[edges.target[edge] == UNKNOWN], return_index=True)
        if len(new):
            origin = node[edges.target[edge] == UNKNOWN][where]
            graph.expand(origin.tolist(), new.tolist())
        last = edges.ended[edge] | (step + 1 >= graph.max_steps)
        total[walker] += weight * (edges.gain[edge] + np.where(last, edges.final[edge], 0.0))
        going = ~last
        walker, weight, step, node = walker[going], weight[going] * gamma, step[going] + 1, edges.target[edge[going]]
        if not len(walker):
            break
        unprepared = node[graph.first[node] == UNKNOWN]
        if len(unprepared):
            graph.prepare(np.unique(unprepared).tolist())
        edge = draw(graph, node, rng.random(len(node)))
    return total, steps


def draw(graph: Graph, node: NDArray[np.int64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the edge of each node that a uniform number in [0, 1) selects. The nodes have distributions."""
    first, last = graph.first[node], graph.first[node] + graph.size[node] - 1
    # Edges are stored in the order in which nodes were prepared, so a search over all of them would need that order.
    low, high = first.copy(), last.copy()
    upper, target = graph.edges.upper, node + uniform
    for _ in range(int(graph.size[node].max()).bit_length()):
        middle = (low + high) >> 1
        beyond = upper[middle] <= target
        low = np.where(beyond, np.minimum(middle + 1, last), low)
        high = np.where(beyond, high, middle)
    return low
