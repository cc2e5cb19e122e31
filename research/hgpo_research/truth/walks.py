"""Rollouts on a task's graph with common random numbers: all move together, one NumPy operation a step for all of them.

The step t of *replicate* j has a random key. A response's *delay* is an exponential variable that is a function of this
key and of the response's text alone, divided by the response's probability; the response with the smallest delay is
taken. This draws from the policy's distribution, and rollouts of one replicate that are at one step in different nodes
take the same response where they can. So they often merge (coalescing random walks): they cost less, and their
difference has less noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hgpo_envs.hashing import mix
from hgpo_research.random_numbers import unit
from hgpo_research.truth.graph import UNKNOWN

if TYPE_CHECKING:
    from hgpo_research.arrays import Floats, Hashes, Integers
    from hgpo_research.truth.graph import Graph
    from hgpo_research.truth.places import Web


@dataclass(frozen=True, slots=True)
class _Moves:
    """The moves of all rollouts at one step, those of rollouts that began earlier first, then those that begin.

    Attributes:
        gain: The reward.
        replicate: The number of the replicate.
        going: The moves that do not end their episode.
        place: For these, the place that they lead to; -1 if it is none.
        following: For these, the rollout that continues from there, if it is none.
        begun: The places where rollouts begin, one for each replicate.
    """

    gain: Floats
    replicate: Integers
    going: Integers
    place: Integers
    following: Integers
    begun: Integers


def play(graph: Graph, web: Web, gamma: float, keys: Hashes) -> tuple[Floats, int]:
    """Return independent estimates of the values of all places.

    Each replicate has one rollout from each place with `rest`. A rollout ends with the episode, or at a place, whose
    estimate in the same replicate is the value of what follows: that depends on keys of later steps only, so each
    estimate is unbiased.

    Args:
        graph: The graph, which is expanded where the rollouts go.
        web: The places.
        gamma: γ.
        keys: Random keys, uint64 of shape (steps, replicates).

    Returns:
        The estimates, float64 of shape (places, replicates), and the number of moves of rollouts.
    """
    steps, replicates = keys.shape
    # The places of step t are those from bounds[t] to bounds[t + 1]; after the last step, there are none.
    bounds = np.searchsorted(web.step, np.arange(steps + 2))

    # Forwards: all rollouts move, and begin at the places of each step.
    moves: list[_Moves] = []
    node = replicate = np.empty(0, np.int64)
    for step in range(steps):
        here = np.arange(bounds[step], bounds[step + 1])
        after = np.arange(bounds[step + 1], bounds[step + 2])
        made, node, replicate = _move(
            graph,
            web,
            keys[step],
            node,
            replicate,
            here,
            after,
            last=step + 1 == steps,
        )
        moves.append(made)

    # Backwards: the returns of the rollouts, and from these the values of the places where they began.
    values = np.empty((len(web.node), replicates))
    following = np.empty(0)
    for step in reversed(range(steps)):
        made = moves[step]
        total = made.gain
        later = np.empty(len(made.going))
        ends = made.place >= 0
        later[ends] = values[made.place[ends], made.replicate[made.going][ends]]
        later[~ends] = following[made.following]
        total[made.going] += gamma * later
        # The rollouts that begin are the last ones, place after place, so that they are a matrix (`_move`).
        begins = len(total) - len(made.begun) * replicates
        following = total[:begins]
        here = np.arange(bounds[step], bounds[step + 1])
        # The links of a step's places lead to places of the next step, whose values are known by now.
        if len(here):
            links = slice(*np.searchsorted(web.parent, (here[0], here[-1] + 1)))
            values[here] = web.constant[here, None]
            np.add.at(
                values,
                web.parent[links],
                web.coefficient[links, None] * values[web.child[links]],
            )
            values[made.begun] += web.rest[made.begun, None] * total[begins:].reshape(
                -1, replicates
            )
    return values, sum(len(made.gain) for made in moves)


def _move(
    graph: Graph,
    web: Web,
    keys: Hashes,
    node: Integers,
    replicate: Integers,
    here: Integers,
    after: Integers,
    *,
    last: bool,
) -> tuple[_Moves, Integers, Integers]:
    """Begin rollouts at the places of a step and move all.

    Args:
        graph: The graph.
        web: The places.
        keys: The keys of the step, of shape (replicates,).
        node: The nodes of the rollouts that began earlier.
        replicate: Their replicates.
        here: The places of this step.
        after: The places of the next step.
        last: Whether it is the last step before the step limit.

    Returns:
        The moves, and the nodes and replicates of the rollouts that continue.
    """
    edges = graph.edges
    replicates = len(keys)

    # 1. Each rollout chooses among the edges of its node; one that begins, among those that no rollout of the run took.
    begun = here[web.size[here] > 0]
    first = np.cumsum(web.size) - web.size
    old = _ranges(graph.first[node], graph.size[node])
    new = web.edges[
        _ranges(
            np.repeat(first[begun], replicates),
            np.repeat(web.size[begun], replicates),
        )
    ]
    sizes = np.concatenate([graph.size[node], np.repeat(web.size[begun], replicates)])
    replicate = np.concatenate([replicate, np.tile(np.arange(replicates), len(begun))])
    edge = _first(
        graph,
        np.concatenate([old, new]),
        sizes,
        np.repeat(keys[replicate], sizes),
    )

    # 2. The graph learns where these edges lead.
    graph.expand(np.unique(edge[edges.target[edge] == UNKNOWN]).tolist())
    ended = edges.ended[edge] | last
    gain = edges.gain[edge] + np.where(ended, edges.final[edge], 0.0)
    going = np.flatnonzero(~ended)
    target = edges.target[edge[going]]

    # 3. A rollout that comes to a place of the run ends there. Others of one replicate in one node are one from there.
    places = np.full(graph.nodes, -1)
    places[web.node[after]] = after
    place = places[target]
    stray = place < 0
    # A node and a replicate are one number, which `divmod` takes apart again.
    merged, following = np.unique(
        target[stray] * replicates + replicate[going][stray],
        return_inverse=True,
    )
    moves = _Moves(gain, replicate, going, place, following, begun)
    node, replicate = np.divmod(merged, replicates)
    graph.prepare(np.unique(node[graph.first[node] == UNKNOWN]).tolist())
    return moves, node, replicate


def _ranges(first: Integers, size: Integers) -> Integers:
    """Return the concatenation of ranges."""
    # A number is its position in the result, plus how far its range's first number is ahead of its own position there.
    ends = np.cumsum(size)
    found: Integers = np.arange(size.sum()) + np.repeat(first - ends + size, size)
    return found


def _first(graph: Graph, edge: Integers, size: Integers, key: Hashes) -> Integers:
    """Return the edge with the smallest delay of each range.

    Args:
        graph: The graph.
        edge: Edges, range after range.
        size: The sizes of the ranges, all positive.
        key: The key of each edge.
    """
    if not len(size):
        return np.empty(0, np.int64)
    # The same response has the same uniform number in all nodes of a replicate's step.
    uniform = unit(mix(key ^ graph.edges.response[edge])) + 2.0**-53  # in (0, 1]
    with np.errstate(divide="ignore"):
        delay = -np.log(uniform) / graph.edges.probability[edge]
    start = np.cumsum(size) - size
    # Where delays are equal, as infinite ones of probability 0, the first edge is taken.
    least = np.flatnonzero(delay == np.repeat(np.minimum.reduceat(delay, start), size))
    return edge[least[np.searchsorted(least, start)]]
