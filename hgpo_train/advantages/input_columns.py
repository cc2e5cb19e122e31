"""The input columns of estimators, derived from a step table with any row order.

A step table has one row per step of a rollout, with `task`, `trajectory`, `step`, `reward`, `action_valid`, `state` and
other columns (docs/estimators.md). An estimator receives it as a LazyFrame with these additional columns:

    task_key          int64    key of the rollouts that are compared; null in aborted trajectories
    trajectory_key    int64    key of the trajectory; `step` orders its rows
    batch_key         int64    key of the rows of one run and iteration; null in aborted trajectories
    reward            float64  the step's reward: selected, scaled and rounded according to the parameters
    penalty           float64  penalty of the step's action: `invalid_action_penalty` if it is invalid, else 0
    return            float64  R_t, the discounted sum of rewards from this step, minus the penalty
    plain_return      float64  R_t without the penalty that is subtracted from returns (`penalty_at="return"`)
    episode_return    float64  S, the sum of the trajectory's rewards
    episode_score     float64  S minus this row's penalty
    state_hash        int64    hash of the state
    next_state_hash   int64    hash of the state after the step; null if unknown
    history_hash_k    int64    hash of the state and the k previous states; null if there are fewer
    context_hash_k    int64    like history_hash_k, with the actions between the states

Keys are hashes and are valid only within one query. The table's own state and history hashes are used if it has them;
otherwise, they are computed from its texts. Columns that an estimator does not use are not computed. Expressions find
invalid rows, and Python code runs only to write the error message.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from hgpo_envs import hashing
from hgpo_envs.errors import InputError
from hgpo_train.advantages.trajectories import (
    batches,
    discount_to_end,
    neighbour,
    returns,
    steps_left,
    trajectory_order,
    trajectory_starts,
)
from hgpo_train.advantages.windows import chain, key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from hgpo_train.advantages.parameters import Context, Parameters

BATCH_KEYS: Final = ("run", "iteration")
"""Rows with equal values in these columns were collected for the same update."""

GROUP_KEYS: Final = ("run", "iteration", "env_id", "task_id", "group")
"""Rollouts with equal values in these columns are compared. Missing columns are ignored."""

CHAINS: Final[Mapping[Context, str]] = {"states": "history_hash_", "states_actions": "context_hash_"}
"""The prefix of each context's columns; the depth follows."""

_REWARDS: Final = {"reward": "reward", "success": "won", "score": "score"}
"""The column that each value of `Parameters.reward` selects."""


def group_keys(columns: Collection[str]) -> list[str]:
    """Return the columns that identify a group of compared rollouts: those of `GROUP_KEYS`, or `task` for `task_id`.

    Raises:
        InputError: The table has neither `task_id` nor `task`.
    """
    keys = [name for name in GROUP_KEYS if name in columns]
    if "task_id" in columns:
        return keys
    if "task" in columns:
        return [*keys, "task"]
    raise InputError(f"expected a step table with a column `task_id` or `task`, received {_listed(columns)}; add one")


def batch_keys(columns: Collection[str]) -> list[str]:
    """Return the columns that identify a batch; none if the table is a single batch."""
    return [name for name in BATCH_KEYS if name in columns]


def row_keys(columns: Collection[str]) -> list[str]:
    """Return the columns that identify a row."""
    return [*group_keys(columns), "trajectory", "step"]


def require(columns: Collection[str], *alternatives: str, why: str) -> str:
    """Return the first existing column of some alternatives.

    Args:
        columns: The table's columns.
        alternatives: Names, in order of preference.
        why: What requires the column, for the error message.

    Raises:
        InputError: The table has none of them.
    """
    for name in alternatives:
        if name in columns:
            return name
    wanted = " or ".join(f"`{name}`" for name in alternatives)
    raise InputError(f"{why} needs the column {wanted}; the table has {_listed(columns)}")


