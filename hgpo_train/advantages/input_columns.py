"""The input columns of estimators, derived from a step table with any row order.

A step table has one row per step of a rollout, with `task`, `trajectory`, `step`, `reward`, `action_valid`, `state` and
other columns (docs/estimators.md). An estimator receives it as a LazyFrame with these additional columns:

    task_key          int64    key of the rollouts that are compared; null in aborted trajectories
    trajectory_key    int64    key of the trajectory; `step` orders its rows
    batch_key         int64    key of the rows of one run and iteration; null in aborted trajectories
    steps_left        int64    the number of steps that follow in the trajectory, T - t
    first             bool     whether the step is its trajectory's first
    penalty           float64  what is subtracted from a return for the step's action: `invalid_action_penalty` if the
                               action is invalid; 0 if it is valid, or with `penalty_at="reward"`
    return            float64  R_t, the discounted sum of rewards from this step, minus the penalty
    plain_return      float64  R_t without the penalty
    episode_return    float64  S, the sum of the trajectory's rewards
    episode_score     float64  S minus this row's penalty
    state_hash        int64    hash of the state
    action_hash       int64    hash of the action
    next_state_hash   int64    hash of the state after the step; null if unknown
    history_hash_k    int64    hash of the state and the k previous states; null if there are fewer
    context_hash_k    int64    like history_hash_k, with the actions between the states

Source of the returns: Eq. 5 of GiGPO (arXiv 2505.10978) and `compute_step_discounted_returns` of verl-agent's
core_gigpo.py; of the time at which the penalty is subtracted: `apply_invalid_action_penalty` of its trainers.

Keys are hashes and are valid only within one query. The table's own hashes are used if it has them; otherwise, or with
a `state_key`, they are computed from its texts.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs import hashing
from hgpo_envs.errors import InputError
from hgpo_envs.state_keys import state_key
from hgpo_envs.wording import listed
from hgpo_train.advantages.alfworld_nodes import ALFWORLD_NODES, with_alfworld_nodes
from hgpo_train.advantages.trajectories import discounted, in_order, neighbour
from hgpo_train.advantages.windows import chain, key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from hgpo_train.advantages.parameters import Context, Parameters, Precision

BATCH_KEYS: Final = ("run", "iteration")
"""Rows with equal values in these columns were collected for the same update."""

GROUP_KEYS: Final = ("run", "iteration", "env_id", "task_id", "group")
"""Rollouts with equal values in these columns are compared. Missing columns are ignored."""

CHAINS: Final[Mapping[Context, str]] = {"states": "history_hash_", "states_actions": "context_hash_"}
"""The prefix of each context's columns; the depth follows."""

_HASH: Final = re.compile(r"state_hash|next_state_hash|action_hash|(?:history|context)_hash_\d+")
_NULLABLE: Final = re.compile(r"next_state.*|(?:history|context)_hash_[1-9]\d*")
_REWARDS: Final = {"reward": "reward", "success": "won", "score": "score"}
"""The column that each value of `Parameters.reward` selects."""


def group_keys(columns: Collection[str]) -> list[str]:
    """Return the columns that identify a group of compared rollouts: those of `GROUP_KEYS`, or `task` for `task_id`."""
    keys = [name for name in GROUP_KEYS if name in columns]
    return keys if "task_id" in columns else [*keys, "task"]


def batch_keys(columns: Collection[str]) -> list[str]:
    """Return the columns that identify a batch; none if the table is a single batch."""
    return [name for name in BATCH_KEYS if name in columns]


def row_keys(columns: Collection[str]) -> list[str]:
    """Return the columns that identify a row."""
    return [*group_keys(columns), "trajectory", "step"]


def stored_columns(schema: pl.Schema, p: Parameters) -> Collection[str]:
    """Return the columns of a table that are used as they are: with a state key, hashes of states are not."""
    return [name for name in schema if name == "action_hash" or not _HASH.fullmatch(name)] if p.state_key else schema


