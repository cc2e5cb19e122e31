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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hgpo_envs.errors import InputError
from hgpo_train.analysis.truth.exact import close, solve
from hgpo_train.analysis.truth.graph import UNKNOWN
from hgpo_train.analysis.truth.walks import walk
from hgpo_train.settings import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from hgpo_train.analysis.truth.graph import Graph
    from hgpo_train.analysis.truth.rewards import Rewards

    Combination = tuple[NDArray[np.int64], NDArray[np.float64]]
    """Numbers of means m, each once, ascending, and their weights."""

_PRIOR: int = 4
"""Degrees of freedom with which the task's pooled variance enters each variance: a few rollouts that happen to have
equal returns must not look exact."""


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


@dataclass(slots=True)
class _Place:
    """A node at a step where rollouts have been: its value, and how it is composed.

    Attributes:
        node: The node.
        step: The step.
        children: For each command that was taken here, the number of the place after it; None after the last step.
        constant: b(x), or the exact value.
        parts: w(x, ·).
        rest: The probability that is left to rollouts.
        choices: The edges to which it belongs, and the upper ends of their intervals in [0, 1).
        exact: Whether the value is exact.
    """

    node: int
    step: int
    children: dict[str, int | None] = field(default_factory=dict)
    constant: float = 0.0
    parts: Combination = (np.empty(0, np.int64), np.empty(0))
    rest: float = 0.0
    choices: tuple[NDArray[np.int64], NDArray[np.float64]] = (np.empty(0, np.int64), np.empty(0))
    exact: bool = False


class _Means:
    """The Monte Carlo means m of all places, in two halves."""

    def __init__(self, places: int) -> None:
        self.count = np.zeros((2, places))
        self._sum, self._squares = np.zeros((2, places)), np.zeros((2, places))

    def add(self, place: NDArray[np.int64], half: NDArray[np.int64], total: NDArray[np.float64]) -> None:
        """Add the returns of rollouts."""
        shape = self.count.shape
        where = half * shape[1] + place
        self.count += np.bincount(where, minlength=self.count.size).reshape(shape)
        self._sum += np.bincount(where, total, self.count.size).reshape(shape)
        self._squares += np.bincount(where, total * total, self.count.size).reshape(shape)

    @property
    def halves(self) -> NDArray[np.float64]:
        """The means of both halves, float64 of shape (2, places); 0 without rollouts."""
        return self._sum / np.maximum(self.count, 1)

    @property
    def variance(self) -> NDArray[np.float64]:
        """The variance of the mean of both halves, float64 of shape (places,); 0 without rollouts."""
        count = self.count.sum(0)
        deviations = np.maximum(self._squares.sum(0) - self._sum.sum(0) ** 2 / np.maximum(count, 1), 0)
        freedom = np.maximum(count - 1, 0)
        pooled = deviations.sum() / max(freedom.sum(), 1)
        each = (deviations + _PRIOR * pooled) / (freedom + _PRIOR)
        return np.where(count > 0, each / np.maximum(count, 1), 0.0)


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
    places, visits = _places(graph, trajectories)
    if close(graph, [graph.start], budget.exact_nodes) and _only_policy(graph, places):
        _fill_exact(places, solve(graph, rewards.gamma))
    else:
        _compose(graph, places, rewards.gamma)
    means, steps = _Means(len(places)), 0
    rng = np.random.default_rng(list(entropy))
    rollouts = 0
    while True:
        steps += _roll(graph, places, means, rewards.gamma, budget.rollouts, rng)
        rollouts += budget.rollouts
        columns = _columns(graph, trajectories, places, visits, means, rewards)
        errors = np.array(columns["advantage_error"])
        small = budget.error is None or np.sqrt(np.mean(errors**2)) <= budget.error
        if small or rollouts >= budget.most_rollouts:
            return columns, steps


def _places(graph: Graph, trajectories: Sequence[Sequence[Step]]) -> tuple[list[_Place], list[list[int]]]:
    """Return all places where rollouts have been, and for each rollout the numbers of its places."""
    places: list[_Place] = []
    numbers: dict[tuple[int, int], int] = {}
    visits: list[list[int]] = []
    for trajectory in trajectories:
        node, visit, before = graph.start, list[int](), ""
        for number, step in enumerate(trajectory):
            if graph.text(node) != step.state:
                raise InputError(
                    f"task {graph.task.id}: expected the state {graph.text(node)[:80]!r} at step {number}, the run has "
                    f"{step.state[:80]!r}; the environment or its data are not those of the run"
                )
            place = numbers.setdefault((node, number), len(places))
            if place == len(places):
                places.append(_Place(node, number))
            if visit:
                places[visit[-1]].children[before] = place
            visit.append(place)
            node, move = graph.follow(node, step.action)
            before = step.action
        if not move.terminated and len(visit) != graph.max_steps:
            raise InputError(
                f"task {graph.task.id}: expected a rollout to end after {graph.max_steps} steps or with its task, the "
                f"run has one of {len(visit)} steps; use the run's step limit"
            )
        places[visit[-1]].children[before] = None
        visits.append(visit)
    return places, visits


def _only_policy(graph: Graph, places: Sequence[_Place]) -> bool:
    """Return whether all places were expanded: rollouts of other policies may have been elsewhere."""
    return all(graph.first[place.node] != UNKNOWN for place in places)


def _fill_exact(places: Sequence[_Place], values: NDArray[np.float64]) -> None:
    for place in places:
        place.constant, place.exact = float(values[place.step, place.node]), True