def missing(column: str, columns: Collection[str], why: str, depth: int | None = None) -> InputError:
    """Return the error for an input column that a table does not have and that cannot be derived from it.

    Args:
        column: The missing column.
        columns: The table's columns.
        why: What requires the column, for the error message.
        depth: The depth of contexts that is required; None for the depth in the column's name.
    """
    deep = re.fullmatch(r"((?:history|context)_hash_)(\d+)", column)
    if not deep:
        return InputError(f"{why} needs the column `{column}`; the table has {_listed(columns)}")
    stem, depth = deep[1], int(deep[2]) if depth is None else depth
    stored = sum(f"{stem}{k}" in columns for k in range(depth + 1))
    absent = ("action_hash", "action") if "state_hash" in columns or "state" in columns else ("state_hash", "state")
    existing = f"these columns up to depth {stored - 1}" if stored else "none of these columns"
    return InputError(
        f"contexts of depth {depth} require {stem}0 … {stem}{depth}: the table has {existing}, "
        f"and neither `{absent[0]}` nor `{absent[1]}` to compute them from"
    )


def _listed(columns: Collection[str]) -> str:
    return ", ".join(columns) or "no columns"


# ----------------------------------------------------------------------------------------------------------- keys


def with_keys(steps: pl.LazyFrame, schema: pl.Schema, *further: pl.Expr) -> pl.LazyFrame:
    """Add the keys and further columns. `with_returns` sets keys of aborted trajectories to null later.

    Raises:
        InputError: A column that identifies rows is missing, or `step` is not an integer column.
    """
    groups = group_keys(schema)
    for name in ("trajectory", "step"):
        require(schema, name, why="an advantage")
    if not schema["step"].is_integer():
        raise InputError(f"expected an integer as step in every row, received {schema['step']}; cast the column")
    return steps.with_columns(
        key(groups).alias("task_key"),
        key([*(name for name in ("run",) if name in schema), "trajectory"]).alias("trajectory_key"),
        key(batch_keys(schema)).alias("batch_key"),
        *further,
    )


# ----------------------------------------------------------------------------------------------------- invalid rows


class StepTableError(InputError):
    """An invalid step table, detected while a query runs.

    Polars re-raises an exception of a query and appends the query's expressions to its message, which are removed here.
    """

    def __init__(self, line: str) -> None:
        super().__init__(line.partition("\n\n")[0])


_SHARED, _TWICE = 1, 2
_FIRST_CHECK: Final = 3
"""Values of `(fault)`: a trajectory in two tasks, a duplicate step, and the first `RowCheck`; 0 for a valid row."""


class RowCheck(NamedTuple):
    """A condition that invalid rows fulfil, and their error message.

    Attributes:
        bad: True for invalid rows.
        line: The message, without the names of the row; may contain ``{shown}``.
        shown: The invalid value, which replaces ``{shown}``.
    """

    bad: pl.Expr
    line: str
    shown: pl.Expr


def mark_bad_rows(checks: Sequence[RowCheck], *, before: int = 0) -> list[pl.Expr]:
    """Return two expressions: `(fault)`, the number of the check that a row fails (or 0), and `(bad)`, a boolean.

    A query without invalid rows never computes `(fault)`.

    Args:
        checks: The checks; earlier ones take precedence, also those of previous calls.
        before: The number of checks of previous calls.
    """
    found = [check.bad.fill_null(value=False) for check in checks]
    fault = pl.col("(fault)")
    for number, bad in enumerate(found, start=_FIRST_CHECK + before):
        fault = pl.when((fault == 0) & bad).then(pl.lit(number, pl.Int8)).otherwise(fault)
    marked = pl.col("(bad)") if before else pl.col("(fault)") != 0
    return [fault.alias("(fault)"), pl.any_horizontal(marked, *found).alias("(bad)")]


