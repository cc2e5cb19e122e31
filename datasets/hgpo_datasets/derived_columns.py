"""Columns computed from the rows of a trajectory: order, hashes, returns and lengths.

The input is always complete trajectories. The writer, and with it every importer, refuses rows that violate the rules
(`order_faults`, `value_faults`, `derived_faults`) and stores the columns of `derived`; `hgpo verify` uses the same
rules, and compares the columns with those of a file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_datasets.branches import (
    COLUMNS,
    branch_faults,
    with_prefixes,
)
from hgpo_datasets.schema import GROUP_KEY, SORT_KEY
from hgpo_envs import hashing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from hgpo_datasets.rows import Fault

TRAJECTORY_KEY: Final = [*GROUP_KEY, "trajectory"]

_READ: Final = (
    *SORT_KEY,
    "parent",
    "branch_step",
    "state",
    "action",
    "next_state",
    "won",
    "reward",
    "state_hash",
    "action_hash",
    "next_state_hash",
)
"""The columns from which others are computed."""

_ROUNDING: Final = 1e-9
"""Largest accepted difference between a supplied return and the computed sum."""


def any_won(won: pl.Expr) -> pl.Expr:
    """Return `episode_won` of a trajectory, aggregated from its `won` flags in the order of its steps.

    Null if the last flag is null and none is true: an environment may tell of the result in the last step alone.

    >>> flags = pl.DataFrame({"trajectory": ["a", "a", "b", "b"], "won": [None, False, None, None]})
    >>> flags.group_by("trajectory", maintain_order=True).agg(any_won(pl.col("won")))["won"].to_list()
    [False, None]
    """
    return won.any() | won.last()


def first_rows(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of the first row of each trajectory, bool of shape (rows,). The rows must be sorted."""
    changes = [pl.col(name).ne_missing(pl.col(name).shift()) for name in TRAJECTORY_KEY]
    return frame.select(pl.any_horizontal(changes)).to_series().to_numpy()


def order_faults(frame: pl.DataFrame, first: NDArray[np.bool_]) -> Iterator[Fault]:
    """Yield the rules of complete trajectories, with the rows that violate them. The rows must be sorted."""
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(first)))
    begins = frame["branch_step"].fill_null(0).to_numpy()[starts]
    contiguous = frame["step"].to_numpy() == np.arange(len(first)) - np.repeat(
        starts - begins, lengths
    )
    text = "expected contiguous steps 0, 1, 2, … (of a branch, from its branch_step); one is missing or duplicated"
    yield "step", text, pl.Series(~contiguous)
    names = frame["trajectory"].gather(starts)
    again = np.zeros(len(first), dtype=np.bool_)
    again[starts] = ~names.is_first_distinct()
    yield (
        "trajectory",
        "expected an identifier that is unique in the run; it is in two groups",
        pl.Series(again),
    )
    yield from branch_faults(frame, first)


def value_faults(frame: pl.DataFrame, first: NDArray[np.bool_]) -> Iterator[Fault]:
    """Yield the rules of values, with the rows that violate them. A null in a mask is no violation."""
    inner = pl.lit(pl.Series(np.append(~first[1:], False)))
    stateless = pl.col("state").is_null() & pl.col("state_hash").is_null()
    other_next = (pl.col("next_state") != pl.col("state").shift(-1)) & inner
    rules = [
        ("score", "expected a score in [0, 1]", ~pl.col("score").is_between(0, 1)),
        (
            "state",
            "expected `state`, or `state_hash` where texts are not stored",
            stateless,
        ),
        ("next_state", "next_state is not the state of the next step", other_next),
    ]
    returns = ("reward", "episode_return")
    timings = ("environment_s", "policy_s")
    ends = ("terminated", "truncated", "aborted")
    rules += [
        (name, f"{name} is not finite", ~pl.col(name).is_finite()) for name in returns
    ]
    rules += [(name, f"{name} is NaN", pl.col(name).is_nan()) for name in timings]
    rules += [
        (name, f"{name} before the last row", pl.col(name) & inner) for name in ends
    ]
    for name in ("prompt_token_ids", "response_token_ids"):
        if frame[name].null_count() < len(frame):
            no_id = pl.element().is_null() | (pl.element() < 0)
            no_ids = pl.col(name).list.eval(no_id).list.any()
            rules.append((name, f"{name}: expected whole numbers from 0", no_ids))
    name = "response_logprobs"
    if frame[name].null_count() < len(frame):
        logprobs = pl.col(name)
        other_length = logprobs.list.len() != pl.col("response_token_ids").list.len()
        rules.append(
            (
                name,
                f"{name} contains NaN",
                logprobs.list.eval(pl.element().is_nan()).list.any(),
            )
        )
        rules.append((name, f"{name} has not one value per token", other_length))
    masks = frame.select(
        rule.alias(str(number)) for number, (_, _, rule) in enumerate(rules)
    )
    for (column, text, _), mask in zip(rules, masks, strict=True):
        yield column, text, mask