def _compose(graph: Graph, places: Sequence[_Place], gamma: float) -> None:
    """Compute how each place's value is composed, from the last steps backwards."""
    graph.prepare(list(dict.fromkeys(place.node for place in places)))
    for number in sorted(range(len(places)), key=lambda number: -places[number].step):
        place = places[number]
        node, first = place.node, int(graph.first[place.node])
        left: list[tuple[int, float]] = []
        parts: list[tuple[float, Combination]] = []
        for offset, (response, probability) in enumerate(
            zip(graph.responses(node), graph.probabilities(node).tolist(), strict=True)
        ):
            command = graph.command(node, response)
            if command not in place.children:
                left.append((first + offset, probability))
                continue
            edge, child = first + offset, place.children[command]
            if graph.edges.target[edge] == UNKNOWN:
                graph.expand([node], [edge])
            value = float(graph.edges.gain[edge])
            if child is None:
                value += float(graph.edges.final[edge])
            else:
                value += gamma * places[child].constant
                parts.append((probability * gamma, places[child].parts))
            place.constant += probability * value
        left = [(edge, probability) for edge, probability in left if probability > 0]
        if left:
            place.rest = sum(probability for _, probability in left)
            upper = np.cumsum([probability for _, probability in left])
            place.choices = np.array([edge for edge, _ in left]), upper / upper[-1]
            parts.append((place.rest, (np.array([number]), np.ones(1))))
        place.parts = _sum(parts)
        place.exact = not len(place.parts[0])


def _sum(parts: Sequence[tuple[float, Combination]]) -> Combination:
    """Return a sum of combinations, each multiplied by a factor."""
    if not parts:
        return np.empty(0, np.int64), np.empty(0)
    numbers = np.concatenate([numbers for _, (numbers, _) in parts])
    weights = np.concatenate([factor * weights for factor, (_, weights) in parts])
    if len(parts) == 1:
        return numbers, weights
    each, where = np.unique(numbers, return_inverse=True)
    return each, np.bincount(where, weights, len(each)).astype(np.float64)


def _roll(
    graph: Graph, places: Sequence[_Place], means: _Means, gamma: float, rollouts: int, rng: np.random.Generator
) -> int:
    """Add rollouts to every mean, in proportion to the probability that is left to it. Return the number of steps."""
    place: list[NDArray[np.int64]] = []
    half: list[NDArray[np.int64]] = []
    edge: list[NDArray[np.int64]] = []
    for number, here in enumerate(places):
        if not here.rest:
            continue
        count = max(2, int(np.ceil(rollouts * here.rest / 2)))
        edges, upper = here.choices
        strata = np.tile((np.arange(count)) / count, 2) + rng.random(2 * count) / count
        edge.append(edges[np.minimum(np.searchsorted(upper, strata, side="right"), len(edges) - 1)])
        place.append(np.full(2 * count, number))
        half.append(np.repeat([0, 1], count))
    if not place:
        return 0
    which = np.concatenate(place)
    node, step = (np.array([getattr(one, name) for one in places], np.int64)[which] for name in ("node", "step"))
    total, steps = walk(graph, node, step, np.concatenate(edge), gamma, rng)
    means.add(which, np.concatenate(half), total)
    return steps


def _columns(
    graph: Graph,
    trajectories: Sequence[Sequence[Step]],
    places: Sequence[_Place],
    visits: Sequence[Sequence[int]],
    means: _Means,
    rewards: Rewards,
) -> dict[str, list[Any]]:
    """Return the columns of the truth table, without the keys, for the steps of all rollouts."""
    halves, variance = means.halves, means.variance
    rollouts = means.count.sum(0).astype(int).tolist()
    value = [[one.constant + float(m[one.parts[0]] @ one.parts[1]) for one in places] for m in halves]
    squared = [float(variance[one.parts[0]] @ one.parts[1] ** 2) for one in places]
    names = ("value", "q", "advantage", "value_error", "q_error", "advantage_error", "value_first", "value_second")
    more = ("advantage_first", "advantage_second", "rollouts", "exact", "choice", "probabilities")
    columns: dict[str, list[Any]] = {name: [] for name in (*names, *more)}
    gamma = rewards.gamma
    nothing: Combination = (np.empty(0, np.int64), np.empty(0))
    for trajectory, visit in zip(trajectories, visits, strict=True):
        for number, (step, here) in enumerate(zip(trajectory, visit, strict=True)):
            place, last = places[here], number + 1 == len(visit)
            _, move = graph.follow(place.node, step.action)
            gain = rewards.gain(move.reward, valid=step.valid)
            gain += rewards.final(won=move.won, score=move.score) if last else 0.0
            following = None if last else visit[number + 1]
            q = [gain + (0.0 if following is None else gamma * value[half][following]) for half in (0, 1)]
            after = nothing if following is None else places[following].parts
            spread = _sum([(gamma, after), (-1.0, place.parts)])
            first, second = value[0][here], value[1][here]
            row = (
                (first + second) / 2,
                (q[0] + q[1]) / 2,
                (q[0] - first + q[1] - second) / 2,
                np.sqrt(squared[here]),
                0.0 if following is None else gamma * np.sqrt(squared[following]),
                np.sqrt(float(variance[spread[0]] @ spread[1] ** 2)),
                first,
                second,
                q[0] - first,
                q[1] - second,
                rollouts[here],
                place.exact and (following is None or places[following].exact),
                _choice(graph, place.node, step),
                graph.probabilities(place.node).tolist(),
            )
            for name, entry in zip(columns, row, strict=True):
                columns[name].append(entry)
    return columns


def _choice(graph: Graph, node: int, step: Step) -> int | None:
    """Return the index of the step's response among those of the policy; None if the policy never gives it.

    Without a stored response, or if it is not among them, it is the first one with the same command.
    """
    responses = graph.responses(node)
    if step.response in responses:
        return responses.index(step.response)
    commands = (graph.command(node, response) for response in responses)
    return next((number for number, command in enumerate(commands) if command == step.action), None)