def raise_for_bad_rows(
    marks: Sequence[pl.Expr], steps: pl.LazyFrame, checks: Sequence[RowCheck], rows: Sequence[pl.Expr]
) -> pl.Expr:
    """Return an expression that is false for each row, and that raises an InputError for the first invalid row.

    The error is raised when a query with this expression is collected.

    Args:
        marks: `(fault)` and `(bad)` of `mark_bad_rows`.
        steps: The table. It is collected again to read the names of an invalid row.
        checks: All checks, in the order of the calls of `mark_bad_rows`.
        rows: The expressions that identify a row: the task's columns, trajectory and step.
    """
    fault, bad = marks

    def check(found: pl.Series) -> pl.Series:
        if found.any():
            # `_line` uses the in-memory engine: the streaming engine may have a single thread, which waits here.
            raise StepTableError(_line(steps.with_columns(fault), checks, rows))
        return found

    return bad.map_batches(check, return_dtype=pl.Boolean, is_elementwise=True)


def _line(steps: pl.LazyFrame, checks: Sequence[RowCheck], rows: Sequence[pl.Expr]) -> str:
    """Return the error message of the first invalid row."""
    labels = [row.meta.output_name() for row in rows]
    shown = [check.shown.alias(f"(shown {number})") for number, check in enumerate(checks)]
    found = steps.select("(fault)", *rows, *shown).filter(pl.col("(fault)") != 0).collect(engine="in-memory")
    number = int(str(found["(fault)"].min()))
    found = found.filter(pl.col("(fault)") == number)
    first = found.row(0, named=True)
    task, trajectory, step = (first[label] for label in labels[-3:])
    if number == _SHARED:
        tasks = found.filter(pl.col(labels[-2]) == trajectory).select(labels[:-2]).unique(maintain_order=True).rows()
        one, other = (", ".join(map(str, names)) for names in tasks[:2])
        problem = f"trajectory {trajectory!r} is in {one} and in {other}"
        return f"expected each trajectory in one task, but {problem}; use unique trajectory names"
    if number == _TWICE:
        problem = f"trajectory {trajectory!r} of task {task!r} has step {step} twice"
        return f"expected unique steps, but {problem}; remove duplicate rows or use unique trajectory names"
    place = number - _FIRST_CHECK
    where = ", ".join(f"{label}={first[label]!r}" for label in labels)
    return f"{checks[place].line.format(shown=first[f'(shown {place})'])} at {where}"


def absent(name: str, expected: str | None = None) -> RowCheck:
    """Return the check for nulls in a column, except in aborted trajectories."""
    line = f"expected {expected or f'a value as {name}'}, received null"
    return RowCheck(pl.col(name).is_null() & ~pl.col("(aborted)"), line, pl.col(name))


def not_finite(value: pl.Expr, line: str) -> RowCheck:
    """Return the check for values that are not finite numbers, except in aborted trajectories."""
    return RowCheck(~value.is_finite().fill_null(value=False) & ~pl.col("(aborted)"), line, value)


# ------------------------------------------------------------------------------------------------ rewards and penalties


