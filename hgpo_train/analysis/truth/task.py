r"""True values and advantages of the steps of one task's rollouts.

Environments are deterministic, so Q_t = r_t + γ V_{t+1}, and V is needed only where rollouts have been. With x a node
at a step, a the responses of the policy there, and C(x) those whose commands some rollout has taken at x:

    V(x) = Σ_{a ∈ C(x)} π(a|x) (r + γ V(x_a))  +  (1 - Σ_{a ∈ C(x)} π(a|x)) · m(x)

m(x) is the mean return of Monte Carlo rollouts whose first response is drawn from the others. So each V is a constant
plus a linear combination of independent means, V(x) = b(x) + Σ_y w(x, y) m(y), and standard errors of V, Q and
A = Q - V follow with all covariances. Two halves of the rollouts give two independent estimates of each m.

If everything that the policy can reach is small enough, V is exact (`exact.py`), and so is it without others' mass.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hgpo_envs.errors import InputError
from hgpo_train.analysis.truth.exact import close, solve
from hgpo_train.analysis.truth.graph import UNKNOWN
from hgpo_train.analysis.truth.walks import Web, play
from hgpo_train.settings import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hgpo_train.analysis.truth.graph import Graph
    from hgpo_train.analysis.truth.rewards import Rewards

_PRIOR: Final = 4
"""Degrees of freedom with which the task's pooled variance enters each variance: a few rollouts that happen to have
equal returns must not look exact."""

_FEWEST: Final = 4
"""The smallest number of replicates, two for each half."""

_CHUNK: Final = 1 << 17
"""The number of estimates of values (places times replicates) that are computed at once."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much is computed.

    Attributes:
        rollouts: M, the number of Monte Carlo rollouts for a step if all of its probability is left to them; rounded up
            to at least 4 (2 for each half) where any is.
        error: Repeat with M more rollouts until the root mean square of the task's advantage errors is at most this;
            None stops after the first M.
        most_rollouts: The largest number of rollouts for a step, for `error`.
        exact_nodes: Number of nodes up to which a task is solved exactly. 0 turns exact solutions off.
        seed: The seed of the rollouts.

    Raises:
        InputError: A value is out of range.
    """

    rollouts: int = 16
    error: float | None = None
    most_rollouts: int = 4096
    exact_nodes: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        check(self, "parameter")
        for name, least in (("rollouts", 1), ("most_rollouts", 1), ("exact_nodes", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name}: expected an integer of at least {least}, received {getattr(self, name)}")
        if self.error is not None and not self.error > 0:
            raise InputError(f"error: expected a number above 0, received {self.error}")


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
class _Visits:
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


class _Estimates:
    """Means and variances of one quantity per step of the rollouts, over replicates.

    Attributes:
        halves: The sums over the replicates with even and with odd numbers, float64 of shape (2, steps).
    """

    def __init__(self) -> None:
        self.count = 0

    def add(self, values: NDArray[np.float64]) -> None:
        """Add replicates, an even number of them: float64 of shape (steps, replicates)."""
        if not self.count:
            self._shift = values[:, 0].copy()
            self._sums, self._squares = np.zeros((2, len(values))), np.zeros(len(values))
        away = values - self._shift[:, None]
        self.count += values.shape[1]
        self._sums += away[:, ::2].sum(1), away[:, 1::2].sum(1)
        self._squares += np.square(away).sum(1)

    @property
    def halves(self) -> NDArray[np.float64]:
        """The means over the replicates with even and with odd numbers, float64 of shape (2, steps)."""
        means: NDArray[np.float64] = self._shift + self._sums / (self.count / 2)
        return means

    def errors(self, certain: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the standard errors of the means over all replicates, float64 of shape (steps,).

        Args:
            certain: Whether a step's quantity is exact. Its error is 0.
        """
        deviations = np.maximum(self._squares - self._sums.sum(0) ** 2 / self.count, 0)
        freedom, open_ = self.count - 1, ~certain
        pooled = deviations[open_].mean() / freedom if open_.any() else 0.0
        variance = (deviations + _PRIOR * pooled) / (freedom + _PRIOR)
        return np.where(certain, 0.0, np.sqrt(variance / self.count))


