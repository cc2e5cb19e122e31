"""What follows from a row's neighbours: order, hashes, returns, lengths. Computed here and nowhere else.

Rows are whole trajectories. The same function serves the writer and every import, and `hgpo verify` compares a
file with what this gives for its rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hgpo_datasets.schema import GROUP_KEY, SORT_KEY, columns
from hgpo_envs import hashing
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

TRAJECTORY_KEY = (*GROUP_KEY, "trajectory")


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
    _check_states(frame, last)
    computed = list(derived(frame, first, last, depth))
    for series in computed:
        _check_given(frame, frame[series.name], series)
    inner = pl.lit(pl.Series(~last))
    next_state = pl.when(~inner).then(pl.col("next_state")).alias("next_state")
    return frame.with_columns(*computed, next_state).select(column.name for column in columns(depth))


def first_rows(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """Where trajectories begin, for sorted rows: bool of shape (rows,)."""
    changes = [pl.col(name).ne_missing(pl.col(name).shift()) for name in TRAJECTORY_KEY]
    return frame.select(pl.any_horizontal(changes)).to_series().to_numpy()


def broken_steps(frame: pl.DataFrame, first: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The rows whose step is not their position in their trajectory, for sorted rows."""
    starts = np.flatnonzero(first)
    position = np.arange(len(first)) - np.repeat(starts, np.diff(np.append(starts, len(first))))
    return np.flatnonzero(frame["step"].to_numpy() != position)


def row_name(frame: pl.DataFrame, row: int) -> str:
    """How a message names a row."""
    return f"task {frame['task_id'][row]!r}, trajectory {frame['trajectory'][row]!r}, step {frame['step'][row]}"


def _check_steps(frame: pl.DataFrame, first: NDArray[np.bool_]) -> None:
    broken = broken_steps(frame, first)
    if len(broken):
        line = f"{row_name(frame, int(broken[0]))}: expected whole trajectories with steps 0, 1, 2, …"
        raise InputError(f"{line}; a step before it is missing or it came twice")
    trajectories = frame.filter(pl.Series(first))["trajectory"]
    if trajectories.is_duplicated().any():
        name = trajectories.filter(trajectories.is_duplicated())[0]
        raise InputError(f"trajectory {name!r} is in two groups; expected an identifier that is unique in the run")


def value_problems(frame: pl.DataFrame, last: NDArray[np.bool_]) -> list[tuple[str, pl.Expr]]:
    """The rules on values as (what is wrong, the rows where it is)."""
    inner = pl.lit(pl.Series(~last))
    problems = [(f"{name} is not finite", ~pl.col(name).is_finite()) for name in ("reward", "score")]
    problems += [(f"{name} is NaN", pl.col(name).is_nan()) for name in ("environment_s", "policy_s")]
    problems += [
        (f"{name} before the last row", pl.col(name) & inner) for name in ("terminated", "truncated", "aborted")
    ]
    logprobs, tokens = pl.col("response_logprobs"), pl.col("response_token_ids")
    if not frame["response_logprobs"].is_null().all():
        problems.append(("response_logprobs holds NaN", logprobs.list.eval(pl.element().is_nan()).list.any()))
        problems.append(("response_logprobs is not one a token", logprobs.list.len() != tokens.list.len()))
    return problems


def _check_values(frame: pl.DataFrame, last: NDArray[np.bool_]) -> None:
    problems = value_problems(frame, last)
    found = frame.select(wrong.fill_null(value=False).alias(name) for name, wrong in problems)
    for name, _ in problems:
        if found[name].any():
            row = found[name].arg_max()
            raise InputError(f"{row_name(frame, int(row or 0))}: {name}")


def derived(frame: pl.DataFrame, first: NDArray[np.bool_], last: NDArray[np.bool_], depth: int) -> Iterator[pl.Series]:
    """Every derived column, computed from the others.

    Args:
        frame: Sorted rows of whole trajectories.
        first: Where trajectories begin, bool of shape (rows,).
        last: Where they end, bool of shape (rows,).
        depth: The deepest hash.
    """
    state = _text_hashes(frame, "state")
    action = _text_hashes(frame, "action")
    following = _text_hashes(frame, "next_state")
    yield state
    yield action
    yield from _chains(state.to_numpy(), action, first, depth)
    yield state.shift(-1).zip_with(pl.Series(~last), following).alias("next_state_hash")
    yield from _episodes(frame["reward"].to_numpy(), first)


def _check_states(frame: pl.DataFrame, last: NDArray[np.bool_]) -> None:
    state, following = _text_hashes(frame, "state"), _text_hashes(frame, "next_state")
    if state.has_nulls():
        row = int(state.is_null().arg_true()[0])
        raise InputError(f"{row_name(frame, row)}: expected `state`, or `state_hash` where texts are not stored")
    broken = (following != state.shift(-1)).fill_null(value=False) & pl.Series(~last)
    if broken.any():
        row = int(broken.arg_true()[0])
        raise InputError(f"{row_name(frame, row)}: next_state is not the state of the next step")


def _text_hashes(frame: pl.DataFrame, name: str) -> pl.Series:
    """The hashes of a text column; where there is no text, those that the rows hold."""
    texts, given = frame[name], frame[f"{name}_hash"]
    present = texts.is_not_null()
    if not present.any():
        return given
    hashes = hashing.text_hashes(text or "" for text in texts.to_list())
    return pl.Series(given.name, hashes).zip_with(present, given)


def _episodes(reward: NDArray[np.float64], first: NDArray[np.bool_]) -> tuple[pl.Series, pl.Series]:
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(first)))
    sums = [math.fsum(reward[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
    return (
        pl.Series("episode_return", np.repeat(np.array(sums), lengths)),
        pl.Series("episode_length", np.repeat(lengths, lengths), dtype=pl.Int32),
    )


def _chains(state: NDArray[np.int64], action: pl.Series, first: NDArray[np.bool_], depth: int) -> list[pl.Series]:
    series = []
    unknown = action.is_null().to_numpy()
    for kind, actions in (("history", None), ("context", action.fill_null(0).to_numpy())):
        values, defined = hashing.chain_columns(state, first, depth, actions)
        for k in range(depth + 1):
            if actions is not None and k:
                defined[k] &= defined[k - 1] & ~_before(unknown, k)
            column = pl.Series(f"{kind}_hash_{k}", values[k])
            series.append(
                column
                if defined[k].all()
                else column.zip_with(pl.Series(defined[k]), pl.Series([None], dtype=pl.Int64))
            )
    return series


def _before(flags: NDArray[np.bool_], k: int) -> NDArray[np.bool_]:
    """Each row's value k rows before."""
    moved = np.zeros_like(flags)
    moved[k:] = flags[:-k]
    return moved


def _check_given(frame: pl.DataFrame, given: pl.Series, computed: pl.Series) -> None:
    """Raises for a derived value that came with the rows and is not what follows from them."""
    if given.is_null().all():
        return
    differs = (given - computed).abs() > 1e-9 if given.dtype.is_float() else given != computed
    if differs.fill_null(value=False).any():
        row = int(differs.fill_null(value=False).arg_true()[0])
        raise InputError(f"{row_name(frame, row)}: {given.name} is {given[row]}; its rows give {computed[row]}")
