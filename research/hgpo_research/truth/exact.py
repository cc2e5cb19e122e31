"""Exact values of small graphs, by backward induction over all nodes and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hgpo_research.truth.graph import UNKNOWN

if TYPE_CHECKING:
    from hgpo_research.arrays import Floats
    from hgpo_research.truth.graph import Graph


def close(graph: Graph, most_nodes: int) -> bool:
    """Expand everything that the policy can reach within the step limit, if it is small.

    Args:
        graph: The graph.
        most_nodes: Number of nodes at which the attempt is given up.

    Returns:
        Whether the expansion is complete.
    """
    seen = {graph.start}
    level = [graph.start]
    for _ in range(graph.max_steps):
        if graph.nodes > most_nodes:
            return False
        graph.prepare(level)
        following: list[int] = []
        for node in level:
            edges = np.arange(graph.first[node], graph.first[node] + graph.size[node])
            graph.expand(edges[graph.edges.target[edges] == UNKNOWN].tolist())
            # A node of more than one level is expanded once, although its value differs by step.
            reached = graph.edges.target[edges[~graph.edges.ended[edges]]]
            new = [
                target
                for target in dict.fromkeys(reached.tolist())
                if target not in seen
            ]
            seen.update(new)
            following += new
            if graph.nodes > most_nodes:
                return False
        level = following
    return True


def solve(graph: Graph, gamma: float) -> Floats:
    """Return the values of all nodes of a closed graph (`close`).

    V_t(n) = Σ_e p(e) (r(e) + γ V_{t+1}(n'(e))), where V after the step limit and after the task's end is 0.

    Args:
        graph: The graph.
        gamma: γ.

    Returns:
        float64 of shape (steps, nodes): the value of a node at each step. Where a node cannot be reached at a step, the
        value has no meaning.
    """
    edges = graph.edges
    known = slice(edges.count)
    target = edges.target[known]
    # The row after the last step stays 0: no value is left there.
    values = np.zeros((graph.max_steps + 1, graph.nodes))
    for step in reversed(range(graph.max_steps)):
        last = edges.ended[known] | (step + 1 == graph.max_steps)
        backup = edges.gain[known] + np.where(
            last, edges.final[known], gamma * values[step + 1][target]
        )
        values[step] = np.bincount(
            edges.node[known],
            edges.probability[known] * backup,
            graph.nodes,
        )
    return values[:-1]