def task_truth(
    graph: Graph, trajectories: Sequence[Sequence[Step]], rewards: Rewards, budget: Budget, entropy: Sequence[int]
) -> tuple[dict[str, list[Any]], int]:
    """Compute the truth of all steps of a task's rollouts.

    Args:
        graph: The task's graph.
        trajectories: The rollouts.
        rewards: The definition of rewards.
        budget: How much is computed.
        entropy: What the random numbers depend on: non-negative integers.

    Returns:
        The columns of the truth table (docs/truth.md) without keys, and the number of Monte Carlo steps.

    Raises:
        InputError: The rollouts do not belong to this environment.
    """
    with _without_collector():
        return _task_truth(graph, trajectories, rewards, budget, entropy)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause Python's search for cyclic garbage, which would go through the growing graph again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _task_truth(
    graph: Graph, trajectories: Sequence[Sequence[Step]], rewards: Rewards, budget: Budget, entropy: Sequence[int]
) -> tuple[dict[str, list[Any]], int]:
    visits = _visits(graph, trajectories, rewards)
    if close(graph, [graph.start], budget.exact_nodes) and all(graph.first[node] != UNKNOWN for node in visits.node):
        web = _solved(visits, solve(graph, rewards.gamma))
    else:
        web = _compose(graph, visits, rewards.gamma)
    exact = _exact(web)
    certain = _certain(visits, web, exact)
    rng = np.random.default_rng(list(entropy))
    estimates = {name: _Estimates() for name in certain}
    steps = replicates = 0
    most = max(_FEWEST, budget.most_rollouts)
    while True:
        for count in _chunks(min(_even(budget.rollouts), most - replicates), len(visits.node)):
            keys = rng.integers(1 << 64, size=(graph.max_steps, count), dtype=np.uint64)
            values, moves = play(graph, web, rewards.gamma, keys)
            steps += moves
            for name, found in _of_rows(visits, values, rewards.gamma).items():
                estimates[name].add(found)
            replicates += count
        errors = estimates["advantage"].errors(certain["advantage"])
        small = budget.error is None or np.sqrt(np.mean(errors**2)) <= budget.error
        if small or replicates + 2 > most or exact.all():
            break
    numbers = _numbers(visits, web, estimates, certain, replicates)
    return {**numbers, **_choices(graph, trajectories, visits)}, steps


def _even(rollouts: int) -> int:
    return max(_FEWEST, rollouts + rollouts % 2)


