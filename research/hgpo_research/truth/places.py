"""Places of a task: the nodes and steps where rollouts of the run have been, and how their values are composed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from hgpo_envs.errors import InputError
from hgpo_research.truth.graph import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_research.arrays import Booleans, Floats, Integers
    from hgpo_research.truth.graph import Graph


@dataclass(frozen=True)
class Step:
    """A step of a rollout.

    Attributes:
        state: The state text.
        action: The executed command.
        response: The response from which the command was parsed; None if it is not known.
        valid: Whether the action was valid.
        reward: The environment's reward.
    """

    state: str
    action: str
    response: str | None
    valid: bool
    reward: float


@dataclass(frozen=True, slots=True)
class Visits:
    """Where rollouts have been. A place is a node at a step.

    Attributes:
        node: The node of each place.
        step: Its step, ascending.
        children: For each place, the place after each command that was taken there; -1 after the last step.
        rows: For each step of the rollouts, one after the other, its place.
        following: The place after it; -1 after the last step.
        gain: Its reward.
    """

    node: Integers
    step: Integers
    children: list[dict[str, int]]
    rows: Integers
    following: Integers
    gain: Floats


@dataclass(frozen=True, slots=True)
class Web:
    """How the values of places depend on each other and on rollouts. A place is a node at a step.

    V(x) = constant(x) + Σ_links coefficient · V(child) + rest(x) · (the mean return of rollouts from x)

    Attributes:
        node: The node of each place.
        step: Its step, ascending.
        constant: The part of its value that is known.
        rest: The probability that is left to rollouts.
        parent: The place of each link, ascending.
        child: The place, one step later, that it leads to.
        coefficient: The factor of its value.
        size: For each place, how many edges are left to rollouts; 0 if `rest` is 0.
        edges: These edges, place after place.
    """

    node: Integers
    step: Integers
    constant: Floats
    rest: Floats
    parent: Integers
    child: Integers
    coefficient: Floats
    size: Integers
    edges: Integers


def visits_of(graph: Graph, trajectories: Sequence[Sequence[Step]]) -> Visits:
    """Follow all rollouts.

    Raises:
        InputError: The rollouts do not belong to this environment.
    """
    visited: list[tuple[int, int]] = []  # the step and the node of each row
    gains: list[float] = []
    # The rollouts are followed on the graph, which also verifies that they belong to it.
    for trajectory in trajectories:
        node = graph.start
        for number, step in enumerate(trajectory):
            if graph.text(node) != step.state:
                raise InputError(
                    f"task {graph.task.id}: expected the state {graph.text(node)[:80]!r} at step {number}, the run has "
                    f"{step.state[:80]!r}; the environment or its data are not those of the run"
                )
            visited.append((number, node))
            node, move = graph.follow(node, step.action)
            last = number + 1 == len(trajectory)
            gains.append(move.gains[step.valid] + (move.final if last else 0.0))
        if not move.terminated and len(trajectory) != graph.max_steps:
            raise InputError(
                f"task {graph.task.id}: expected a rollout to end after {graph.max_steps} steps or with its task, the "
                f"run has one of {len(trajectory)} steps; use the run's step limit"
            )

    # Places are numbered by their steps, so that the values of later ones can be computed first.
    places = sorted(dict.fromkeys(visited), key=itemgetter(0))
    numbers = {place: number for number, place in enumerate(places)}
    rows = np.array([numbers[place] for place in visited])
    following = np.append(rows[1:], -1)
    following[np.cumsum([len(trajectory) for trajectory in trajectories]) - 1] = -1
    children: list[dict[str, int]] = [{} for _ in places]
    for row, after, step in zip(
        rows.tolist(), following.tolist(), chain(*trajectories), strict=True
    ):
        children[row][step.action] = after
    step_of, node_of = np.array(places).T
    return Visits(node_of, step_of, children, rows, following, np.array(gains))


def solved(visits: Visits, values: Floats) -> Web:
    """Return places with known values, from those of all nodes, of shape (steps, nodes)."""
    nothing = np.empty(0, np.int64)
    return Web(
        node=visits.node,
        step=visits.step,
        constant=values[visits.step, visits.node],
        rest=np.zeros(len(visits.node)),
        parent=nothing,
        child=nothing,
        coefficient=np.empty(0),
        size=np.zeros(len(visits.node), np.int64),
        edges=nothing,
    )


def compose(graph: Graph, visits: Visits, gamma: float) -> Web:
    """Return how the values of places are composed."""
    count = len(visits.node)
    graph.prepare(list(dict.fromkeys(visits.node.tolist())))
    constant: list[float] = []
    left: list[tuple[int, int]] = []  # places and edges
    # places, the places after them, and coefficients
    links: list[tuple[int, int, float]] = []
    for place, (node, children) in enumerate(
        zip(visits.node.tolist(), visits.children, strict=True)
    ):
        known = 0.0
        replies = zip(
            graph.responses(node),
            graph.probabilities(node).tolist(),
            strict=True,
        )
        for edge, (response, probability) in enumerate(replies, int(graph.first[node])):
            after = children.get(graph.command(node, response))
            if after is None:  # no rollout has taken it
                if probability > 0:
                    left.append((place, edge))
                continue
            # Rollouts were followed by their commands, so that this edge may not know yet where it leads.
            if graph.edges.target[edge] == UNKNOWN:
                graph.expand([edge])
            if after < 0:
                known += probability * float(
                    graph.edges.gain[edge] + graph.edges.final[edge]
                )
            else:
                known += probability * float(graph.edges.gain[edge])
                links.append((place, after, probability * gamma))
        constant.append(known)
    # Both lists are in the order of places, which `walks` relies on.
    owner, edges = np.array(left, np.int64).reshape(-1, 2).T
    parent, child, coefficient = np.array(links, np.float64).reshape(-1, 3).T
    return Web(
        node=visits.node,
        step=visits.step,
        constant=np.array(constant),
        # integers if empty
        rest=np.bincount(owner, graph.edges.probability[edges], count).astype(
            np.float64
        ),
        parent=parent.astype(np.int64),
        child=child.astype(np.int64),
        coefficient=coefficient,
        size=np.bincount(owner, minlength=count),
        edges=edges,
    )


def exact_places(web: Web) -> Booleans:
    """Return whether the value of each place is exact: no rollout is below it."""
    exact: Booleans = web.rest == 0
    # Children are later places: in descending order of the parents, what is below a place is final.
    for parent, child, coefficient in zip(
        web.parent[::-1],
        web.child[::-1],
        web.coefficient[::-1],
        strict=True,
    ):
        exact[parent] &= exact[child] or coefficient == 0
    return exact