def _sources(column: str, stored: Collection[str], p: Parameters) -> list[str]:
    """Return the columns of a table that a column is read or derived from."""
    if column in stored or not _HASH.fullmatch(column):
        return [column]
    state = ["state_hash"] if "state_hash" in stored else ["state"]
    state += ["admissible_actions"] if p.state_key == ALFWORLD_NODES else []
    action = ["action_hash" if "action_hash" in stored else "action"]
    if column == "action_hash":
        return action
    return [*state, *action] if column.startswith(CHAINS["states_actions"]) else state


def columns_used(
    schema: pl.Schema, stored: Collection[str], p: Parameters, reads: Sequence[str], name: str
) -> tuple[list[str], list[str]]:
    """Return the columns of a table that an estimator reads, and those of them that must not be null.

    Args:
        schema: The columns of the table.
        stored: Those of which hashes are used as they are.
        p: The estimator's parameters.
        reads: The hashes and columns of texts that it reads.
        name: Its name, for the error message.

    Raises:
        InputError: Columns are missing (the line names them all), or have types that cannot be used.
    """
    reward = _REWARDS[p.reward]
    flags = ["action_valid"] if p.invalid_action_penalty else []
    sources = {column: _sources(column, stored, p) for column in [*reads, *flags] if column != "next_state"}
    needed = dict.fromkeys([*row_keys(schema), reward, *(source for several in sources.values() for source in several)])
    if missing := [column for column in needed if column not in schema]:
        raise InputError(
            f"the table has no {listed([f'`{column}`' for column in missing])}, which {name} reads; it has "
            f"{', '.join(schema) or 'no columns'}. Rename or add columns (docs/estimators.md describes them)"
        )
    if not schema["step"].is_integer():
        raise InputError(f"column step: expected integers, received {schema['step']}; convert it with cast")
    if not (schema[reward].is_numeric() or schema[reward] in (pl.Boolean, pl.Null)):
        raise InputError(f"column {reward}: expected numbers, received {schema[reward]}; convert it with cast")
    optional = {"aborted", *(("next_state", "next_state_hash") if "next" in "".join(reads) else ())}
    known = [sources[column] for column in sources if not _NULLABLE.fullmatch(column)]
    checked = list(dict.fromkeys(source for several in known for source in several))
    return [column for column in schema if column in needed or column in optional], checked


