"""Mini-batches and token weights as in verl-agent's trainer, for those who replicate its runs.

verl-agent does not shuffle. The rows of an iteration, one trajectory after another, are divided among the GPUs so that
each has as many rows and nearly as many tokens as the others (`balanced_parts`); each GPU's rows stay in their order.
The k-th optimiser step uses the k-th part of each GPU's rows. A GPU computes its part in micro-batches of a fixed
number of rows, takes the mean of the loss over the tokens of each, and adds up the means divided by the number of
micro-batches in a full mini-batch. The gradient is the mean over GPUs. With G GPUs, mini-batches of m rows and
micro-batches of u rows on a GPU, a token of a micro-batch with n response tokens therefore has the weight

    w = 1 / (n · G · (m / G / u)) = u / (n m)

instead of the same weight for all tokens of the mini-batch: tokens count more where responses are short. A last
mini-batch of fewer rows has smaller weights in total, as there.

Different from verl-agent: no rows are copied to make their number divisible. Where it is not, some GPUs have one row
less than others.

Sources: verl-agent's `RayPPOTrainer._balance_batch`, `DataParallelPPOActor.update_policy` and verl's
`get_seqlen_balanced_partitions`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hgpo_train.training.update.losses import token_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class WeightedBatch(NamedTuple):
    """The rows of one optimiser step.

    Attributes:
        rows: int64 of shape (rows,), indices of samples.
        weight: float64 of the same shape, the weight of each of a row's response tokens in the loss.
    """

    rows: NDArray[np.int64]
    weight: NDArray[np.float64]


def verl_agent_batches(
    lengths: NDArray[np.int64],
    response_lengths: NDArray[np.int64],
    *,
    mini_batch_size: int,
    micro_batch_size: int,
    gpus: int,
) -> list[WeightedBatch]:
    """Return the mini-batches of one epoch, in verl-agent's order and with its token weights.

    Args:
        lengths: int64 of shape (rows,), tokens of prompt and response of each row, in the order of trajectories.
        response_lengths: int64 of the same shape, response tokens, at least one.
        mini_batch_size: m, rows per optimiser step on all GPUs, a multiple of `gpus` · `micro_batch_size`.
        micro_batch_size: u, rows per micro-batch on one GPU.
        gpus: G, the number of GPUs of the run to replicate.

    >>> lengths = np.array([9, 5, 6, 8, 7, 7])
    >>> batches = verl_agent_batches(lengths, lengths - 4, mini_batch_size=4, micro_batch_size=1, gpus=2)
    >>> [batch.rows.tolist() for batch in batches]
    [[2, 3, 0, 1], [4, 5]]
    """
    mine = mini_batch_size // gpus
    parts = balanced_parts(lengths.tolist(), gpus)
    batches = []
    for first in range(0, max(map(len, parts)), mine):
        rows: list[NDArray[np.int64]] = []
        weight: list[NDArray[np.float64]] = []
        for part in parts:
            for start in range(first, min(first + mine, len(part)), micro_batch_size):
                micro = part[start : min(start + micro_batch_size, first + mine)]
                rows.append(micro)
                weight.append(token_weights(response_lengths[micro], "token_mean") * micro_batch_size / mini_batch_size)
        batches.append(WeightedBatch(np.concatenate(rows), np.concatenate(weight)))
    return batches


def balanced_parts(lengths: Sequence[int], parts: int) -> list[NDArray[np.int64]]:
    """Divide rows into parts of equal size (±1) with nearly equal sums of lengths.

    The largest differencing method (N. Karmarkar and R. Karp 1982, "The differencing method of set partitioning"): rows
    of similar length form tuples with one row for each part, and the two tuples whose parts differ most are combined,
    the largest part of one with the smallest of the other, until one tuple is left.

    Args:
        lengths: Tokens of each row.
        parts: Number of parts, at most the number of rows.

    Returns:
        The row indices of each part, int64 and ascending; the part with the most tokens comes first.

    >>> [part.tolist() for part in balanced_parts([9, 5, 6, 8, 7, 7], 2)]
    [[2, 3, 4], [0, 1, 5]]
    """
    missing = -len(lengths) % parts
    items = sorted([*((length, row) for row, length in enumerate(lengths)), *((0, -1 - n) for n in range(missing))])
    heap: list[_Tuple] = []
    for first in range(0, len(items), parts):
        subsets = [_Subset(length, 1, [(row, length)]) for length, row in items[first : first + parts]]
        heapq.heappush(heap, _Tuple(sorted(subsets, reverse=True)))
    while len(heap) > 1:
        one, other = heapq.heappop(heap), heapq.heappop(heap)
        pairs = zip(one.subsets, reversed(other.subsets), strict=True)
        merged = [large.joined(small) for large, small in pairs]
        heapq.heappush(heap, _Tuple(sorted(merged, reverse=True)))
    return [np.array(sorted(row for row, _ in subset.items if row >= 0), np.int64) for subset in heap[0].subsets]


class _Subset(NamedTuple):
    """Rows of one part. Subsets are ordered by their tokens, and if these are equal as in verl."""

    tokens: int
    rows: int
    items: list[tuple[int, int]]  # row and length

    def joined(self, other: _Subset) -> _Subset:
        return _Subset(self.tokens + other.tokens, self.rows + other.rows, self.items + other.items)


@dataclass(frozen=True, slots=True)
class _Tuple:
    """One subset for each part, the largest first. The tuple whose subsets differ most is the smallest, for `heapq`."""

    subsets: list[_Subset]

    def __lt__(self, other: _Tuple) -> bool:
        return self._key() > other._key()

    def _key(self) -> tuple[int, _Subset]:
        return self.subsets[0].tokens - self.subsets[-1].tokens, self.subsets[0]
