"""Conversion of step rows into batches. Every row is one sample; no row is repeated to make batch sizes divisible.

A *mini-batch* contains the rows of one optimiser step, a *micro-batch* those of one forward pass. The rows of a
mini-batch are sorted by length and split into micro-batches of a bounded number of tokens. They are either padded on
the right or packed one after another into a single row.

In a conversation, the tokens of a step are the beginning of the next step's prompt. Such rows share a *sequence*: the
tokens of the last one are computed, and each row finds its response in them. Its loss is that of the row alone, because
attention is causal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl
import torch

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

Layout = Literal["padded", "packed"]

_LEAST: Final = -1e4
"""What a log-probability of minus infinity counts as; vLLM's server reports -9999."""
_ROUNDING: Final = 1e-3
"""The largest log-probability: engines round that of a certain token."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Step rows as flat arrays.

    Attributes:
        tokens: int32 of shape (tokens,), the prompt and response tokens of all rows, one row after another.
        start: int64 of shape (rows + 1,), the index of each row's first token in `tokens`.
        length: int64 of shape (rows,), the tokens of each row.
        prompt_length: int64 of shape (rows,), those of its prompt.
        response_length: int64 of shape (rows,), those of its response.
        response_start: int64 of shape (rows + 1,), the index of each row's first value in arrays over response tokens.
        advantage: float64 of shape (rows,).
        rollout_logprob: float32 of shape (response tokens,), as reported by the engine, at least -10,000; NaN where it
            reported none.
        sequence: int64 of shape (rows,), the sequence of each row. Of the rows of a sequence, each begins with the
            tokens of all shorter ones.
        sequence_length: int64 of shape (sequences,), the tokens that are computed for each sequence.
    """

    tokens: NDArray[np.int32]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    prompt_length: NDArray[np.int64]
    response_length: NDArray[np.int64]
    response_start: NDArray[np.int64]
    advantage: NDArray[np.float64]
    rollout_logprob: NDArray[np.float32]
    sequence: NDArray[np.int64]
    sequence_length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.prompt_length)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The input of one forward pass; `tokens` is its number of response tokens.

    Attributes:
        input_ids: int64 of shape (rows, length).
        position_ids: int64 of the same shape, starting at 0 in every sequence.
        source: int64 of shape (tokens,), indices into the flattened `input_ids` whose outputs predict a response token.
        target: int64 of shape (tokens,), the response tokens.
        token: int64 of shape (tokens,), each token's index in arrays over all response tokens.
        row: int64 of shape (tokens,), the index of each token's sample.
    """

    input_ids: Tensor
    position_ids: Tensor
    source: Tensor
    target: Tensor
    token: NDArray[np.int64]
    row: NDArray[np.int64]


def check_rows(steps: pl.DataFrame, vocabulary: int) -> None:
    """Check that the rows of a step table can be trained on by a model with this number of token ids.

    Raises:
        InputError: A token id is outside, a prompt is empty, an advantage is not finite, or log-probabilities are not
            one for each response token, or NaN, or positive.
    """
    for name in ("prompt_token_ids", "response_token_ids"):
        ids = steps[name].explode()
        outside = ids.filter((ids < 0) | (ids >= vocabulary))
        if len(outside):
            raise InputError(
                f"expected {name} from 0 to {vocabulary - 1}, received {outside[0]}; check the tokenizer"
            )

    if not (steps["prompt_token_ids"].list.len().fill_null(0) > 0).all():
        raise InputError(
            "expected prompts of at least one token, received an empty one"
        )

    # The loss is float32, in which a finite float64 can be infinite.
    if "advantage" in steps.columns:
        finite = steps["advantage"].cast(pl.Float32).is_finite()
        if not finite.fill_null(value=False).all():
            raise InputError("expected finite advantages, received one that is not")

    if steps.schema.get("response_logprobs", pl.Null) == pl.Null:
        return
    logprobs = steps["response_logprobs"]
    tokens = steps["response_token_ids"].list.len()
    numbers = logprobs.list.len()
    wrong = (numbers > 0) & (numbers != tokens)
    if wrong.any():
        found = numbers.filter(wrong)[0]
        expected = tokens.filter(wrong)[0]
        raise InputError(
            f"expected response_logprobs for each of {expected} response tokens, received {found}"
        )

    # NaN and null are impossible, too: Polars takes NaN as larger than any number.
    values = logprobs.filter(numbers > 0).explode()
    possible = (values <= _ROUNDING).fill_null(value=False)
    if not possible.all():
        found = values.filter(~possible)[0]
        raise InputError(
            f"expected response_logprobs of at most 0, received {found}; check the engine that wrote them"
        )


def samples_from_steps(steps: pl.DataFrame, *, share_prefixes: bool = False) -> Samples:
    """Convert the token and advantage columns of a step table that passes `check_rows`; sample i is row i of the table.

    Args:
        steps: A table with the columns `prompt_token_ids` and `response_token_ids` (lists of int). `advantage` (float)
            is optional and defaults to 1, as in supervised training. `response_logprobs` (lists of float, one value per
            response token, or null) is optional.
        share_prefixes: Whether a row and the next one share a sequence if the tokens of the first begin the other.
    """
    # 1. The columns' flat values, and their lengths; a null counts as an empty list.
    names = ["prompt_token_ids", "response_token_ids"]
    if steps.schema.get("response_logprobs", pl.Null) != pl.Null:
        names.append("response_logprobs")
    values = {}
    lengths = {}
    for name in names:
        number = steps[name].list.len()
        lengths[name] = number.fill_null(0).cast(pl.Int64).to_numpy()
        values[name] = steps[name].filter(number > 0).explode().to_numpy()
    prompt_length = lengths["prompt_token_ids"]
    response_length = lengths["response_token_ids"]
    length = prompt_length + response_length
    start = np.append(0, np.cumsum(length))
    response_start = np.append(0, np.cumsum(response_length))

    # 2. Each row is its prompt followed by its response. Both lists are flat and in the order of rows, so that one mask
    # places all prompts and all responses at once.
    tokens = np.empty(start[-1], np.int32)
    is_prompt = np.arange(start[-1]) < np.repeat(start[:-1] + prompt_length, length)
    tokens[is_prompt] = values["prompt_token_ids"]
    tokens[~is_prompt] = values["response_token_ids"]

    # 3. The other columns, where they are known.
    advantage = np.ones(len(steps))
    if "advantage" in steps.columns:
        advantage = steps["advantage"].cast(pl.Float64).to_numpy()

    logprob = np.full(response_start[-1], np.nan, np.float32)
    if "response_logprobs" in values:
        reported = np.repeat(lengths["response_logprobs"] > 0, response_length)
        logprob[reported] = np.maximum(values["response_logprobs"], _LEAST)

    # 4. Sequences, which are as long as their longest rows.
    sequence = np.arange(len(length))
    if share_prefixes and len(length):
        rows = np.split(tokens, start[1:-1])
        # A row that its predecessor does not begin starts a new sequence.
        is_new = [
            not np.array_equal(row, following[: len(row)])
            for row, following in pairwise(rows)
        ]
        sequence = np.cumsum([0, *is_new])
    sequence_length = np.zeros(len(np.unique(sequence)), np.int64)
    np.maximum.at(sequence_length, sequence, length)
    return Samples(
        tokens=tokens,
        start=start,
        length=length,
        prompt_length=prompt_length,
        response_length=response_length,
        response_start=response_start,
        advantage=advantage,
        rollout_logprob=logprob,
        sequence=sequence,
        sequence_length=sequence_length,
    )


def mini_batches(
    rows: NDArray[np.int64],
    size: int,
    generator: np.random.Generator,
    sequence: NDArray[np.int64] | None = None,
) -> list[NDArray[np.int64]]:
    """Shuffle rows into as few mini-batches of at most `size` rows as possible, whose sizes differ by at most one.

    With rows that share sequences, the sequences are shuffled and stay whole, and sizes are close to that.

    >>> [len(part) for part in mini_batches(np.arange(10), 4, np.random.default_rng(0))]
    [4, 3, 3]
    """
    number = max(1, math.ceil(len(rows) / size))
    if sequence is None or len(np.unique(sequence[rows])) == len(rows):
        return np.array_split(generator.permutation(rows), number)

    # The shuffled sequences lie side by side on a line as long as the number of rows, which is cut into equal parts.
    # A sequence belongs to the part that its middle is in.
    _, unit, count = np.unique(sequence[rows], return_inverse=True, return_counts=True)
    order = generator.permutation(len(count))
    middle = np.cumsum(count[order]) - count[order] / 2
    batch = np.empty(len(count), np.int64)
    batch[order] = middle * number // len(rows)
    return [rows[batch[unit] == each] for each in np.unique(batch)]


def micro_batches(
    samples: Samples,
    rows: NDArray[np.int64],
    *,
    max_tokens: int,
    layout: Layout = "padded",
) -> Iterator[MicroBatch]:
    """Split rows into micro-batches, longest sequences first, so that running out of memory happens in the first batch.

    Args:
        samples: All samples.
        rows: int64 of shape (n,), indices of the samples to use; samples without response tokens are left out.
        max_tokens: Maximum number of tokens of a micro-batch, including padding. A single longer sequence forms its own
            micro-batch.
        layout: ``padded`` pads each sequence on the right, with token 0, which causal attention never reaches;
            ``packed`` concatenates the sequences into one.

    Yields:
        The micro-batches. Together they contain every response token of `rows` once.
    """
    rows = rows[samples.response_length[rows] > 0]

    # 1. The sequences of the rows (`unit` is each row's), longest first, and of equal ones the first in `rows`.
    _, first, unit = np.unique(
        samples.sequence[rows], return_index=True, return_inverse=True
    )
    longest = np.zeros(len(first), np.int64)
    np.maximum.at(longest, unit, samples.length[rows])
    order = np.lexsort((first, -longest))
    while len(order):
        # 2. As many of them as fit: padding makes all as long as the first.
        length = longest[order]
        if layout == "padded":
            number = max_tokens // length[0]
        else:
            number = np.searchsorted(np.cumsum(length), max_tokens, side="right")
        chosen, order = np.split(order, [max(1, number)])

        # 3. Their rows, sequence after sequence; `place` is a sequence's number in the micro-batch, or -1.
        place = np.full(len(first), -1)
        place[chosen] = np.arange(len(chosen))
        members = np.flatnonzero(place[unit] >= 0)
        members = members[np.argsort(place[unit[members]], kind="stable")]
        yield _micro_batch(samples, rows[members], place[unit[members]], layout)


def _micro_batch(
    samples: Samples,
    rows: NDArray[np.int64],
    sequence: NDArray[np.int64],
    layout: Layout,
) -> MicroBatch:
    """Return the micro-batch of rows; `sequence` numbers the sequences of the rows from 0, in ascending order."""
    # The longest row of each sequence contains the tokens of the others, so that only its tokens are computed.
    by_length = rows[np.lexsort((samples.length[rows], sequence))]
    ends = np.append(np.flatnonzero(np.diff(sequence)), len(rows) - 1)
    last = by_length[ends]
    length = samples.length[last]

    # The input as one flat array; `first` is where each sequence begins in it.
    if layout == "padded":
        height = len(last)
        width = int(length.max())
        first = np.arange(height) * width
    else:
        height = 1
        width = int(length.sum())
        first = np.cumsum(length) - length

    # Positions begin at 0 in every sequence, and go on in its padding.
    position = np.concatenate([np.arange(tokens) for tokens in length])
    place = np.repeat(first, length) + position
    position_ids = np.tile(np.arange(width), height)
    position_ids[place] = position
    input_ids = np.zeros(height * width, np.int64)
    input_ids[place] = samples.tokens[np.repeat(samples.start[last], length) + position]

    # Each response token is predicted by the output before it, the first one by that of the prompt's last token.
    answer = samples.response_length[rows]
    offset = np.concatenate([np.arange(tokens) for tokens in answer])
    source = (
        np.repeat(first[sequence] + samples.prompt_length[rows] - 1, answer) + offset
    )
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids.reshape(height, width)),
        position_ids=torch.from_numpy(position_ids.reshape(height, width)),
        source=torch.from_numpy(source),
        target=torch.from_numpy(input_ids[source + 1]),
        token=np.repeat(samples.response_start[rows], answer) + offset,
        row=np.repeat(rows, answer),
    )