def prepare(
    steps: pl.LazyFrame,
    p: Parameters,
    reads: Sequence[str] | None = None,
    name: str = "an estimator",
    *,
    schema: pl.Schema | None = None,
) -> pl.LazyFrame:
    """Add the input columns of estimators to a step table. Columns of the table with the same names are replaced.

    Args:
        steps: A step table.
        p: The parameters.
        reads: The hashes and columns of texts to add; by default all that can be derived.
        name: The estimator, for error messages.
        schema: The columns to use; by default those of `steps`.

    Raises:
        InputError: A column is missing. When the result is collected: rows are invalid.
    """
    schema = steps.collect_schema() if schema is None else schema
    stored = stored_columns(schema, p)
    if reads is None:
        depths = range(getattr(p, "history_length", hashing.DEFAULT_DEPTH) + 1)
        hashes = ["state_hash", "action_hash", "next_state_hash", *(f"{c}{k}" for c in CHAINS.values() for k in depths)]
        reads = [column for column in hashes if set(_sources(column, stored, p)) <= set(schema)]
        _, checked = columns_used(schema, stored, p, (), name)
    else:
        _, checked = columns_used(schema, stored, p, reads, name)
    steps = steps.with_columns(
        key(group_keys(schema)).alias("task_key"),
        key(name for name in ("run", "trajectory") if name in schema).alias("trajectory_key"),
        key(name for name in BATCH_KEYS if name in schema).alias("batch_key"),
    )
    columns = {
        "task": pl.col("task_key"),
        "step": pl.col("step"),
        "reward": rounded(pl.col(_REWARDS[p.reward]).cast(pl.Float64) * p.reward_scale, p.precision),
    }
    columns |= {f"no {name}": pl.col(name).is_null() for name in checked}
    if "aborted" in schema:
        columns["aborted"] = pl.col("aborted").cast(pl.Boolean).fill_null(value=False)
    penalty = pl.lit(0.0)
    if p.invalid_action_penalty:
        penalty = pl.when(pl.col("action_valid").cast(pl.Boolean)).then(0.0).otherwise(p.invalid_action_penalty)
        if p.penalty_at == "reward":
            columns["penalty"], penalty = rounded(penalty, p.precision), pl.lit(0.0)
    function = partial(_outcomes, names=list(columns), p=p, source=steps)
    outcomes = in_order(list(columns.values()), function, _OUTCOMES)
    steps = steps.with_columns(outcomes.alias("(outcomes)")).with_columns(pl.col("(outcomes)").struct.unnest())
    plain, score = pl.col("(return)"), pl.col("episode_return")
    if p.returns == "from_end":
        plain = p.gamma ** pl.col("steps_left").cast(pl.Float64) * score
    plain, score, cost = (rounded(value, p.precision) for value in (plain, score, penalty))
    steps = steps.with_columns(
        pl.when(~pl.col("(aborted)")).then(pl.col("task_key", "batch_key")),
        penalty=penalty,
        plain_return=plain,
        **{"return": rounded(plain - cost, p.precision)},
        episode_score=rounded(score - cost, p.precision),
    )
    derived = {name for name in reads if _HASH.fullmatch(name) and (name not in stored or name == "next_state_hash")}
    return _with_hashes(steps, stored, p, derived) if derived else steps


# --------------------------------------------------------------------------------------------- returns and invalid rows


_OUTCOMES: Final = pl.Struct(
    {
        "steps_left": pl.Int64,
        "first": pl.Boolean,
        "(aborted)": pl.Boolean,
        "episode_return": pl.Float64,
        "(return)": pl.Float64,
    }
)
"""The input columns that depend on complete trajectories; whether these are aborted, and discounted sums of rewards."""


def _outcomes(
    trajectory: pl.Series, columns: Sequence[pl.Series], names: Sequence[str], p: Parameters, source: pl.LazyFrame
) -> pl.Series:
    """Check ordered rows, and return their `_OUTCOMES`; `source` is the table, to name invalid rows."""
    if trajectory.is_empty():
        raise StepTableError("the step table has no rows")
    if columns[names.index("step")].null_count():
        raise StepTableError("expected an integer as step in every row, received null; drop or repair such rows")
    rows = {name: column.to_numpy() for name, column in zip(names, columns, strict=True)}
    keys, task, step, height = trajectory.to_numpy(), rows["task"], rows["step"], len(trajectory)
    first = np.append(True, keys[1:] != keys[:-1])
    starts = np.flatnonzero(first)
    lengths = np.diff(starts, append=height)
    left = np.repeat(starts + lengths, lengths) - np.arange(1, height + 1)
    aborted = np.zeros(height, np.bool_)
    if "aborted" in rows and rows["aborted"].any():
        aborted = np.repeat(np.logical_or.reduceat(rows["aborted"], starts), lengths)
    reward = rows["reward"] if p.reward == "reward" else np.where(left == 0, rows["reward"], 0.0)
    checks = {
        ("each trajectory in one task", "task"): ~first & (task != np.roll(task, 1)),
        ("each step of a trajectory once", "step"): ~first & (step == np.roll(step, 1)),
        (f"a finite number as {_REWARDS[p.reward]}", _REWARDS[p.reward]): ~np.isfinite(reward) & ~aborted,
    }
    checks |= {(f"a value as {name[3:]}", name[3:]): rows[name] & ~aborted for name in names if name.startswith("no ")}
    for (expected, column), bad in checks.items():
        if bad.any():
            bad_row = (pl.col("trajectory_key") == keys[bad.argmax()]) & (pl.col("step") == step[bad.argmax()])
            # inside another query, the streaming engine could wait for the only thread, which waits for it
            row = source.filter(bad_row).tail(1).collect(engine="in-memory")
            value = row["task_id" if column == "task" and "task_id" in row.columns else column].item()
            raise StepTableError(f"expected {expected}, received {'null' if value is None else value}", row)
    values = reward - rows.get("penalty", 0.0)
    # bincount adds in the order of steps, so the sums do not depend on the row order
    totals = np.bincount(np.repeat(np.arange(len(starts)), lengths), values)
    outcomes = (left, first, aborted, np.repeat(totals, lengths), discounted(values, p.gamma, starts))
    return pl.DataFrame(dict(zip(_OUTCOMES.to_schema(), outcomes, strict=True))).to_struct()


