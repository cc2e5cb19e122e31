"""From step rows to batches: every row is one sample, none is copied to make numbers divisible.

A *mini-batch* is what one optimiser step sees; a *micro-batch* is what fits into memory at a time. Rows are sorted by
length within a mini-batch and cut into micro-batches of a bounded number of tokens, either padded on the right or
packed one after another into a single row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import polars as pl
import torch

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def row_faults(steps: pl.DataFrame, vocabulary: int | None = None) -> pl.Series:
    """What is wrong with each row of a step table for training, or null.

    Args:
        steps: As for `samples_from_steps`.
        vocabulary: Token ids below this are known to the model; None allows every id of 32 bits.

    Returns:
        One text or null a row.

    Raises:
        InputError: A column is missing, or is of another type.
    """
    _check_columns(steps)
    most = _MOST_IDS if vocabulary is None else vocabulary
    faults = [_ids_fault(name, most) for name in ("prompt_token_ids", "response_token_ids")]
    prompt, response = (pl.col(name).list.len().fill_null(0) for name in ("prompt_token_ids", "response_token_ids"))
    faults.append(pl.when((prompt == 0) & (response > 0)).then(pl.lit("expected a prompt of at least one token")))
    if _has_logprobs(steps):
        faults += _logprob_faults(response)
    if "advantage" in steps.columns:
        value = pl.col("advantage").cast(pl.Float64)
        text = pl.format("expected a finite advantage, got {}", value.fill_null(float("nan")))
        faults.append(pl.when(~value.cast(pl.Float32, strict=False).is_finite().fill_null(value=False)).then(text))
    return steps.lazy().select(pl.coalesce(faults).alias("fault")).collect()["fault"]


def samples_from_steps(steps: pl.DataFrame, vocabulary: int | None = None) -> Samples:
    """Reads the token and advantage columns of a step table; row i of the result is row i of the table.

    Args:
        steps: Columns `prompt_token_ids`, `response_token_ids` (lists of int), `advantage` (float; taken as 1 where
            the column is absent, as supervised training wants it) and, if the engine gave them,
            `response_logprobs` (lists of float of the response's length, or null).
        vocabulary: How many token ids the model knows; None does not look.

    Raises:
        InputError: A column is missing or of another type, or a row cannot be used (`row_faults`).
    """
    faults = row_faults(steps, vocabulary)
    if (wrong := faults.is_not_null().arg_true()).len():
        row = int(wrong[0])
        more = f" ({wrong.len() - 1} more rows cannot be used)" if wrong.len() > 1 else ""
        raise InputError(f"{faults[row]}, row {row}{more}")
    prompt, prompt_length = _ragged(steps["prompt_token_ids"], np.int32)
    response, response_length = _ragged(steps["response_token_ids"], np.int32)
    length = prompt_length + response_length
    start = np.concatenate([[0], np.cumsum(length)])
    response_start = np.concatenate([[0], np.cumsum(response_length)])
    tokens = np.empty(int(start[-1]), np.int32)
    is_prompt = np.arange(int(start[-1])) - np.repeat(start[:-1], length) < np.repeat(prompt_length, length)
    tokens[is_prompt], tokens[~is_prompt] = prompt, response
    advantage = steps["advantage"].cast(pl.Float64).to_numpy() if "advantage" in steps.columns else np.ones(len(steps))
    logprob = _rollout_logprobs(steps, response_length, int(response_start[-1]))
    return Samples(tokens, start, prompt_length, response_start, advantage, logprob)


_MOST_IDS: Final = 2**31


def _check_columns(steps: pl.DataFrame) -> None:
    """Refuses tables whose columns are missing or of another type."""
    for name in ("prompt_token_ids", "response_token_ids"):
        if name not in steps.columns or (len(steps) and steps[name].is_null().all()):
            raise InputError(
                f"expected the column {name!r} with token ids, which a language-model policy records while it acts; "
                "collect with --policy transformers or vllm, or train on text with `hgpo sft`"
            )
        _check_type(name, steps.schema[name], "integers", lambda inner: inner.is_integer())
    if _has_logprobs(steps):
        name = "response_logprobs"
        _check_type(name, steps.schema[name], "floats", lambda inner: inner.is_numeric())
    if "advantage" in steps.columns and not (kind := steps.schema["advantage"]).is_numeric() and kind != pl.Null:
        raise InputError(f"expected the column 'advantage' to hold floats, got {kind}")


def _check_type(name: str, kind: pl.DataType, of: str, fits: Callable[[pl.DataType], bool]) -> None:
    inner: Any = getattr(kind, "inner", None)
    if kind != pl.Null and (not isinstance(kind, pl.List) or not (fits(inner) or inner == pl.Null)):
        raise InputError(f"expected the column {name!r} to hold lists of {of}, got {kind}")


def _has_logprobs(steps: pl.DataFrame) -> bool:
    return "response_logprobs" in steps.columns and steps.schema["response_logprobs"] != pl.Null


def _ids_fault(name: str, most: int) -> pl.Expr:
    ids = pl.col(name).cast(pl.List(pl.Int64), strict=False)
    least, greatest = ids.list.min(), ids.list.max()
    null = ids.list.eval(pl.element().is_null()).list.any().fill_null(value=False)
    beyond = pl.when(least < 0).then(least).otherwise(greatest)
    return (
        pl.when(null)
        .then(pl.lit(f"expected token ids in {name}, got a null among them"))
        .when((least < 0) | (greatest >= most))
        .then(pl.format(f"expected {name} from 0 to {most - 1}, got {{}}", beyond))
    )


def _logprob_faults(response: pl.Expr) -> list[pl.Expr]:
    values = pl.col("response_logprobs").cast(pl.List(pl.Float32))
    count = values.list.len().fill_null(0)
    odd = values.list.eval(pl.element().is_null() | ~pl.element().is_finite()).list.any().fill_null(value=False)
    text = pl.format("expected one response_logprobs value a response token, got {} for {} tokens", count, response)
    return [
        pl.when((count > 0) & (count != response)).then(text),
        pl.when(odd).then(pl.lit("expected finite response_logprobs, got a value that is none")),
    ]


def _ragged(column: pl.Series, dtype: type) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """A list column as its flat values and its lengths; a null list is an empty one."""
    lengths = column.list.len().fill_null(0).cast(pl.Int64).to_numpy()
    values = column.filter(column.list.len() > 0).explode()
    return values.to_numpy().astype(dtype), lengths


def _rollout_logprobs(steps: pl.DataFrame, response_length: NDArray[np.int64], total: int) -> NDArray[np.float32]:
    logprob = np.full(total, np.nan, np.float32)
    if _has_logprobs(steps):
        values, lengths = _ragged(steps["response_logprobs"], np.float32)
        logprob[np.repeat(lengths > 0, response_length)] = values
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