def with_returns(steps: pl.LazyFrame, p: Parameters, schema: pl.Schema) -> tuple[pl.LazyFrame, list[RowCheck]]:
    """Add `reward`, `penalty`, `return`, `plain_return`, `episode_return` and `episode_score`.

    In aborted trajectories, `task_key` and `batch_key` become null, which excludes them from all groups.

    Source: Eq. 5 of GiGPO (arXiv 2505.10978); `compute_step_discounted_returns` of verl-agent's core_gigpo.py, and
    `apply_invalid_action_penalty` of its trainers for the time at which the penalty is subtracted.

    Args:
        steps: A table with keys (`with_keys`).
        p: The reward's column and scale, the discount, the penalty and the precision.
        schema: The columns of the step table.

    Returns:
        The table with `(fault)` and `(bad)` of `mark_bad_rows`, and the checks.

    Raises:
        InputError: A column is missing.
    """
    source = require(schema, _REWARDS[p.reward], why=f"reward={p.reward!r}")
    chosen, penalty = pl.col(source).cast(pl.Float64), pl.lit(0.0)
    number = not_finite(pl.col("(source)"), f"expected a finite number as {source}, received {{shown}}")
    checks = [absent(source) if p.reward == "success" else number]
    if p.invalid_action_penalty:
        require(schema, "action_valid", why="invalid_action_penalty")
        penalty = pl.when(pl.col("action_valid").cast(pl.Boolean)).then(0.0).otherwise(p.invalid_action_penalty)
        checks.append(absent("action_valid"))
    if p.reward != "reward":
        chosen = pl.when(steps_left() == 0).then(chosen).otherwise(0.0)
    steps = steps.with_columns(chosen.alias("(source)"), penalty.alias("penalty"))
    reward = rounded(pl.col("(source)") * p.reward_scale, p)
    if p.penalty_at == "reward":
        reward = reward - rounded(pl.col("penalty"), p)
    read = [pl.col("task_key"), pl.col("trajectory_key"), pl.col("step"), reward]
    if "aborted" in schema:
        read.append(pl.col("aborted").cast(pl.Boolean))
    outcomes = batches(read, partial(_outcomes, gamma=p.gamma), _OUTCOMES)
    steps = steps.with_columns(reward.alias("reward"), outcomes.alias("(outcomes)"))
    steps = steps.with_columns(pl.col("(outcomes)").struct.unnest())
    value = {"episode_score": pl.col("episode_return"), "return": pl.col("return")}
    if p.returns == "from_end":
        value["return"] = discount_to_end(p.gamma) * pl.col("episode_return")
    counts = ~pl.col("(aborted)")
    steps = steps.with_columns(
        *(pl.when(counts).then(name).alias(name) for name in ("task_key", "batch_key")),
        *(penalised(of, p).alias(name) for name, of in value.items()),
        rounded(value["return"], p).alias("plain_return"),
        *mark_bad_rows(checks),
    )
    return steps, checks


_OUTCOMES: Final = pl.Struct(
    {"return": pl.Float64, "episode_return": pl.Float64, "(aborted)": pl.Boolean, "(fault)": pl.Int8}
)


def _outcomes(columns: Sequence[pl.Series], gamma: float) -> pl.Series:
    """Return the values that depend on complete trajectories, as a struct in row order; see `_OUTCOMES`."""
    task, trajectory, step, reward, *flags = columns
    if not len(step):
        raise StepTableError("the step table has no rows")
    if step.null_count():
        raise StepTableError("expected an integer as step in every row, received null; drop or repair such rows")
    order = trajectory_order(trajectory, step)
    fault = _faults(task, trajectory, step, in_order=order is None)
    if order is not None:
        trajectory, reward, *flags = (column.gather(order) for column in (trajectory, reward, *flags))
    starts, rewards = trajectory_starts(trajectory), reward.to_numpy()
    lengths = np.diff(starts, append=len(rewards))
    # bincount adds in the order of steps, so the sums do not depend on the row order.
    totals = np.bincount(np.repeat(np.arange(len(starts)), lengths), rewards, len(starts))
    ended = np.zeros(len(starts), np.bool_)
    for flag in flags:
        marked = flag.fill_null(value=False) if flag.null_count() else flag
        ended = np.logical_or.reduceat(marked.to_numpy(), starts)
    made = [returns(rewards, starts, gamma), np.repeat(totals, lengths), np.repeat(ended, lengths)]
    if order is not None:
        back = order.arg_sort().to_numpy()
        made = [values[back] for values in made]
    columns = [pl.Series(name, values) for name, values in zip(_OUTCOMES.to_schema(), [*made, fault], strict=True)]
    return pl.DataFrame(columns).to_struct("outcomes")


def _faults(task: pl.Series, trajectory: pl.Series, step: pl.Series, *, in_order: bool) -> NDArray[np.int8]:
    """Return `_SHARED` for trajectories in two tasks, `_TWICE` for duplicate steps, and 0 for other rows."""
    tasks, trajectories = task.to_numpy(), trajectory.to_numpy()
    if in_order and not ((tasks[1:] != tasks[:-1]) & (trajectories[1:] == trajectories[:-1])).any():
        return np.zeros(len(step), np.int8)  # the usual case: contiguous trajectories with ascending steps
    rows = pl.DataFrame([task.alias("task"), trajectory.alias("trajectory"), step.alias("step")])
    shared = (pl.col("task").n_unique() > 1).over("trajectory")
    twice = pl.struct("trajectory", "step").is_duplicated()
    faults = pl.when(shared).then(_SHARED).when(twice).then(_TWICE).otherwise(0).cast(pl.Int8)
    return rows.select(faults).to_series().to_numpy()


