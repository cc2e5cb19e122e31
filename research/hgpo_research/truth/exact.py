"""Exact values of small graphs, by backward induction over all nodes and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hgpo_research.truth.graph import UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_research.truth.graph import Graph


def close(graph: Graph, roots: list[int], most_nodes: int) -> bool:
    """Expand everything that can be reached from nodes within the step limit, if it is small.

    Args:
        graph: The graph.
        roots: Nodes of step 0, and others that may be reached by actions that the policy never takes.
        most_nodes: Number of nodes at which the attempt is given up.

    Returns:
        Whether the expansion is complete.
    """
    seen, level = set(roots), list(dict.fromkeys(roots))
    for _ in range(graph.max_steps):
        if graph.nodes > most_nodes:
            return False
        graph.prepare(level)
        following: list[int] = []
        for node in level:
            first = int(graph.first[node])
            numbers = range(first, first + int(graph.size[node]))
            unknown = [edge for edge in numbers if graph.edges.target[edge] == UNKNOWN]
            graph.expand([node] * len(unknown), unknown)
            for edge in numbers:
                target = int(graph.edges.target[edge])
                if target not in seen and not graph.edges.ended[edge]:
                    seen.add(target)
                    following.append(target)
            if graph.nodes > most_nodes:
                return False
        if not following:
            return True
        level = following
    return True


def solve(graph: Graph, gamma: float) -> NDArray[np.float64]:
    """Return the values of all nodes of a closed graph (`close`).

    V_t(n) = Σ_e p(e) (r(e) + γ V_{t+1}(n'(e))), where V after the step limit and after the task's end is 0.

    Args:
        graph: The graph.
        gamma: γ.

    Returns:
        float64 of shape (steps, nodes): the value of a node at each step. Where a node cannot be reached at a step, the
        value has no meaning.
    """
    count, edges = graph.edges.count, graph.edges
    prepared = np.flatnonzero(graph.first[: graph.nodes] != UNKNOWN)
    order = prepared[np.argsort(graph.first[prepared])]  # edges are stored in this order
    node = np.repeat(order, graph.size[order])
    probability = edges.probability[:count]
    known = edges.target[:count] != UNKNOWN
    target = np.where(known, edges.target[:count], 0)
    gain, final = np.where(known, edges.gain[:count], 0.0), np.where(known, edges.final[:count], 0.0)
    ended = np.where(known, edges.ended[:count], True)
    values = np.zeros((graph.max_steps + 1, graph.nodes))
    for step in reversed(range(graph.max_steps)):
        last = ended | (step + 1 == graph.max_steps)
        backup = gain + np.where(last, final, gamma * values[step + 1][target])
        values[step] = np.bincount(node, probability * backup, graph.nodes)
    return values[:-1]
