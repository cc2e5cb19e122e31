"""Policies whose logits are the parameters of tasks (`graphs.Parameters`), for many seeds at once.

The logit of a choice in a node is the first one of the node's graph, plus noise, plus what was learned:

    z(a | node) = z_0(a | node) + taste · ε(seed, parameter) + θ(parameter)

ε has variance 1 and is a function of the seed and of the parameter's name alone, so a seed is the same policy whatever
the order of discovery.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hgpo_research.random_numbers import subkey, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_research.arrays import Booleans, Floats, Integers
    from hgpo_research.tabular.graphs import TaskSet
    from hgpo_research.tabular.rollouts import Rollouts


class Choices(NamedTuple):
    """The choices of some nodes, arrays of shape (nodes, most choices of a node); absent ones have probability 0.

    Attributes:
        edge: The edge.
        parameter: Its parameter.
        probability: Its probability.
    """

    edge: Integers
    parameter: Integers
    probability: Floats


class TabularPolicy:
    """A policy for each seed.

    Args:
        tasks: The tasks.
        seeds: The seeds of the noise.
        taste: The standard deviation of the noise.

    Attributes:
        keys: For each seed, what its random choices depend on.
    """

    def __init__(
        self, tasks: TaskSet, seeds: Sequence[int], taste: float = 1.0
    ) -> None:
        self.tasks = tasks
        self.seeds = np.array(seeds, np.int64)
        self._taste = taste
        self.keys = self.seeds
        self._parameters = tasks.graphs[0].parameters
        self._table = np.zeros((len(self.seeds), 0))  # wider than what is known
        self._known = 0  # the number of parameters that it contains

    def copies(self, seed: int, count: int) -> TabularPolicy:
        """Return equal policies, what the seed at a position has learned, whose random choices are independent."""
        other = TabularPolicy(self.tasks, [int(self.seeds[seed])] * count, self._taste)
        other._table = np.repeat(self._table[seed : seed + 1], count, 0)
        other._known = self._known
        # Another key than the seed's own: copies differ from the policy that goes on learning.
        other.keys = subkey(other.seeds, np.arange(1, count + 1))
        return other

    def on(self, tasks: TaskSet) -> TabularPolicy:
        """Return the same policies for other tasks with the same parameters. They do not learn any more."""
        other = copy(self)
        other.tasks = tasks
        return other

    def first(self) -> TabularPolicy:
        """Return the policies before they learned anything."""
        other = TabularPolicy(self.tasks, self.seeds.tolist(), self._taste)
        other.keys = self.keys
        return other

    def table(self) -> Floats:
        """Return the noise plus what was learned, of shape (seeds, parameters)."""
        names = self._parameters.names
        count = len(names)
        if count > self._table.shape[1]:
            # Twice as wide as needed: parameters are discovered a few at a time.
            room = np.empty((len(self.seeds), count))
            self._table = np.concatenate([self._table[:, : self._known], room], 1)
        if count > self._known:
            # A uniform number of an interval of length 1 has the variance 1 / 12.
            noise = (
                uniform(subkey(self.seeds[:, None], names[None, self._known :])) - 0.5
            )
            self._table[:, self._known : count] = self._taste * np.sqrt(12.0) * noise
            self._known = count
        return self._table[:, :count]

    def choices(self, task: int, seed: Integers, node: Integers) -> Choices:
        """Return the choices at nodes, each for the seed at a position."""
        compiled = self.tasks.graphs[task]
        compiled.visit(node)
        graph = compiled.graph
        size = graph.size[node][:, None]
        # Nodes have different numbers of choices: rows are filled up with choices of probability 0.
        slot = np.arange(size.max())
        edge = np.minimum(graph.first[node][:, None] + slot, graph.edges.count - 1)
        parameter = compiled.parameter[edge]
        logit = (
            np.log(graph.edges.probability[edge])
            + self.table()[seed[:, None], parameter]
        )
        logit[slot >= size] = -np.inf
        # Without the largest logit, no exponential is infinite.
        power = np.exp(logit - logit.max(1, keepdims=True))
        return Choices(edge, parameter, power / power.sum(1, keepdims=True))

    def add(self, change: Floats) -> None:
        """Add a change, of shape (seeds, parameters), to what was learned."""
        self.table()[:, : change.shape[1]] += change


class Visits:
    """The choices at the steps of rollouts, from which gradients are computed.

    Gradients are arrays with one entry for each pair of a seed and a parameter that the rollouts have met; `dense` has
    them for all parameters, of shape (seeds, parameters).

    Args:
        policy: The policies, which must not change as long as this is used.
        rollouts: The rollouts of each task, whose rows are one after another here.
    """

    def __init__(self, policy: TabularPolicy, rollouts: Sequence[Rollouts]) -> None:
        self.rollouts = rollouts
        self._seeds = len(policy.seeds)
        self._count = (
            sum(int((rows.step == 0).sum()) for rows in rollouts) / self._seeds
        )
        self._seed = np.concatenate([rows.seed for rows in rollouts])  # of each row
        # All choices first: they may discover parameters, which make the table wider.
        choices = [
            policy.choices(task, rows.seed, rows.node)
            for task, rows in enumerate(rollouts)
        ]
        self._width = policy.table().shape[1]

        # Entries are numbered by seed and parameter. Below, a place is seed · width + parameter.
        places = []
        taken = []
        probabilities = []
        sizes = []
        for graph, (_, parameter, probability), rows in zip(
            policy.tasks.graphs, choices, rollouts, strict=True
        ):
            possible = probability > 0
            places.append((rows.seed[:, None] * self._width + parameter)[possible])
            taken.append(graph.parameter[rows.edge])
            probabilities.append(probability[possible])
            sizes.append(possible.sum(1))
        self._probability = np.concatenate(probabilities)  # of each choice of each row
        self._row = np.repeat(np.arange(len(self._seed)), np.concatenate(sizes))
        self._place, self._entry = np.unique(
            np.concatenate(places), return_inverse=True
        )
        self._taken = np.searchsorted(
            self._place, self._seed * self._width + np.concatenate(taken)
        )

    def gradient(self, advantages: Sequence[Floats]) -> Floats:
        """Return the policy gradient Σ A ∇ log π of each seed, divided by its number of rollouts.

        Args:
            advantages: The advantages of each task's rows.
        """
        advantage = np.concatenate(advantages)
        entries = len(self._place)
        # ∇ log π(a) with respect to the logit of b is 1{a = b} - π(b).
        total = np.bincount(self._taken, advantage, entries)
        total -= np.bincount(
            self._entry, advantage[self._row] * self._probability, entries
        )
        gradient: Floats = total / self._count
        return gradient

    def dense(self, gradient: Floats) -> Floats:
        """Return a gradient of shape (seeds, parameters)."""
        array = np.zeros(self._seeds * self._width)
        array[self._place] = gradient
        return array.reshape(self._seeds, -1)

    def sparse(self, gradient: Floats) -> Floats:
        """Return the entries of an array of shape (seeds, parameters) that the rollouts have met."""
        entries: Floats = gradient.ravel()[self._place]
        return entries

    def dot(self, first: Floats, second: Floats) -> Floats:
        """Return the inner products of each seed's gradients."""
        return np.bincount(
            self._place // self._width, first * second, self._seeds
        ).astype(np.float64, copy=False)

    def products(
        self,
        first: Floats,
        second: Floats,
        kept: Sequence[Booleans] | None = None,
    ) -> Floats:
        """Return xᵀ F y of each seed, where F is the mean Fisher information of the steps that it visited.

        A step along x changes the mean KL divergence per step by half of xᵀ F x, to second order.

        Args:
            first: x, a gradient.
            second: y.
            kept: The rows of each task that count; None for all.
        """
        x = first[self._entry]
        y = second[self._entry]
        p = self._probability
        rows = len(self._seed)
        # At a step, xᵀ F y is the covariance of the changes of the logits x and y over the policy's choices.
        means = np.bincount(self._row, p * x, rows) * np.bincount(
            self._row, p * y, rows
        )
        covariance = np.bincount(self._row, p * x * y, rows) - means
        weight = (
            np.ones(rows) if kept is None else np.concatenate(kept).astype(np.float64)
        )
        total = np.bincount(self._seed, covariance * weight, self._seeds)
        return total / np.bincount(self._seed, weight, self._seeds)