def derived_faults(
    frame: pl.DataFrame, computed: pl.DataFrame, *, supplied: bool = True
) -> Iterator[Fault]:
    """Yield the derived columns, with the rows whose values differ from those of `derived`.

    If `supplied`, nulls are values that were not supplied, and no differences.
    """
    # Rewards are finite; a sum that is not has no column of its own to be refused in.
    infinite = ~computed["episode_return"].is_finite()
    yield (
        "reward",
        "the sum of the trajectory's rewards is too large for a float",
        infinite,
    )
    rules = []
    for column in computed:
        if supplied and frame[column.name].null_count() == len(frame):
            continue
        values = pl.col(column.name)
        expected = pl.lit(column)
        differs = values.ne_missing(expected)
        if column.dtype.is_float():
            differs &= ~((values - expected).abs() <= _ROUNDING).fill_null(value=False)
        rules.append(differs & values.is_not_null() if supplied else differs)
    for mask in frame.select(rules):
        yield mask.name, f"expected {mask.name} as computed from the rows", mask


def derived(frame: pl.DataFrame, first: NDArray[np.bool_], depth: int) -> pl.DataFrame:
    """Compute every derived column from the other columns.

    Supplied hashes of states are used, because they may be those of keys; texts are hashed where there are none. The
    hash of an action is that of its text, and the supplied one only where the text is null. The rows must be sorted;
    `first` is the mask of `first_rows`. Returns, lengths, results and hashes of a branch include its parents' steps.
    """
    if "parent" in frame.columns and frame["parent"].null_count() < len(frame):
        # The steps that a branch shares with its parents count in its sums and chains, and are rows of theirs.
        whole = with_prefixes(frame.select(_READ)).sort(SORT_KEY)
        computed = derived(whole.drop(COLUMNS), first_rows(whole), depth)
        return computed.filter(~whole["in_prefix"])
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(first))
    lengths = ends - starts
    # An exact sum is rounded once, so that the order of equal rewards does not matter; infinity if it is too large.
    rewards = frame["reward"].to_list()
    returns = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        try:
            returns.append(math.fsum(rewards[start:end]))
        except (OverflowError, ValueError):
            returns.append(math.inf)
    # A trajectory is won if one of its steps is, and the result is unknown if the last one is.
    won = frame["won"]
    any_won = np.logical_or.reduceat(won.fill_null(value=False).to_numpy(), starts)
    won_known = any_won | won.is_not_null().to_numpy()[ends - 1]
    # Hashes of states that are not supplied are those of the texts.
    of_states = {}
    for name in ("state", "next_state"):
        supplied = frame[f"{name}_hash"]
        others = frame[name].set(supplied.is_not_null(), None)
        of_states[name] = supplied.fill_null(text_hashes(others))
    state = of_states["state"]
    action = text_hashes(frame["action"]).fill_null(frame["action_hash"])
    last = pl.Series(np.append(first[1:], True))
    # The chains of states and, with actions mixed in, of contexts.
    history, exists = hashing.chain_columns(
        state.to_numpy(),
        first,
        depth,
    )
    context, _ = hashing.chain_columns(
        state.to_numpy(),
        first,
        depth,
        action.fill_null(0).to_numpy(),
    )
    context_exists = (
        exists
        if not action.has_nulls()
        else _all_known_between(exists, action.is_not_null().to_numpy())
    )
    values = {
        "episode_return": np.repeat(np.array(returns), lengths),
        "episode_length": np.repeat(lengths, lengths).astype(np.int32),
        "episode_won": np.repeat(any_won, lengths),
        "state_hash": state,
        "action_hash": action,
    }
    # Where values exist, for the columns that do not have one in every row.
    known = {"episode_won": np.repeat(won_known, lengths)}
    for chain, hashes, defined in (
        ("history", history, exists),
        ("context", context, context_exists),
    ):
        for k in range(depth + 1):
            values[f"{chain}_hash_{k}"] = hashes[k]
            known[f"{chain}_hash_{k}"] = defined[k]
    values["next_state_hash"] = of_states["next_state"].zip_with(last, state.shift(-1))
    table = pl.DataFrame(values)
    return table.with_columns(
        table[name].set(pl.Series(~mask), None)
        for name, mask in known.items()
        if not mask.all()
    )


def text_hashes(texts: pl.Series, of: Callable[[str], str] | None = None) -> pl.Series:
    """Return the int64 hashes of texts, or of a function of them; null for null. Each distinct text is hashed once."""
    distinct = texts.drop_nulls().unique()
    keys = distinct if of is None else [of(text) for text in distinct]
    codes = pl.Series([hashing.text_hash(key) for key in keys], dtype=pl.Int64)
    return texts.replace_strict(distinct, codes, default=None, return_dtype=pl.Int64)


def _all_known_between(
    exists: NDArray[np.bool_], known: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return the mask of steps whose k previous states and actions are known, bool of shape (depth + 1, rows)."""
    # Context k reaches one action further back than context k - 1.
    whole = exists.copy()
    for k in range(1, len(exists)):
        before = np.ones_like(known)
        before[k:] = known[:-k]
        whole[k] &= whole[k - 1] & before
    return whole