def rounded(value: pl.Expr, precision: Precision) -> pl.Expr:
    """Return values as float64, rounded to float32 unless the precision is ``float64``."""
    exact = value if precision == "float64" else value.cast(pl.Float32).cast(pl.Float64)
    return exact + 0.0  # replaces -0.0 by 0.0


class StepTableError(InputError):
    """An invalid row of a step table, detected while a query runs.

    Polars re-raises an exception of a query and appends the query's expressions to its message, which are removed here.
    """

    def __init__(self, message: str, row: pl.DataFrame | None = None) -> None:
        names = [] if row is None else [f"{column}={row[column].item()!r}" for column in row_keys(row.columns)]
        super().__init__(message.partition("\n\n")[0] + (f" at {', '.join(names)}" if names else ""))


# ---------------------------------------------------------------------------------------------------------- hashes


def _with_hashes(steps: pl.LazyFrame, stored: Collection[str], p: Parameters, derived: set[str]) -> pl.LazyFrame:
    """Add hashes that are derived from other columns."""
    nodes = p.state_key == ALFWORLD_NODES
    key_of = None if nodes or p.state_key is None else state_key(p.state_key, (ALFWORLD_NODES,))
    if nodes:
        steps = with_alfworld_nodes(steps, into="state_hash")
    elif "state_hash" not in stored and "state" in stored:
        steps = steps.with_columns(text_hash("state", key_of).alias("state_hash"))
    if "action_hash" not in stored and "action" in stored:
        steps = steps.with_columns(text_hash("action").alias("action_hash"))
    if "next_state_hash" in derived:
        after = [pl.col("next_state_hash")] if "next_state_hash" in stored else []
        after += [text_hash("next_state", key_of)] if "next_state" in stored and not nodes else []
        steps = steps.with_columns(next_state_hash=pl.coalesce(*after, neighbour(pl.col("state_hash"), 1)))
    for context, stem in CHAINS.items():
        depth = max((int(name.removeprefix(stem)) for name in derived if name.startswith(stem)), default=-1)
        for k in (k for k in range(depth + 1) if f"{stem}{k}" not in stored):
            item = pl.col("state_hash")
            if k:
                before = neighbour(pl.col(f"{stem}{k - 1}"), -1)
                action = neighbour(pl.col("action_hash"), -1)
                item = chain(before if context == "states" else chain(before, action), item)
            steps = steps.with_columns(item.alias(f"{stem}{k}"))
    return steps


def text_hash(column: str, of: Callable[[str], str] | None = None) -> pl.Expr:
    """Return the int64 hashes of a text column, or of a function of its texts; null for null."""

    def hashes(texts: pl.Series) -> pl.Series:
        distinct = texts.drop_nulls().unique()
        keys = distinct if of is None else [of(text) for text in distinct]
        codes = pl.Series(hashing.text_hashes(keys), dtype=pl.Int64)
        return texts.replace_strict(distinct, codes, default=None, return_dtype=pl.Int64)

    return pl.col(column).cast(pl.String).map_batches(hashes, return_dtype=pl.Int64, is_elementwise=True)
