"""Places of a task: the nodes and steps where rollouts of the run have been, and how their values are composed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hgpo_envs.errors import InputError
from hgpo_research.truth.graph import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_research.truth.graph import Graph

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]


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
        children: For each place, the place after each command that was taken there; None after the last step.
        rows: For each step of the rollouts, one after the other, its place.
        following: The place after it; -1 after the last step.
        gain: Its reward.
    """

    node: list[int]
    step: list[int]
    children: list[dict[str, int | None]]
    rows: NDArray[np.int64]
    following: NDArray[np.int64]
    gain: NDArray[np.float64]


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
        first: For each place, its first number in `edges`.
        size: For each place, how many edges are left to rollouts; 0 if `rest` is 0.
        edges: These edges.
    """

    node: Integers
    step: Integers
    constant: Floats
    rest: Floats
    parent: Integers
    child: Integers
    coefficient: Floats
    first: Integers
    size: Integers
    edges: Integers


def visits_of(graph: Graph, trajectories: Sequence[Sequence[Step]]) -> Visits:
    """Follow all rollouts.

    Raises:
        InputError: The rollouts do not belong to this environment.
    """
    places: dict[tuple[int, int], int] = {}  # (step, node) -> number in the order of discovery
    children: list[dict[str, int | None]] = []
    rows, following, gains = list[int](), list[int](), list[float]()
    for trajectory in trajectories:
        node, before = graph.start, -1
        for number, step in enumerate(trajectory):
            if graph.text(node) != step.state:
                raise InputError(
                    f"task {graph.task.id}: expected the state {graph.text(node)[:80]!r} at step {number}, the run has "
                    f"{step.state[:80]!r}; the environment or its data are not those of the run"
                )
            place = places.setdefault((number, node), len(places))
            if place == len(children):
                children.append({})
            if number:
                children[before][trajectory[number - 1].action] = following[-1] = place
            before = place
            node, move = graph.follow(node, step.action)
            last = number + 1 == len(trajectory)
            gains.append(move.gains[step.valid] + (move.final if last else 0.0))
            rows.append(place)
            following.append(-1)
        if not move.terminated and len(trajectory) != graph.max_steps:
            raise InputError(
                f"task {graph.task.id}: expected a rollout to end after {graph.max_steps} steps or with its task, the "
                f"run has one of {len(trajectory)} steps; use the run's step limit"
            )
        children[before][trajectory[-1].action] = None
    found = list(places)
    order = sorted(range(len(found)), key=lambda number: found[number][0])
    place_of = np.empty(len(order) + 1, np.int64)
    place_of[order], place_of[-1] = np.arange(len(order)), -1
    return Visits(
        node=[found[number][1] for number in order],
        step=[found[number][0] for number in order],
        children=[
            {action: None if child is None else int(place_of[child]) for action, child in children[number].items()}
            for number in order
        ],
        rows=place_of[rows],
        following=place_of[following],
        gain=np.array(gains),
    )


def solved(visits: Visits, values: NDArray[np.float64]) -> Web:
    """Return places with known values."""
    node, step = np.array(visits.node), np.array(visits.step)
    nothing, zeros = np.empty(0, np.int64), np.zeros(len(node), np.int64)
    return Web(
        node=node,
        step=step,
        constant=values[step, node],
        rest=np.zeros(len(node)),
        parent=nothing,
        child=nothing,
        coefficient=np.empty(0),
        first=zeros,
        size=zeros,
        edges=nothing,
    )


def compose(graph: Graph, visits: Visits, gamma: float) -> Web:
    """Return how the values of places are composed."""
    graph.prepare(list(dict.fromkeys(visits.node)))
    constant, left, sizes = list[float](), list[int](), list[int]()
    parent, child, coefficient = list[int](), list[int](), list[float]()
    for number, (node, children) in enumerate(zip(visits.node, visits.children, strict=True)):
        known, others = 0.0, list[int]()
        probabilities, begin = graph.probabilities(node).tolist(), int(graph.first[node])
        for edge, (response, probability) in enumerate(zip(graph.responses(node), probabilities, strict=True), begin):
            command = graph.command(node, response)
            if command not in children:
                others += [edge] if probability > 0 else []
                continue
            if graph.edges.target[edge] == UNKNOWN:
                graph.expand([node], [edge])
            after = children[command]
            known += probability * float(graph.edges.gain[edge] + (graph.edges.final[edge] if after is None else 0.0))
            if after is not None:
                parent.append(number)
                child.append(after)
                coefficient.append(probability * gamma)
        constant.append(known)
        left += others
        sizes.append(len(others))
    size, edges = np.array(sizes), np.array(left, np.int64)
    owner = np.repeat(np.arange(len(size)), size)
    return Web(
        node=np.array(visits.node),
        step=np.array(visits.step),
        constant=np.array(constant),
        rest=np.bincount(owner, graph.edges.probability[edges], len(size)).astype(np.float64),  # integers if empty
        parent=np.array(parent, np.int64),
        child=np.array(child, np.int64),
        coefficient=np.array(coefficient, np.float64),
        first=np.cumsum(size) - size,
        size=size,
        edges=edges,
    )


def exact_places(web: Web) -> NDArray[np.bool_]:
    """Return whether the value of each place is exact: no rollout is below it."""
    exact: NDArray[np.bool_] = web.rest == 0
    for parent, child, coefficient in zip(web.parent[::-1], web.child[::-1], web.coefficient[::-1], strict=True):
        exact[parent] &= exact[child] or coefficient == 0
    return exact