def penalised(value: pl.Expr, p: Parameters) -> pl.Expr:
    """Return rounded returns or scores; subtract the penalty with ``penalty_at="return"``."""
    if p.penalty_at == "reward":
        return rounded(value, p)
    return rounded(rounded(value, p) - rounded(pl.col("penalty"), p), p)


def rounded(value: pl.Expr, p: Parameters) -> pl.Expr:
    """Return values as float64, rounded to float32 unless the precision is ``float64``."""
    exact = value if p.precision == "float64" else value.cast(pl.Float32).cast(pl.Float64)
    return exact + 0.0  # replaces -0.0 by 0.0


def power(base: float, exponent: pl.Expr) -> pl.Expr:
    """Return base^exponent as float64."""
    return pl.lit(base, pl.Float64).pow(exponent.cast(pl.Float64))


# ---------------------------------------------------------------------------------------------------------- hashes


def text_hash(name: str) -> pl.Expr:
    """Return the int64 hashes of a text column (`hgpo_envs.hashing.text_hashes`); null for null."""

    def hashes(texts: pl.Series) -> pl.Series:
        distinct = texts.drop_nulls().unique()
        made = pl.Series(hashing.text_hashes(distinct), dtype=pl.Int64)
        return texts.replace_strict(distinct, made, default=None, return_dtype=pl.Int64)

    return pl.col(name).cast(pl.String).map_batches(hashes, return_dtype=pl.Int64, is_elementwise=True)


def with_hashes(steps: pl.LazyFrame, depth: int, schema: pl.Schema) -> pl.LazyFrame:
    """Add missing hashes of states, actions and contexts that can be computed from a table's other columns.

    Args:
        steps: A table with keys.
        depth: The maximum depth k of `history_hash_k` and `context_hash_k`.
        schema: The columns of the step table.
    """
    derived = [name for name in ("state", "action") if name in schema and f"{name}_hash" not in schema]
    steps = steps.with_columns(text_hash(name).alias(f"{name}_hash") for name in derived)
    available = {*schema, *(f"{name}_hash" for name in derived)}
    if "state_hash" not in available:
        return steps
    steps = steps.with_columns(_next_state(schema).alias("next_state_hash"))
    for kind, stem in CHAINS.items():
        stored = all(f"{stem}{k}" in schema for k in range(depth + 1))
        if not stored and (kind == "states" or "action_hash" in available):
            steps = _with_chain(steps, stem, depth, kind)
    return steps


def _next_state(columns: Collection[str]) -> pl.Expr:
    """Return the hash of each step's next state: the stored value, else the state of the trajectory's next step."""
    stored = [pl.col("next_state_hash")] if "next_state_hash" in columns else []
    texts = [text_hash("next_state")] if "next_state" in columns else []
    return pl.coalesce(*stored, *texts, neighbour(pl.col("state_hash"), 1))


def _with_chain(steps: pl.LazyFrame, stem: str, depth: int, kind: Context) -> pl.LazyFrame:
    """Add contexts of all depths: chained hashes of the previous states, optionally with the actions between them."""
    before = {
        (name, k): neighbour(pl.col(f"{name}_hash"), -k).alias(f"({name} {k})")
        for name in ("state", "action")[: 2 if kind == "states_actions" else 1]
        for k in range(1, depth + 1)
    }
    steps = steps.with_columns(before.values())
    made = {0: pl.col("state_hash")}
    for k in range(1, depth + 1):
        found = pl.col(f"(state {k})")
        for back in range(k, 0, -1):
            if ("action", back) in before:
                found = chain(found, pl.col(f"(action {back})"))
            found = chain(found, pl.col(f"(state {back - 1})") if back > 1 else pl.col("state_hash"))
        made[k] = found
    return steps.with_columns(value.alias(f"{stem}{k}") for k, value in made.items())
