"""Policies with one logit per task, state text and choice, for many seeds at once.

The logit of a choice in a node is the first one of the node's graph, plus noise, plus what was learned:

    z(a | node) = z_0(a | node) + taste · ε(seed, parameter) + θ(parameter)

ε has variance 1 and is a function of the seed and of the parameter's name alone, so a seed is the same policy whatever
the order of discovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hgpo_envs.hashing import link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_research.tabular.graphs import TaskSet
    from hgpo_research.tabular.rollouts import Rollouts

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

_UNUSED: Final = np.uint64(11)
"""The bits of a hash that a float64 cannot hold."""


def uniform(hashes: Integers) -> Floats:
    """Return the uniform numbers in [0, 1) of hashes."""
    return (hashes.view(np.uint64) >> _UNUSED).astype(np.float64) * 2.0**-53


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

    def __init__(self, tasks: TaskSet, seeds: Sequence[int], taste: float = 1.0) -> None:
        self.tasks, self.seeds, self._taste = tasks, np.array(seeds, np.int64), taste
        self.keys = self.seeds
        self._tables = [np.zeros((len(self.seeds), 0)) for _ in tasks.graphs]

    def copies(self, seed: int, count: int) -> TabularPolicy:
        """Return equal policies, what the seed at a position has learned, whose random choices are independent."""
        other = TabularPolicy(self.tasks, [int(self.seeds[seed])] * count, self._taste)
        other._tables = [np.repeat(table[seed : seed + 1], count, 0) for table in self._tables]
        other.keys = link(other.seeds, np.arange(1, count + 1))
        return other

    def table(self, task: int) -> Floats:
        """Return the noise plus what was learned, of shape (seeds, parameters)."""
        table, names = self._tables[task], self.tasks.graphs[task].names
        if len(names) > table.shape[1]:
            noise = uniform(link(self.seeds[:, None], names[None, table.shape[1] :])) - 0.5
            table = self._tables[task] = np.append(table, self._taste * np.sqrt(12.0) * noise, 1)
        return table

    def choices(self, task: int, seed: Integers, node: Integers) -> Choices:
        """Return the choices at nodes, each for the seed at a position."""
        graph = self.tasks.graphs[task]
        graph.visit(node)
        first, size = graph.graph.first[node][:, None], graph.graph.size[node][:, None]
        slot = np.arange(size.max())
        edge = np.minimum(first + slot, len(graph.owner) - 1)
        parameter = graph.parameter[edge]
        logit = np.log(graph.graph.edges.probability[edge]) + self.table(task)[seed[:, None], parameter]
        logit[slot >= size] = -np.inf
        power = np.exp(logit - logit.max(1, keepdims=True))
        return Choices(edge, parameter, power / power.sum(1, keepdims=True))

    def gradient(self, rollouts: Sequence[Rollouts], advantages: Sequence[Floats]) -> list[Floats]:
        """Return the policy gradient Σ A ∇ log π of each seed, divided by its number of rollouts.

        Args:
            rollouts: The rollouts of each task.
            advantages: The advantages of their rows.

        Returns:
            For each task, an array of shape (seeds, parameters).
        """
        count = sum(int((each.step == 0).sum()) for each in rollouts) / len(self.seeds)
        gradients = []
        for task, (rows, advantage) in enumerate(zip(rollouts, advantages, strict=True)):
            choices = self.choices(task, rows.seed, rows.node)
            shape = self.table(task).shape
            start = rows.seed * shape[1]
            change = -advantage[:, None] * choices.probability
            total = np.bincount((start[:, None] + choices.parameter).ravel(), change.ravel(), shape[0] * shape[1])
            taken = self.tasks.graphs[task].parameter[rows.edge]
            total += np.bincount(start + taken, advantage, shape[0] * shape[1])
            gradients.append(total.reshape(shape) / count)
        return gradients

    def products(self, rollouts: Sequence[Rollouts], first: list[Floats], second: list[Floats]) -> Floats:
        """Return xᵀ F y of each seed, where F is the mean Fisher information of the steps that it visited.

        A step along x changes the mean KL divergence per step by half of xᵀ F x, to second order.
        """
        total = np.zeros(len(self.seeds))
        rows_of = np.zeros(len(self.seeds))
        for task, rows in enumerate(rollouts):
            choices = self.choices(task, rows.seed, rows.node)
            x, y = (each[task][rows.seed[:, None], choices.parameter] for each in (first, second))
            p = choices.probability
            covariance = (p * x * y).sum(1) - (p * x).sum(1) * (p * y).sum(1)
            total += np.bincount(rows.seed, covariance, len(total))
            rows_of += np.bincount(rows.seed, minlength=len(total))
        return total / rows_of

    def add(self, changes: Sequence[Floats]) -> None:
        """Add changes, of the shape of gradients, to what was learned."""
        for task, change in enumerate(changes):
            self.table(task)[:, : change.shape[1]] += change
