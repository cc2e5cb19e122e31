"""Rollouts of tabular policies: all seeds and rollouts of a task move together, one NumPy operation for all.

The uniform number of a choice is a hash of the stream, seed, task, rollout and step. So the rollouts of a seed do not
depend on which others are played beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from hgpo_research.random_numbers import subkey, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_research.arrays import Booleans, Floats, Integers
    from hgpo_research.tabular.policy import TabularPolicy


SCORES: Final = ("entropy", "logprobs", "reference_logprobs")
"""The scores that tabular policies have, as of `hgpo_train.scores`. A choice is a response of one token."""


class Rollouts(NamedTuple):
    """Rows of one task's rollouts, one per step, by rollout and step.

    Attributes:
        seed: The position of the seed.
        rollout: The number of the rollout among all of the task.
        step: The step.
        node: The node.
        edge: The edge that was taken.
        last: Whether the rollout ends here.
        score: What the task ends with: 1 if it is won, in graded tasks the score; 0 before its last step.
    """

    seed: Integers
    rollout: Integers
    step: Integers
    node: Integers
    edge: Integers
    last: Booleans
    score: Floats


class Move(NamedTuple):
    """The next step of all rollouts that have not ended.

    Attributes:
        rollout: The numbers of the rollouts.
        step: Their steps.
        node: Their nodes.
        edge: The edges that they take.
        ended: Whether they end here.
    """

    rollout: Integers
    step: Integers
    node: Integers
    edge: Integers
    ended: Booleans


def play(
    policy: TabularPolicy,
    task: int,
    seed: Integers,
    keys: Integers,
    node: Integers,
    step: Integers,
) -> list[Move]:
    """Play rollouts to their ends, and return their moves.

    Args:
        policy: The policies.
        task: The number of the task.
        seed: For each rollout, the position of its seed.
        keys: For each rollout, a hash that decides all its choices.
        node: The nodes where rollouts begin.
        step: The steps at which they begin.
    """
    graph = policy.tasks.graphs[task]
    moves: list[Move] = []
    alive = np.arange(len(node))
    # The rollouts that have not ended move by one step; ended ones leave the arrays.
    while len(alive):
        choices = policy.choices(task, seed[alive], node)
        cumulative = choices.probability.cumsum(1)
        drawn = uniform(subkey(keys[alive], step))
        # the last choice, in case the sum is rounded below 1
        possible = (cumulative < cumulative[:, -1:]).sum(1)
        slot = np.minimum((cumulative <= drawn[:, None]).sum(1), possible)
        edge = choices.edge[np.arange(len(alive)), slot]
        graph.follow(edge)
        edges = graph.graph.edges
        ended = edges.ended[edge] | (step + 1 >= policy.tasks.max_steps)
        moves.append(Move(alive, step, node, edge, ended))
        alive = alive[~ended]
        step = step[~ended] + 1
        node = edges.target[edge[~ended]]
    return moves


def rollouts(
    policy: TabularPolicy, group_size: int, stream: Sequence[int]
) -> list[Rollouts]:
    """Play a group of rollouts of each task with each seed.

    Args:
        policy: The policies.
        group_size: Number of rollouts of each task and seed.
        stream: What the random numbers depend on, besides the seed.
    """
    batch = []
    for task, graph in enumerate(policy.tasks.graphs):
        seed, number = (
            each.ravel() for each in np.indices((len(policy.seeds), group_size))
        )
        # A rollout's key has its seed and number, so that it plays alike whatever is beside it.
        keys = subkey(policy.keys[seed], *stream, task, number)
        starts = np.full(len(seed), graph.graph.start)
        moves = play(policy, task, seed, keys, starts, np.zeros(len(seed), np.int64))
        columns: Any = [np.concatenate(column) for column in zip(*moves, strict=True)]
        order = np.lexsort((columns[1], columns[0]))  # by rollout, then by step
        rollout, step, node, edge, ended = (column[order] for column in columns)
        score = np.where(ended, graph.graph.edges.final[edge], 0.0)
        batch.append(Rollouts(seed[rollout], rollout, step, node, edge, ended, score))
    return batch


def success(policy: TabularPolicy, batch: Sequence[Rollouts]) -> Floats:
    """Return the success rate (or the mean score) of each seed, the mean over tasks."""
    seeds = len(policy.seeds)
    rates = [
        np.bincount(rows.seed, rows.score, seeds)
        / np.bincount(rows.seed, rows.last, seeds)
        for rows in batch
    ]
    means: Floats = np.mean(rates, axis=0)
    return means


def step_table(
    policy: TabularPolicy, batch: Sequence[Rollouts], *, scores: bool = False
) -> pl.DataFrame:
    """Return the rollouts of all tasks as one step table. `run` is the seed's position: groups and batches never mix.

    The reward is the score at the end: 1 for a success, whatever the benchmark's own rewards.

    Args:
        policy: The policies.
        batch: Their rollouts.
        scores: Whether to add `SCORES`. The reference policy is the one before it learned.
    """
    first = policy.first() if scores else None
    parts = []
    before = 0  # the number of rollouts of the earlier tasks
    for task, (rows, graph) in enumerate(zip(batch, policy.tasks.graphs, strict=True)):
        edges = graph.graph.edges
        # The gain of an edge is that of `graphs.COUNTED`: negative where its action is invalid, else 0.
        part: dict[str, Any] = {
            "run": rows.seed,
            "iteration": np.zeros_like(rows.seed),
            "task_id": np.full_like(rows.seed, task),
            "trajectory": before + rows.rollout,
            "step": rows.step,
            "reward": rows.score,
            "won": rows.score >= 1.0,
            "score": edges.score[rows.edge],
            "action_valid": edges.gain[rows.edge] == 0,
            "state_hash": graph.state[rows.node],
            "action_hash": graph.action[rows.edge],
            "next_state_hash": graph.state[edges.target[rows.edge]],
        }
        if first is not None:
            part["entropy"], log_probability = _entropy(policy, task, rows)
            part["logprobs"] = _single(log_probability)
            part["reference_logprobs"] = _single(_entropy(first, task, rows)[1])
        parts.append(pl.DataFrame(part))
        before += int(rows.rollout.max()) + 1
    return pl.concat(parts)


def _entropy(policy: TabularPolicy, task: int, rows: Rollouts) -> tuple[Floats, Floats]:
    """Return the entropy of the policies at each row, and the logarithm of the probability of the row's choice."""
    edge, _, probability = policy.choices(task, rows.seed, rows.node)
    possible = probability > 0
    logarithm = np.log(np.where(possible, probability, 1.0))
    taken = possible & (edge == rows.edge[:, None])
    return -(probability * logarithm).sum(1), (logarithm * taken).sum(1)


def _single(values: Floats) -> pl.Series:
    """Return lists of one number each, as the scores of a response's tokens are stored."""
    return pl.Series(values, dtype=pl.Float32).reshape((-1, 1)).arr.to_list()
