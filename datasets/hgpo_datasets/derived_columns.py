"""Columns computed from the rows of a trajectory: order, hashes, returns and lengths.

The input is always complete trajectories. The writer and every importer use `complete`; `hgpo verify` uses `derived` to
recompute the same values and compare them with a file.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hgpo_datasets.rows import RowError, WrongRow, name_preview
from hgpo_datasets.schema import GROUP_KEY, SORT_KEY, columns
from hgpo_envs import hashing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Hashes = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""Hashes, int64 of shape (rows,), and a mask of the rows whose hash is known, bool of shape (rows,)."""

TRAJECTORY_KEY: Final = (*GROUP_KEY, "trajectory")

_ROUNDING: Final = 1e-9
"""Largest accepted difference between a supplied return and the exactly rounded sum."""


def complete(frame: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Sort the rows and compute every derived column.

    Args:
        frame: Complete trajectories with all columns of the schema. Supplied hashes of states are used: they may be
            those of keys. Other derived columns may be null or equal to the computed values.
        depth: Largest k of the history and context hashes in the schema.

    Raises:
        RowError: Rows violate the schema. The error lists the first such row of each trajectory.
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
    _check_derived(frame, computed)
    next_state = frame["next_state"]
    if (next_state.is_not_null().to_numpy() & ~last).any():
        next_state = next_state.set(pl.Series(~last), None)
    values = {**frame.to_dict(), **computed.to_dict(), "next_state": next_state}
    return pl.DataFrame([values[column.name] for column in columns(depth)])


def first_rows(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of the first row of each trajectory, bool of shape (rows,). The rows must be sorted."""
    changes = [pl.col(name).ne_missing(pl.col(name).shift()) for name in TRAJECTORY_KEY]
    return frame.select(pl.any_horizontal(changes)).to_series().to_numpy()


def broken_steps(frame: pl.DataFrame, first: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the indices of rows whose step differs from their position in the trajectory. The rows must be sorted."""
    starts, lengths = _spans(first)
    return np.flatnonzero(frame["step"].to_numpy() != np.arange(len(first)) - np.repeat(starts, lengths))


def row_name(frame: pl.DataFrame, row: int) -> str:
    """Return the description of a row for error messages."""
    task, trajectory = (name_preview(frame[name][row]) for name in ("task_id", "trajectory"))
    return f"task {task}, trajectory {trajectory}, step {frame['step'][row]}"


def value_problems(frame: pl.DataFrame, last: NDArray[np.bool_]) -> list[tuple[str, str, pl.Expr]]:
    """Return the value rules as (column, message, expression that selects the invalid rows)."""
    inner = pl.lit(pl.Series(~last))
    finite = ("reward", "score", "episode_return")
    problems = [(name, f"{name} is not finite", ~pl.col(name).is_finite()) for name in finite]
    problems += [(name, f"{name} is NaN", pl.col(name).is_nan()) for name in ("environment_s", "policy_s")]
    problems += [
        (flag, f"{flag} before the last row", pl.col(flag) & inner) for flag in ("terminated", "truncated", "aborted")
    ]
    name, logprobs, tokens = "response_logprobs", pl.col("response_logprobs"), pl.col("response_token_ids")
    if frame[name].null_count() < len(frame):
        problems.append((name, f"{name} contains NaN", logprobs.list.eval(pl.element().is_nan()).list.any()))
        problems.append((name, f"{name} has not one value per token", logprobs.list.len() != tokens.list.len()))
    return problems


def text_hashes(frame: pl.DataFrame) -> dict[str, Hashes]:
    """Return the hashes of `state`, `action` and `next_state` by column.

    Supplied hashes of states are used, because they may be those of keys; texts are hashed where there are none. The
    hash of an action is that of its text, and the supplied one only where the text is null.
    """
    return {
        "state": _hashes_of(frame["state"], frame["state_hash"], keys=True),
        "action": _hashes_of(frame["action"], frame["action_hash"], keys=False),
        "next_state": _hashes_of(frame["next_state"], frame["next_state_hash"], keys=True),
    }


def derived(
    frame: pl.DataFrame, first: NDArray[np.bool_], depth: int, hashes: Mapping[str, Hashes] | None = None
) -> pl.DataFrame:
    """Compute every derived column from the other columns.

    Args:
        frame: Sorted rows of complete trajectories.
        first: Mask of the first row of each trajectory, bool of shape (rows,).
        depth: Largest k of the history and context hashes.
        hashes: Result of `text_hashes` for the rows; computed if it is None.
    """
    (state, _), (action, known), (following, followed) = (hashes or text_hashes(frame)).values()
    starts, lengths = _spans(first)
    last = np.append(first[1:], True)
    rewards = frame["reward"]
    returns = [_exact_sum(rewards[int(start) : int(start + n)]) for start, n in zip(starts, lengths, strict=True)]
    history, exists = hashing.chain_columns(state, first, depth)
    context, _ = hashing.chain_columns(state, first, depth, action)
    context_exists = _all_known_between(exists, known)
    return pl.DataFrame(
        [
            pl.Series("episode_return", np.repeat(np.array(returns), lengths)),
            pl.Series("episode_length", np.repeat(lengths, lengths).astype(np.int32)),
            _episode_won(frame["won"], starts, lengths),
            pl.Series("state_hash", state),
            _nullable("action_hash", action, known),
            *(_nullable(f"history_hash_{k}", history[k], exists[k]) for k in range(depth + 1)),
            *(_nullable(f"context_hash_{k}", context[k], context_exists[k]) for k in range(depth + 1)),
            _nullable("next_state_hash", np.where(last, following, np.roll(state, -1)), followed | ~last),
        ]
    )


def _exact_sum(rewards: pl.Series) -> float:
    """Return the sum, rounded once: infinite if it exceeds the range of a float, NaN if it adds inf and -inf."""
    try:
        return math.fsum(rewards)
    except ValueError:  # inf and -inf together: only a damaged file contains them
        return math.nan
    except OverflowError:  # raised for a partial sum; the complete sum may still be representable
        total = sum(map(Fraction, rewards))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _episode_won(won: pl.Series, starts: NDArray[np.intp], lengths: NDArray[np.intp]) -> pl.Series:
    """Return, for each row, whether a step of its trajectory won; null if none did and the last one is unknown."""
    any_won = np.logical_or.reduceat(won.fill_null(value=False).to_numpy(), starts)
    known = any_won | won.is_not_null().to_numpy()[starts + lengths - 1]
    return _nullable("episode_won", np.repeat(any_won, lengths), np.repeat(known, lengths))


def _spans(first: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the index of each trajectory's first row, and the trajectories' lengths in steps."""
    starts = np.flatnonzero(first)
    return starts, np.diff(np.append(starts, len(first)))


def _hashes_of(texts: pl.Series, supplied: pl.Series, *, keys: bool) -> Hashes:
    """Return the hashes of texts. Where a text is null, or with `keys` where a hash is supplied, that one is used."""
    unused = texts.null_count() == len(texts) or (keys and not supplied.has_nulls())
    hashes = np.zeros(len(texts), np.int64) if unused else hashing.text_hashes(text or "" for text in texts.to_list())
    if not (texts.has_nulls() or (keys and supplied.null_count() < len(supplied))):
        return hashes, np.ones(len(texts), dtype=np.bool_)
    present, given = texts.is_not_null().to_numpy(), supplied.is_not_null().to_numpy()
    used = given if keys else given & ~present
    return np.where(used, supplied.fill_null(0).to_numpy(), hashes), present | given


def _all_known_between(exists: NDArray[np.bool_], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask of steps whose k previous states and actions are known, bool of shape (depth + 1, rows)."""
    if known.all():
        return exists
    whole = exists.copy()
    for k in range(1, len(exists)):
        before = np.ones_like(known)
        before[k:] = known[:-k]
        whole[k] &= whole[k - 1] & before
    return whole


def _nullable(name: str, values: NDArray[Any], defined: NDArray[np.bool_]) -> pl.Series:
    series = pl.Series(name, values)
    return series if defined.all() else series.set(pl.Series(~defined), None)


def _wrong(
    frame: pl.DataFrame, rows: NDArray[np.bool_] | pl.Series, column: str, text: str | Callable[[int], str]
) -> list[WrongRow]:
    """Return the first selected row of each trajectory as a `WrongRow`."""
    places: list[int] = np.flatnonzero(np.asarray(rows, dtype=np.bool_)).tolist()
    first: dict[str, int] = {}
    for place, name in zip(places, frame["trajectory"].gather(places), strict=True):
        first.setdefault(name, place)
    wrong = []
    for name, place in first.items():
        line = text if isinstance(text, str) else text(place)
        wrong.append(WrongRow(None, name, frame["step"][place], column, f"{row_name(frame, place)}: {line}"))
    return wrong


def _refuse(wrong: list[WrongRow]) -> None:
    if wrong:
        raise RowError(wrong)


def _check_steps(frame: pl.DataFrame, first: NDArray[np.bool_]) -> None:
    broken = np.zeros(len(frame), dtype=np.bool_)
    broken[broken_steps(frame, first)] = True
    text = "expected complete trajectories with steps 0, 1, 2, …; an earlier step is missing or duplicated"
    _refuse(_wrong(frame, broken, "step", text))
    seen: set[str] = set()
    twice = []
    for name in frame["trajectory"].gather(np.flatnonzero(first)):
        if name in seen:
            line = f"expected a trajectory identifier that is unique in the run; {name!r} is in two groups"
            twice.append(WrongRow(None, name, 0, "trajectory", line))
        seen.add(name)
    _refuse(twice)


def _check_values(frame: pl.DataFrame, last: NDArray[np.bool_]) -> None:
    problems = value_problems(frame, last)
    found = frame.select(wrong.any().alias(text) for _, text, wrong in problems).row(0)
    refused = []
    for (column, text, wrong), here in zip(problems, found, strict=True):
        if here:
            refused += _wrong(frame, frame.select(wrong.fill_null(value=False)).to_series(), column, text)
    _refuse(refused)


def _check_states(frame: pl.DataFrame, hashes: Mapping[str, Hashes], last: NDArray[np.bool_]) -> None:
    _, known = hashes["state"]
    needed = "expected `state`, or `state_hash` where texts are not stored"
    _refuse(_wrong(frame, ~known, "state", needed))
    inner = frame["next_state"].is_not_null().to_numpy() & ~last
    if inner.any():
        broken = (frame["next_state"] != frame["state"].shift(-1)).fill_null(value=False).to_numpy() & inner
        _refuse(_wrong(frame, broken, "next_state", "next_state is not the state of the next step"))


def _difference(given: pl.Series, wanted: pl.Series) -> Callable[[int], str]:
    return lambda row: f"expected {given.name} = {wanted[row]} (computed from the rows), received {given[row]}"


def _check_derived(frame: pl.DataFrame, computed: pl.DataFrame) -> None:
    """Raise if a sum of rewards is not finite, or if supplied derived values differ from the computed ones."""
    refused = []
    if not computed["episode_return"].is_finite().all():
        endless = ~computed["episode_return"].is_finite()
        text = "the sum of the trajectory's rewards is too large for a float"
        refused += _wrong(frame, endless, "reward", text)
    for wanted in computed:
        given = frame[wanted.name]
        if given.null_count() == len(given):
            continue
        differs = (given - wanted).abs() > _ROUNDING if given.dtype.is_float() else given.ne_missing(wanted)
        if differs.any():
            supplied = differs.fill_null(value=False) & given.is_not_null()
            refused += _wrong(frame, supplied, given.name, _difference(given, wanted))
    _refuse(refused)
