"""From step rows to batches: every row is one sample, none is copied to make numbers divisible.

A *mini-batch* is what one optimiser step sees; a *micro-batch* is what fits into memory at a time. Rows are sorted by
length within a mini-batch and cut into micro-batches of a bounded number of tokens, either padded on the right or
packed one after another into a single row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl
import torch

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

Layout = Literal["padded", "packed"]


@dataclass(frozen=True, slots=True)
class Samples:
    """Step rows as flat arrays.

    Attributes:
        tokens: int32, prompt and response tokens of all rows, one row after another.
        start: int64 of shape (rows + 1,), where each row's tokens begin.
        prompt_length: int64 of shape (rows,).
        response_start: int64 of shape (rows + 1,), where each row's values begin in arrays over response tokens.
        advantage: float64 of shape (rows,).
        rollout_logprob: float32 of shape (response tokens,), as the engine reported them; NaN where it did not.
    """

    tokens: NDArray[np.int32]
    start: NDArray[np.int64]
    prompt_length: NDArray[np.int64]
    response_start: NDArray[np.int64]
    advantage: NDArray[np.float64]
    rollout_logprob: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.prompt_length)

    @property
    def length(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 of shape (rows,)."""
        return np.diff(self.start)

    @property
    def response_length(self) -> NDArray[np.int64]:
        """Response tokens of each row, int64 of shape (rows,)."""
        return np.diff(self.response_start)

    @property
    def response_tokens(self) -> int:
        """All response tokens."""
        return int(self.response_start[-1])


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward pass takes.

    Attributes:
        input_ids: int64 of shape (rows, length).
        position_ids: int64 of the same shape, from 0 in every sequence.
        source: int64 of shape (tokens,), flat places whose output predicts a response token.
        target: int64 of shape (tokens,), the response tokens.
        token: int64 of shape (tokens,), each one's place in arrays over all response tokens.
        row: int64 of shape (tokens,), each one's sample.
    """

    input_ids: Tensor
    position_ids: Tensor
    source: Tensor
    target: Tensor
    token: NDArray[np.int64]
    row: NDArray[np.int64]


def _ragged(column: pl.Series, dtype: type) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """A list column as its flat values and its lengths; a null list is an empty one."""
    lengths = column.list.len().fill_null(0).cast(pl.Int64).to_numpy()
    values = column.filter(column.list.len() > 0).explode()
    return values.to_numpy().astype(dtype), lengths


def samples_from_steps(steps: pl.DataFrame) -> Samples:
    """Reads the token and advantage columns of a step table; row i of the result is row i of the table.

    Args:
        steps: Columns `prompt_token_ids`, `response_token_ids` (lists of int), `advantage` (float; taken as 1 where
            the column is absent, as supervised training wants it) and, if the engine gave them,
            `response_logprobs` (lists of float of the response's length, or null).

    Raises:
        InputError: A column is missing, or an advantage is not finite.
    """
    for name in ("prompt_token_ids", "response_token_ids"):
        if name not in steps.columns or (len(steps) and steps[name].is_null().all()):
            raise InputError(
                f"expected the column {name!r} with token ids, which a language-model policy records while it acts; "
                "collect with --policy transformers or vllm, or train on text with `hgpo sft`"
            )
    prompt, prompt_length = _ragged(steps["prompt_token_ids"], np.int32)
    response, response_length = _ragged(steps["response_token_ids"], np.int32)
    if (empty := (prompt_length == 0) & (response_length > 0)).any():
        raise InputError(f"expected a prompt of at least one token, row {int(np.flatnonzero(empty)[0])} has none")
    length = prompt_length + response_length
    start = np.concatenate([[0], np.cumsum(length)])
    response_start = np.concatenate([[0], np.cumsum(response_length)])
    tokens = np.empty(int(start[-1]), np.int32)
    is_prompt = np.arange(int(start[-1])) - np.repeat(start[:-1], length) < np.repeat(prompt_length, length)
    tokens[is_prompt], tokens[~is_prompt] = prompt, response
    advantage = (
        steps["advantage"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        if "advantage" in steps.columns
        else np.ones(len(steps))
    )
    if not np.isfinite(advantage).all():
        row = int(np.flatnonzero(~np.isfinite(advantage))[0])
        raise InputError(f"expected finite advantages, row {row} has {advantage[row]}")
    return Samples(
        tokens,
        start,
        prompt_length,
        response_start,
        advantage,
        _rollout_logprobs(steps, response_length, int(response_start[-1])),
    )


def _rollout_logprobs(steps: pl.DataFrame, response_length: NDArray[np.int64], total: int) -> NDArray[np.float32]:
    logprob = np.full(total, np.nan, np.float32)
    if "response_logprobs" not in steps.columns or steps["response_logprobs"].dtype == pl.Null:
        return logprob
    values, lengths = _ragged(steps["response_logprobs"], np.float32)
    recorded = lengths > 0
    if (lengths[recorded] != response_length[recorded]).any():
        row = int(np.flatnonzero(recorded & (lengths != response_length))[0])
        raise InputError(
            f"expected one response_logprobs value a response token, row {row} has {lengths[row]} for "
            f"{response_length[row]} tokens"
        )
    logprob[np.repeat(recorded, response_length)] = values
    return logprob


def mini_batches(rows: NDArray[np.int64], size: int, generator: np.random.Generator) -> list[NDArray[np.int64]]:
    """Shuffles rows into the fewest mini-batches of at most `size`, of sizes that differ by at most one.

    >>> [len(part) for part in mini_batches(np.arange(10), 4, np.random.default_rng(0))]
    [4, 3, 3]
    """
    shuffled = generator.permutation(rows)
    return np.array_split(shuffled, max(1, -(-len(rows) // size)))


def micro_batches(
    samples: Samples, rows: NDArray[np.int64], *, max_tokens: int, layout: Layout = "padded", pad: int = 0
) -> Iterator[MicroBatch]:
    """Cuts rows into micro-batches, longest first, so that a batch that does not fit fails at once.

    Args:
        samples: All rows.
        rows: The chosen ones; rows of no response token are left out.
        max_tokens: Bound on rows · length, padding included. A longer single row makes a batch of its own.
        layout: ``padded`` pads each row on the right; ``packed`` puts rows one after another into one.
        pad: The token that fills; it is never read.
    """
    rows = rows[samples.response_length[rows] > 0]
    order = rows[np.argsort(-samples.length[rows], kind="stable")]
    first = 0
    while first < len(order):
        last = _cut(samples.length[order[first:]], max_tokens, layout) + first
        yield _micro_batch(samples, order[first:last], layout, pad)
        first = last


def _cut(lengths: NDArray[np.int64], max_tokens: int, layout: Layout) -> int:
    """How many of the rows (longest first) go into the next micro-batch; at least one."""
    if layout == "padded":
        return max(1, min(len(lengths), max_tokens // int(lengths[0])))
    return max(1, int(np.searchsorted(np.cumsum(lengths), max_tokens, side="right")))


def _micro_batch(samples: Samples, rows: NDArray[np.int64], layout: Layout, pad: int) -> MicroBatch:
    length = samples.length[rows]
    width = int(length.max()) if layout == "padded" else int(length.sum())
    height = len(rows) if layout == "padded" else 1
    first = np.arange(len(rows)) * width if layout == "padded" else np.cumsum(length) - length
    input_ids = np.full(height * width, pad, np.int64)
    position_ids = np.tile(np.arange(width), height)
    source, token, row = [], [], []
    for place, sample in zip(first, rows, strict=True):
        begin, end = samples.start[sample], samples.start[sample + 1]
        input_ids[place : place + end - begin] = samples.tokens[begin:end]
        position_ids[place : place + end - begin] = np.arange(end - begin)
        answer = samples.response_start[sample + 1] - samples.response_start[sample]
        source.append(place + samples.prompt_length[sample] - 1 + np.arange(answer))
        token.append(samples.response_start[sample] + np.arange(answer))
        row.append(np.full(answer, sample))
    places = np.concatenate(source)
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids.reshape(height, width)),
        position_ids=torch.from_numpy(position_ids.reshape(height, width)),
        source=torch.from_numpy(places),
        target=torch.from_numpy(input_ids[places + 1]),
        token=np.concatenate(token),
        row=np.concatenate(row),
    )
