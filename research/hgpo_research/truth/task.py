r"""True values and advantages of the steps of one task's rollouts.

Environments are deterministic, so Q_t = r_t + γ V_{t+1}, and V is needed only where rollouts have been. With x a node
at a step, a the responses of the policy there, and C(x) those whose commands some rollout has taken at x:

    V(x) = Σ_{a ∈ C(x)} π(a|x) (r + γ V(x_a))  +  (1 - Σ_{a ∈ C(x)} π(a|x)) · m(x)

m(x) is the mean return of Monte Carlo rollouts whose first response is drawn from the others. All values are estimated
together M times, in independent *replicates* with one rollout from each x (`walks.py`). So V, Q and A = Q - V have M
independent estimates each, whose spread gives their standard errors with all covariances. Two halves of the replicates
give two independent estimates.

If everything that the policy can reach is small enough, V is exact (`exact.py`), and so is it without others' mass.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hgpo_research.truth.estimates import Estimates
from hgpo_research.truth.exact import close, solve
from hgpo_research.truth.graph import UNKNOWN
from hgpo_research.truth.places import (
    compose,
    exact_places,
    solved,
    visits_of,
)
from hgpo_research.truth.walks import play
from hgpo_train.settings import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    check,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hgpo_research.arrays import Floats
    from hgpo_research.truth.graph import Graph
    from hgpo_research.truth.places import Step, Visits, Web
    from hgpo_research.truth.rewards import Rewards

_FEWEST: Final = 4
"""The smallest number of replicates, two for each half."""

_TRIAL: Final = 2
"""The number of replicates from which a budget in steps is converted."""

_CHUNK: Final = 1 << 15
"""The number of estimates of values (places times replicates) that are computed at once."""

_CHUNK_OF_TREES: Final = 1 << 11
"""The same for policies with a memory of their own: a tree is forgotten after it, with the policy's memory of nodes."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much is computed.

    Attributes:
        rollouts: M, the number of Monte Carlo rollouts from each state at a step that has responses left to them;
            rounded up to an even number of at least 4.
        error: Repeat with M more rollouts until the root mean square of the task's advantage errors is at most this.
        steps: Repeat with M more rollouts as long as those of a task take about this number of steps. A trial of two
            rollouts from each state, which is not part of the estimates, determines how many that are, at least 4.
        most_rollouts: The largest number of rollouts, for `error` and `steps`, rounded like `rollouts`. Without both, M
            are made.
        exact_nodes: Number of nodes up to which a task is solved exactly. 0 turns exact solutions off.
        seed: The seed of the rollouts.

    Raises:
        InputError: A value is out of range.
    """

    rollouts: PositiveInt = 16
    error: PositiveFloat | None = None
    steps: PositiveInt | None = None
    most_rollouts: PositiveInt = 4096
    exact_nodes: NonNegativeInt = 300
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        check(self, "parameter")


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause Python's search for cyclic garbage, which would go through a growing graph again and again.

    Graphs that are dropped before the end are freed without it: they contain no cycles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def task_truth(
    graph: Graph,
    trajectories: Sequence[Sequence[Step]],
    rewards: Rewards,
    budget: Budget,
    entropy: Sequence[int],
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
    # V is needed where the rollouts have been, and nowhere else.
    visits = visits_of(graph, trajectories)
    # Rollouts of another policy may have been where this one never goes, which a closed graph does not value.
    if close(graph, budget.exact_nodes) and (graph.first[visits.node] != UNKNOWN).all():
        web = solved(visits, solve(graph, rewards.gamma))
    else:
        web = compose(graph, visits, rewards.gamma)
    exact = exact_places(web)
    # A following place of -1 would be the last one's, and is exact in any case: nothing follows.
    certain = {
        "value": exact[visits.rows],
        "q": (visits.following < 0) | exact[visits.following],
    }
    certain["advantage"] = certain["value"] & certain["q"]
    estimates = {name: Estimates() for name in certain}
    replicate = _replicates(
        graph, web, rewards.gamma, np.random.default_rng(list(entropy))
    )

    # 1. How many replicates there can be.
    steps = 0
    most = _even(
        budget.rollouts
        if budget.error is None and budget.steps is None
        else budget.most_rollouts
    )
    if budget.steps is not None and not exact.all():
        steps += sum(moves for _, moves in replicate(_TRIAL))
        # The trial tells what a replicate costs. It is no part of the estimates, which would be biased by stopping.
        # A budget is rounded down, and `_even` rounds up.
        affordable = (budget.steps - steps) * _TRIAL // steps
        most = min(most, _even(affordable - affordable % 2))

    # 2. Replicates are added until the errors are small, or no more can be.
    replicates = 0
    while True:
        for values, moves in replicate(min(_even(budget.rollouts), most - replicates)):
            for name, found in _of_rows(visits, values, rewards.gamma).items():
                estimates[name].add(found)
            steps += moves
            replicates += values.shape[1]
        errors = {name: each.errors(certain[name]) for name, each in estimates.items()}
        small = (
            budget.error is not None
            and np.sqrt(np.mean(errors["advantage"] ** 2)) <= budget.error
        )
        if small or replicates >= most or exact.all():
            break

    # 3. The columns.
    halves = {name: each.halves for name, each in estimates.items()}
    columns = {name: half.mean(0) for name, half in halves.items()}
    columns |= {f"{name}_error": error for name, error in errors.items()}
    for name in ("value", "advantage"):
        columns[f"{name}_first"], columns[f"{name}_second"] = halves[name]
    columns["rollouts"] = np.where(web.size > 0, replicates, 0)[visits.rows]
    columns["exact"] = certain["advantage"]
    lists = {name: column.tolist() for name, column in columns.items()}
    return lists | _choices(graph, trajectories, visits), steps


def _even(rollouts: int) -> int:
    return max(_FEWEST, rollouts + rollouts % 2)


def _replicates(
    graph: Graph, web: Web, gamma: float, rng: np.random.Generator
) -> Callable[[int], Iterator[tuple[Floats, int]]]:
    """Return a function that makes an even number of replicates, in chunks: estimates (`play`), and moves."""
    kept = graph.nodes, graph.edges.count
    at_once = (_CHUNK_OF_TREES if graph.tree else _CHUNK) // len(web.node)
    most = max(2, at_once // 2 * 2)

    def replicate(count: int) -> Iterator[tuple[Floats, int]]:
        while count > 0:
            # Paths of a tree never merge, so nothing of earlier replicates would be used again.
            if graph.tree:
                graph.forget(*kept)
            keys = rng.integers(
                1 << 64,
                size=(graph.max_steps, min(most, count)),
                dtype=np.uint64,
            )
            yield play(graph, web, gamma, keys)
            count -= most

    return replicate


def _of_rows(visits: Visits, values: Floats, gamma: float) -> dict[str, Floats]:
    """Return V, Q and A of each step of the rollouts from the values of places, of shape (steps, replicates)."""
    value = values[visits.rows]
    later = values[visits.following]
    later[visits.following < 0] = 0.0
    q = visits.gain[:, None] + gamma * later
    return {"value": value, "q": q, "advantage": q - value}


def _choices(
    graph: Graph, trajectories: Sequence[Sequence[Step]], visits: Visits
) -> dict[str, list[Any]]:
    """Return the policy's probabilities at each step of the rollouts, and the index of the response that was given."""
    nodes = visits.node[visits.rows].tolist()
    steps = zip(nodes, chain(*trajectories), strict=True)
    choices = [_choice(graph, node, step) for node, step in steps]
    probabilities = [graph.probabilities(node).tolist() for node in nodes]
    return {"choice": choices, "probabilities": probabilities}


def _choice(graph: Graph, node: int, step: Step) -> int | None:
    """Return the index of the step's response among those of the policy; None if the policy never gives it.

    Without a stored response, or if it is not among them, it is the first one with the same command.
    """
    responses = graph.responses(node)
    if step.response in responses:
        return responses.index(step.response)
    commands = (graph.command(node, response) for response in responses)
    return next(
        (number for number, command in enumerate(commands) if command == step.action),
        None,
    )
