"""What follows from a row's neighbours: order, hashes, returns, lengths. Computed here and nowhere else.

Rows are whole trajectories. The same function serves the writer and every import, and `hgpo verify` compares a
file with what this gives for its rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hgpo_datasets.schema import GROUP_KEY, SORT_KEY, columns
from hgpo_envs import hashing
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

Hashes = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""Hashes, and where they are known."""

TRAJECTORY_KEY: Final = (*GROUP_KEY, "trajectory")

_ROUNDING: Final = 1e-9
"""How far a given return may be from the exactly rounded sum."""


def complete(frame: pl.DataFrame, depth: int) -> pl.DataFrame:
    """The rows sorted, with every derived column computed.

    Args:
        frame: Whole trajectories with all columns of the schema. Derived columns may be null; where they are not, they
            must be what is computed. Where a text is not stored its given hash is taken.
        depth: The deepest hash that the schema holds.

    Raises:
        InputError: The rows break a rule of the schema; the line names the row.
    """
    frame = frame.sort(SORT_KEY)
    if frame.is_empty():
        return frame
    first = first_rows(frame)
    last = np.append(first[1:], True)
    _check_steps(frame, first)
    _check_values(frame, last)
    hashes = text_hashes(frame)
    _check_states(frame, hashes, last)
    computed = derived(frame, first, depth, hashes)
    _check_given(frame, computed)
    next_state = pl.when(pl.lit(pl.Series(last))).then(pl.col("next_state")).alias("next_state")
    names = [column.name for column in columns(depth)]
    return pl.concat([frame.drop(computed.columns), computed], how="horizontal").with_columns(next_state).select(names)


