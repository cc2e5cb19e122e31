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

    from hgpo_train.training.config import UpdateConfig


def verl_agent_batches(
    lengths: NDArray[np.int64], response_lengths: NDArray[np.int64], config: UpdateConfig
) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return the rows of each mini-batch of an epoch, and the weights of each row's response tokens in the loss.

    Args:
        lengths: int64 of shape (rows,), tokens of prompt and response of each row, in the order of trajectories.
        response_lengths: int64 of the same shape, response tokens, at least one.
        config: The settings with m, u and G: `mini_batch_size`, `verl_agent_micro_batch_size`, `verl_agent_gpus`.

    >>> from hgpo_train.training.config import UpdateConfig
    >>> config = UpdateConfig(order="verl-agent", mini_batch_size=4, verl_agent_micro_batch_size=1, verl_agent_gpus=2)
    >>> lengths = np.array([9, 5, 6, 8, 7, 7])
    >>> [rows.tolist() for rows, _ in verl_agent_batches(lengths, lengths - 4, config)]
    [[2, 3, 0, 1], [4, 5]]
    """
    gpus, size = config.verl_agent_gpus, config.verl_agent_micro_batch_size
    mine = config.mini_batch_size // gpus
    parts = balanced_parts(lengths.tolist(), gpus)
    batches = []
    for first in range(0, max(map(len, parts)), mine):
        mini = [part[first : first + mine] for part in parts]
        micro = [part[start : start + size] for part in mini for start in range(0, len(part), size)]
        weights = [
            token_weights(response_lengths[rows], "token_mean") * size / config.mini_batch_size for rows in micro
        ]
        batches.append((np.concatenate(micro), np.concatenate(weights)))
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
        pairs = zip(heapq.heappop(heap).subsets, reversed(heapq.heappop(heap).subsets), strict=True)
        merged = [
            _Subset(large.tokens + small.tokens, large.rows + small.rows, large.items + small.items)
            for large, small in pairs
        ]
        heapq.heappush(heap, _Tuple(sorted(merged, reverse=True)))
    return [np.array(sorted(row for row, _ in subset.items if row >= 0), np.int64) for subset in heap[0].subsets]


class _Subset(NamedTuple):
    """Rows of one part. Subsets are ordered by their tokens, and if these are equal as in verl."""

    tokens: int
    rows: int
    items: list[tuple[int, int]]  # row and length


@dataclass(frozen=True, slots=True)
class _Tuple:
    """One subset for each part, the largest first. The tuple whose subsets differ most is the smallest, for `heapq`."""

    subsets: list[_Subset]

    def __lt__(self, other: _Tuple) -> bool:
        return self._key() > other._key()

    def _key(self) -> tuple[int, _Subset]:
        return self.subsets[0].tokens - self.subsets[-1].tokens, self.subsets[0]
