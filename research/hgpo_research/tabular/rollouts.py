"""Rollouts of tabular policies: all seeds and rollouts of a task move together, one NumPy operation for all.

The uniform number of a choice is a hash of the stream, seed, task, rollout and step. So the rollouts of a seed do not
depend on which others are played beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from hgpo_research.random_numbers import subkey, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_research.tabular.policy import TabularPolicy

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Rollouts:
    """Rows of one task's rollouts, one per step, by rollout and step.

    Attributes:
        seed: The position of the seed.
        rollout: The number of the rollout among all of the task.
        step: The step.
        node: The node.
        edge: The edge that was taken.
        last: Whether the rollout ends here.
        won: Whether the step wins the task.
    """

    seed: Integers
    rollout: Integers
    step: Integers
    node: Integers
    edge: Integers
    last: NDArray[np.bool_]
    won: NDArray[np.bool_]


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
    ended: NDArray[np.bool_]


def play(
    policy: TabularPolicy, task: int, seed: Integers, keys: Integers, node: Integers, step: Integers
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
    graph, moves = policy.tasks.graphs[task], list[Move]()
    alive = np.arange(len(node))
    while len(alive):
        choices = policy.choices(task, seed[alive], node)
        cumulative, drawn = choices.probability.cumsum(1), uniform(subkey(keys[alive], step))
        possible = (cumulative < cumulative[:, -1:]).sum(1)  # the last choice, in case the sum is rounded below 1
        slot = np.minimum((cumulative <= drawn[:, None]).sum(1), possible)
        edge = choices.edge[np.arange(len(alive)), slot]
        graph.follow(edge)
        edges = graph.graph.edges
        ended = edges.ended[edge] | (step + 1 >= policy.tasks.max_steps)
        moves.append(Move(alive, step, node, edge, ended))
        alive, step, node = alive[~ended], step[~ended] + 1, edges.target[edge[~ended]]
    return moves


def rollouts(policy: TabularPolicy, group_size: int, stream: Sequence[int]) -> list[Rollouts]:
    """Play a group of rollouts of each task with each seed.

    Args:
        policy: The policies.
        group_size: Number of rollouts of each task and seed.
        stream: What the random numbers depend on, besides the seed.
    """
    batch, seeds = list[Rollouts](), len(policy.seeds)
    for task, graph in enumerate(policy.tasks.graphs):
        seed, number = (each.ravel() for each in np.indices((seeds, group_size)))
        keys = policy.keys[seed]
        for part in (*stream, task, number):
            keys = subkey(keys, np.asarray(part, np.int64))
        starts, zeros = np.full(len(seed), graph.graph.start), np.zeros(len(seed), np.int64)
        moves = play(policy, task, seed, keys, starts, zeros)
        columns: Any = [np.concatenate(column) for column in zip(*moves, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        rows = Move(*(column[order] for column in columns))
        won = rows.ended & (graph.graph.edges.final[rows.edge] > 0)
        batch.append(Rollouts(seed[rows.rollout], rows.rollout, rows.step, rows.node, rows.edge, rows.ended, won))
    return batch


def success(policy: TabularPolicy, batch: Sequence[Rollouts]) -> Floats:
    """Return the success rate of each seed, the mean over tasks."""
    rates = [np.bincount(rows.seed, rows.won, len(policy.seeds)) for rows in batch]
    counts = [np.bincount(rows.seed[rows.last], minlength=len(policy.seeds)) for rows in batch]
    means: Floats = np.mean([rate / count for rate, count in zip(rates, counts, strict=True)], axis=0)
    return means


def step_table(policy: TabularPolicy, batch: Sequence[Rollouts]) -> pl.DataFrame:
    """Return the rollouts of all tasks as one step table. `run` is the seed's position: groups and batches never mix.

    The reward is 1 for a success, whatever the benchmark's own.
    """
    parts, offset = [], 0
    for task, (rows, graph) in enumerate(zip(batch, policy.tasks.graphs, strict=True)):
        edges = graph.graph.edges
        parts.append(
            pl.DataFrame(
                {
                    "run": rows.seed,
                    "iteration": np.zeros_like(rows.seed),
                    "task_id": np.full_like(rows.seed, task),
                    "trajectory": offset + rows.rollout,
                    "step": rows.step,
                    "reward": rows.won.astype(np.float64),
                    "won": rows.won,
                    "score": rows.won.astype(np.float64),
                    "action_valid": edges.gain[rows.edge] == 0,
                    "state_hash": graph.state[rows.node],
                    "action_hash": edges.response[rows.edge].view(np.int64),
                    "next_state_hash": graph.state[edges.target[rows.edge]],
                }
            )
        )
        offset += int(rows.rollout.max()) + 1
    return pl.concat(parts)