def _chunks(count: int, places: int) -> Iterator[int]:
    """Divide an even number of replicates into even numbers that fit into memory."""
    most = max(2, _CHUNK // places // 2 * 2)
    while count > 0:
        yield min(most, count)
        count -= most


def _visits(graph: Graph, trajectories: Sequence[Sequence[Step]], rewards: Rewards) -> _Visits:
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
            gain = rewards.gain(move.reward, valid=step.valid)
            gains.append(gain + (rewards.final(won=move.won, score=move.score) if last else 0.0))
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
    return _Visits(
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


def _solved(visits: _Visits, values: NDArray[np.float64]) -> Web:
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


def _compose(graph: Graph, visits: _Visits, gamma: float) -> Web:
    """Return how the values of places are composed."""
    graph.prepare(list(dict.fromkeys(visits.node)))
    constant, links, left, sizes = list[float](), list[tuple[int, int, float]](), list[int](), list[int]()
    for number, (node, children) in enumerate(zip(visits.node, visits.children, strict=True)):
        first, known, others = int(graph.first[node]), 0.0, list[int]()
        probabilities = graph.probabilities(node).tolist()
        for edge, (response, probability) in enumerate(
            zip(graph.responses(node), probabilities, strict=True), start=first
        ):
            command = graph.command(node, response)
            if command not in children:
                others += [edge] if probability > 0 else []
                continue
            if graph.edges.target[edge] == UNKNOWN:
                graph.expand([node], [edge])
            child = children[command]
            known += probability * float(graph.edges.gain[edge] + (graph.edges.final[edge] if child is None else 0.0))
            if child is not None:
                links.append((number, child, probability * gamma))
        constant.append(known)
        left += others
        sizes.append(len(others))
    size = np.array(sizes)
    first = np.cumsum(size) - size
    edges = np.array(left, np.int64)
    parent, child, coefficient = zip(*links, strict=True) if links else ((), (), ())
    return Web(
        node=np.array(visits.node),
        step=np.array(visits.step),
        constant=np.array(constant),
        rest=np.bincount(np.repeat(np.arange(len(size)), size), graph.edges.probability[edges], len(size)),
        parent=np.array(parent, np.int64),
        child=np.array(child, np.int64),
        coefficient=np.array(coefficient, np.float64),
        first=first,
        size=size,
        edges=edges,
    )


def _exact(web: Web) -> NDArray[np.bool_]:
    """Return whether the value of each place is exact: no rollout is below it."""
    exact = web.rest == 0
    for parent, child, coefficient in zip(web.parent[::-1], web.child[::-1], web.coefficient[::-1], strict=True):
        exact[parent] &= exact[child] or coefficient == 0
    return exact


def _certain(visits: _Visits, web: Web, exact: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
    """Return whether V, Q and A of each step of the rollouts are exact."""
    value, q = exact[visits.rows], (visits.following < 0) | exact[visits.following]
    return {"value": value, "q": q, "advantage": value & q}


def _of_rows(visits: _Visits, values: NDArray[np.float64], gamma: float) -> dict[str, NDArray[np.float64]]:
    """Return V, Q and A of each step of the rollouts from the values of places, of shape (steps, replicates)."""
    value, later = values[visits.rows], values[visits.following]
    later[visits.following < 0] = 0.0
    q = visits.gain[:, None] + gamma * later
    return {"value": value, "q": q, "advantage": q - value}


def _numbers(
    visits: _Visits,
    web: Web,
    estimates: Mapping[str, _Estimates],
    certain: Mapping[str, NDArray[np.bool_]],
    replicates: int,
) -> dict[str, list[Any]]:
    """Return the columns of numbers."""
    halves = {name: estimate.halves for name, estimate in estimates.items()}
    columns = {name: half.mean(0) for name, half in halves.items()}
    columns |= {f"{name}_error": estimates[name].errors(certain[name]) for name in estimates}
    for name in ("value", "advantage"):
        columns[f"{name}_first"], columns[f"{name}_second"] = halves[name]
    begun = np.where(web.size > 0, replicates, 0)[visits.rows]
    return {
        **{name: column.tolist() for name, column in columns.items()},
        "rollouts": begun.tolist(),
        "exact": certain["advantage"].tolist(),
    }


def _choices(graph: Graph, trajectories: Sequence[Sequence[Step]], visits: _Visits) -> dict[str, list[Any]]:
    """Return the policy's probabilities at each step of the rollouts, and the index of the response that was given."""
    nodes = [visits.node[place] for place in visits.rows]
    steps = (step for trajectory in trajectories for step in trajectory)
    return {
        "choice": [_choice(graph, node, step) for node, step in zip(nodes, steps, strict=True)],
        "probabilities": [graph.probabilities(node).tolist() for node in nodes],
    }


def _choice(graph: Graph, node: int, step: Step) -> int | None:
    """Return the index of the step's response among those of the policy; None if the policy never gives it.

    Without a stored response, or if it is not among them, it is the first one with the same command.
    """
    responses = graph.responses(node)
    if step.response in responses:
        return responses.index(step.response)
    commands = (graph.command(node, response) for response in responses)
    return next((number for number, command in enumerate(commands) if command == step.action), None)