def first_rows(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """Where trajectories begin, for sorted rows: bool of shape (rows,)."""
    changes = [pl.col(name).ne_missing(pl.col(name).shift()) for name in TRAJECTORY_KEY]
    return frame.select(pl.any_horizontal(changes)).to_series().to_numpy()


def broken_steps(frame: pl.DataFrame, first: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The rows whose step is not their position in their trajectory, for sorted rows."""
    starts, lengths = _spans(first)
    return np.flatnonzero(frame["step"].to_numpy() != np.arange(len(first)) - np.repeat(starts, lengths))


def row_name(frame: pl.DataFrame, row: int) -> str:
    """How a message names a row."""
    return f"task {frame['task_id'][row]!r}, trajectory {frame['trajectory'][row]!r}, step {frame['step'][row]}"


def value_problems(frame: pl.DataFrame, last: NDArray[np.bool_]) -> list[tuple[str, pl.Expr]]:
    """The rules on values as (what is wrong, the rows where it is)."""
    inner = pl.lit(pl.Series(~last))
    problems = [(f"{name} is not finite", ~pl.col(name).is_finite()) for name in ("reward", "score")]
    problems += [(f"{name} is NaN", pl.col(name).is_nan()) for name in ("environment_s", "policy_s")]
    problems += [
        (f"{flag} before the last row", pl.col(flag) & inner) for flag in ("terminated", "truncated", "aborted")
    ]
    logprobs, tokens = pl.col("response_logprobs"), pl.col("response_token_ids")
    if frame["response_logprobs"].null_count() < len(frame):
        problems.append(("response_logprobs holds NaN", logprobs.list.eval(pl.element().is_nan()).list.any()))
        problems.append(("response_logprobs is not one a token", logprobs.list.len() != tokens.list.len()))
    return problems


def text_hashes(frame: pl.DataFrame) -> dict[str, Hashes]:
    """The hashes of `state`, `action` and `next_state`, by column; where there is no text, those that the rows hold."""
    return {name: _hashes_of(frame[name], frame[f"{name}_hash"]) for name in ("state", "action", "next_state")}


def derived(
    frame: pl.DataFrame, first: NDArray[np.bool_], depth: int, hashes: Mapping[str, Hashes] | None = None
) -> pl.DataFrame:
    """Every derived column, computed from the others.

    Args:
        frame: Sorted rows of whole trajectories.
        first: Where trajectories begin, bool of shape (rows,).
        depth: The deepest hash.
        hashes: What `text_hashes` gives for the rows.
    """
    (state, _), (action, known), (following, followed) = (hashes or text_hashes(frame)).values()
    starts, lengths = _spans(first)
    last = np.append(first[1:], True)
    returns = [
        math.fsum(frame["reward"][int(start) : int(start + n)]) for start, n in zip(starts, lengths, strict=True)
    ]
    history, exists = hashing.chain_columns(state, first, depth)
    context, _ = hashing.chain_columns(state, first, depth, action)
    context_exists = _all_known_between(exists, known)
    return pl.DataFrame(
        [
            pl.Series("episode_return", np.repeat(np.array(returns), lengths)),
            pl.Series("episode_length", np.repeat(lengths, lengths).astype(np.int32)),
            pl.Series("state_hash", state),
            _nullable("action_hash", action, known),
            *(_nullable(f"history_hash_{k}", history[k], exists[k]) for k in range(depth + 1)),
            *(_nullable(f"context_hash_{k}", context[k], context_exists[k]) for k in range(depth + 1)),
            _nullable("next_state_hash", np.where(last, following, np.roll(state, -1)), followed | ~last),
        ]
    )


def _spans(first: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where trajectories begin, and their lengths."""
    starts = np.flatnonzero(first)
    return starts, np.diff(np.append(starts, len(first)))


def _hashes_of(texts: pl.Series, given: pl.Series) -> Hashes:
    missing = texts.null_count()
    if missing == len(texts):
        return given.fill_null(0).to_numpy(), given.is_not_null().to_numpy()
    hashes = hashing.text_hashes(text or "" for text in texts.to_list())
    if not missing:
        return hashes, np.ones(len(texts), dtype=np.bool_)
    present = texts.is_not_null().to_numpy()
    known = present | given.is_not_null().to_numpy()
    return np.where(present, hashes, given.fill_null(0).to_numpy()), known


def _all_known_between(exists: NDArray[np.bool_], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where all k actions before a step are known and the k states are there: bool of shape (depth + 1, rows)."""
    if known.all():
        return exists
    whole = exists.copy()
    for k in range(1, len(exists)):
        before = np.ones_like(known)
        before[k:] = known[:-k]
        whole[k] &= whole[k - 1] & before
    return whole


def _nullable(name: str, values: NDArray[np.int64], defined: NDArray[np.bool_]) -> pl.Series:
    series = pl.Series(name, values)
    return series if defined.all() else series.set(pl.Series(~defined), None)


def _check_steps(frame: pl.DataFrame, first: NDArray[np.bool_]) -> None:
    broken = broken_steps(frame, first)
    if len(broken):
        line = f"{row_name(frame, int(broken[0]))}: expected whole trajectories with steps 0, 1, 2, …"
        raise InputError(f"{line}; a step before it is missing or it came twice")
    seen: set[str] = set()
    for name in frame["trajectory"].gather(np.flatnonzero(first)):
        if name in seen:
            raise InputError(f"trajectory {name!r} is in two groups; expected an identifier that is unique in the run")
        seen.add(name)


def _check_values(frame: pl.DataFrame, last: NDArray[np.bool_]) -> None:
    problems = value_problems(frame, last)
    found = frame.select(wrong.any().alias(name) for name, wrong in problems).row(0)
    for (name, wrong), here in zip(problems, found, strict=True):
        if here:
            row = frame.select(wrong.fill_null(value=False).arg_max()).item()
            raise InputError(f"{row_name(frame, row)}: {name}")


def _check_states(frame: pl.DataFrame, hashes: Mapping[str, Hashes], last: NDArray[np.bool_]) -> None:
    (state, known), _, (following, followed) = hashes.values()
    if not known.all():
        line = "expected `state`, or `state_hash` where texts are not stored"
        raise InputError(f"{row_name(frame, int(np.argmin(known)))}: {line}")
    broken = followed & ~last & (following != np.roll(state, -1))
    if broken.any():
        raise InputError(f"{row_name(frame, int(np.argmax(broken)))}: next_state is not the state of the next step")


def _check_given(frame: pl.DataFrame, computed: pl.DataFrame) -> None:
    """Raises for a derived value that came with the rows and is not what follows from them."""
    for wanted in computed:
        given = frame[wanted.name]
        if given.null_count() == len(given):
            continue
        differs = (given - wanted).abs() > _ROUNDING if given.dtype.is_float() else given != wanted
        if differs.any():
            row = int(differs.fill_null(value=False).arg_true()[0])
            raise InputError(f"{row_name(frame, row)}: {given.name} is {given[row]}; its rows give {wanted[row]}")
