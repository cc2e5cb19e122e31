"""Rollouts on a task's graph with common random numbers: all move together, one NumPy operation a step for all of them.

The step t of *replicate* j has a random key. A response's *delay* is an exponential variable that is a function of this
key and of the response's text alone, divided by the response's probability; the response with the smallest delay is
taken. This draws from the policy's distribution, and rollouts of one replicate that are at one step in different nodes
take the same response where they can. So they often merge (coalescing random walks): they cost less, and their
difference has less noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hgpo_envs.hashing import mix
from hgpo_research.truth.graph import UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_research.truth.graph import Graph
    from hgpo_research.truth.places import Web

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Keys = NDArray[np.uint64]


_UNUSED: Final = np.uint64(11)
"""The bits of a hash that a float64 cannot hold."""


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


def play(graph: Graph, web: Web, gamma: float, keys: Keys) -> tuple[Floats, int]:
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
    values, moves = np.empty((len(web.node), replicates)), list[_Moves]()
    bounds = np.searchsorted(web.step, np.arange(steps + 2))
    node = replicate = np.empty(0, np.int64)
    for step in range(steps):
        here, after = (np.arange(bounds[each], bounds[each + 1]) for each in (step, step + 1))
        made, node, replicate = _move(graph, web, keys[step], node, replicate, here, after, last=step + 1 == steps)
        moves.append(made)
    following = np.empty(0)
    for step in reversed(range(steps)):
        made = moves[step]
        total = made.gain
        where = made.replicate[made.going]
        later = np.empty(len(made.going))
        ends = made.place >= 0
        later[ends] = values[made.place[ends], where[ends]]
        later[~ends] = following[made.following]
        total[made.going] += gamma * later
        begins = len(total) - len(made.begun) * replicates
        following = total[:begins]
        here = np.arange(bounds[step], bounds[step + 1])
        if len(here):
            low, high = np.searchsorted(web.parent, (here[0], here[-1] + 1))
            values[here] = web.constant[here, None]
            np.add.at(values, web.parent[low:high], web.coefficient[low:high, None] * values[web.child[low:high]])
            values[made.begun] += web.rest[made.begun, None] * total[begins:].reshape(-1, replicates)
    return values, sum(len(made.gain) for made in moves)


def _move(
    graph: Graph,
    web: Web,
    keys: Keys,
    node: Integers,
    replicate: Integers,
    here: Integers,
    after: Integers,
    *,
    last: bool,
) -> tuple[_Moves, Integers, Integers]:
    """Begin rollouts at the places of a step and move all.

    Returns:
        The moves, and the nodes and replicates of the rollouts that continue.
    """
    edges, replicates = graph.edges, len(keys)
    begun = here[web.size[here] > 0]
    flat, sizes = _ranges(graph.first[node], graph.size[node])
    offered, more = _ranges(np.repeat(web.first[begun], replicates), np.repeat(web.size[begun], replicates))
    origin = np.concatenate([node, np.repeat(web.node[begun], replicates)])
    replicate = np.concatenate([replicate, np.tile(np.arange(replicates), len(begun))])
    sizes = np.concatenate([sizes, more])
    edge = _first(graph, np.concatenate([flat, web.edges[offered]]), sizes, np.repeat(keys[replicate], sizes))
    unknown = edges.target[edge] == UNKNOWN
    new, where = np.unique(edge[unknown], return_index=True)
    if len(new):
        graph.expand(origin[unknown][where].tolist(), new.tolist())
    ended = edges.ended[edge] | last
    gain = edges.gain[edge] + np.where(ended, edges.final[edge], 0.0)
    going = np.flatnonzero(~ended)
    target = edges.target[edge[going]]
    places = np.full(graph.nodes, -1)
    places[web.node[after]] = after
    place = places[target]
    stray = place < 0
    merged, following = np.unique(target[stray] * replicates + replicate[going][stray], return_inverse=True)
    moves = _Moves(gain, replicate, going, place, following, begun)
    node, replicate = merged // replicates, merged % replicates
    if len(node):
        graph.prepare(np.unique(node[graph.first[node] == UNKNOWN]).tolist())
    return moves, node, replicate


def _ranges(first: Integers, size: Integers) -> tuple[Integers, Integers]:
    """Return the concatenation of ranges, and their sizes."""
    ends = np.cumsum(size)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(first - ends + size, size), size


def _first(graph: Graph, edge: Integers, size: Integers, key: Keys) -> Integers:
    """Return the edge with the smallest delay of each range.

    Args:
        graph: The graph.
        edge: Edges, range after range.
        size: The sizes of the ranges, all positive.
        key: The key of each edge.
    """
    if not len(size):
        return np.empty(0, np.int64)
    uniform = ((mix(key ^ graph.edges.response[edge]) >> _UNUSED).astype(np.float64) + 1.0) * 2.0**-53  # in (0, 1]
    with np.errstate(divide="ignore"):
        delay = -np.log(uniform) / graph.edges.probability[edge]
    start = np.cumsum(size) - size
    least = np.flatnonzero(delay == np.repeat(np.minimum.reduceat(delay, start), size))
    return edge[least[np.searchsorted(least, start)]]
