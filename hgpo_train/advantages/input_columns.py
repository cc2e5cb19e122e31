"""From a step table in any row order to the columns that estimators are written over.

    task_key          the rollouts that are compared; null in trajectories that were aborted
    trajectory_key    the rows of one trajectory; `step` orders them
    batch_key         the rows of one run and iteration
    reward            the step's reward, chosen, scaled and rounded as the parameters say
    penalty           what the step's action cost: `invalid_action_penalty` or 0
    return            R_t, the discounted rewards from this step on, less the penalty
    episode_return    S, the sum of the trajectory's rewards
    episode_score     S less this row's penalty
    state_hash        the state; next_state_hash the state that the step led to, null where that is not known
    history_hash_k    the state and the k states before it; null where there are fewer. context_hash_k: with actions

Keys are made by hashing, so they hold within one query only. Hashes are the table's own, or made from its texts. What
an estimator does not use is not computed. Bad rows are found by expressions; Python only writes the line.
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
    neighbour,
    returns,
    steps_left,
    trajectory_order,
    trajectory_starts,
)
from hgpo_train.advantages.windows import chain, key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from hgpo_train.advantages.parameters import Context, Parameters

BATCH_KEYS: Final = ("run", "iteration")
"""Rows that agree on these were rolled out for one update."""

GROUP_KEYS: Final = ("run", "iteration", "env_id", "task_id", "group")
"""Rows that agree on those of these columns that are there are rollouts of one task, to be compared."""

CHAINS: Final[Mapping[Context, str]] = {"states": "history_hash_", "states_actions": "context_hash_"}
"""The columns of each context, before their depth."""

_REWARDS: Final = {"reward": "reward", "success": "won", "score": "score"}


def group_keys(columns: Collection[str]) -> list[str]:
    """The columns that say which rollouts are compared: those of `GROUP_KEYS`, or `task` for `task_id`."""
    keys = [name for name in GROUP_KEYS if name in columns]
    if "task_id" in columns:
        return keys
    if "task" in columns:
        return [*keys, "task"]
    raise InputError(f"a step table names its tasks in `task_id` or `task`; this one has {_listed(columns)}")


def batch_keys(columns: Collection[str]) -> list[str]:
    """The columns that say which rows are one batch; none where all are."""
    return [name for name in BATCH_KEYS if name in columns]


def row_keys(columns: Collection[str]) -> list[str]:
    """The columns that name a row."""
    return [*group_keys(columns), "trajectory", "step"]


def require(columns: Collection[str], *alternatives: str, why: str) -> str:
    """The first of some columns that is there, or an InputError."""
    for name in alternatives:
        if name in columns:
            return name
    wanted = " or ".join(f"`{name}`" for name in alternatives)
    raise InputError(f"{why} needs the column {wanted}; the table has {_listed(columns)}")


def missing(column: str, columns: Collection[str], why: str, depth: int | None = None) -> InputError:
    """The error for a documented column that a table neither has nor can give."""
    deep = re.fullmatch(r"((?:history|context)_hash_)(\d+)", column)
    if not deep:
        return InputError(f"{why} needs the column `{column}`; the table has {_listed(columns)}")
    stem, depth = deep[1], int(deep[2]) if depth is None else depth
    stored = sum(f"{stem}{k}" in columns for k in range(depth + 1))
    lacking = ("action_hash", "action") if "state_hash" in columns or "state" in columns else ("state_hash", "state")
    had = f"has them to depth {stored - 1}" if stored else "has none"
    return InputError(
        f"contexts of depth {depth} need {stem}0 … {stem}{depth}: the table {had}, "
        f"and neither `{lacking[0]}` nor `{lacking[1]}` to make them from"
    )


def _listed(columns: Collection[str]) -> str:
    return ", ".join(columns) or "no columns"


# ----------------------------------------------------------------------------------------------------------- keys


def with_keys(steps: pl.LazyFrame, schema: pl.Schema, *further: pl.Expr) -> pl.LazyFrame:
    """Adds the keys, not yet null where trajectories were aborted, and further columns.

    Raises:
        InputError: A column that names rows is missing.
    """
    groups = group_keys(schema)
    for name in ("trajectory", "step"):
        require(schema, name, why="an advantage")
    if not schema["step"].is_integer():
        raise InputError(f"step must be a whole number in every row, got {schema['step']}")
    return steps.with_columns(
        key(groups).alias("task_key"),
        key([*(name for name in ("run",) if name in schema), "trajectory"]).alias("trajectory_key"),
        key(batch_keys(schema)).alias("batch_key"),
        *further,
    )


# -------------------------------------------------------------------------------------------------------- refusing


class StepTableError(InputError):
    """What is wrong with a table, found while a query runs.

    Polars raises it anew with the query's expressions below the message; the first line is all of it.
    """

    def __init__(self, line: str) -> None:
        super().__init__(line.partition("\n\n")[0])


_SHARED, _TWICE = 1, 2
_FIRST_REFUSAL: Final = 3


class RowCheck(NamedTuple):
    """What is wrong with some rows: which ones, the line, and the value that it shows as ``{shown}``."""

    bad: pl.Expr
    line: str
    shown: pl.Expr


def mark_bad_rows(refusals: Sequence[RowCheck], *, before: int = 0) -> pl.Expr:
    """`(fault)`, the number of what is wrong with a row: as before, else of the first refusal; 0 where nothing is."""
    fault = pl.col("(fault)")
    for number, refusal in enumerate(refusals, start=_FIRST_REFUSAL + before):
        bad = (fault == 0) & refusal.bad.fill_null(value=False)
        fault = pl.when(bad).then(pl.lit(number, pl.Int8)).otherwise(fault)
    return fault.alias("(fault)")


def raise_for_bad_rows(
    fault: pl.Expr, steps: pl.LazyFrame, refusals: Sequence[RowCheck], rows: Sequence[pl.Expr]
) -> pl.Expr:
    """True for each row; when collected, an InputError that names the first row with a fault if there is one.

    Args:
        fault: The number of what is wrong with a row, see `mark_bad_rows`.
        steps: The table; it is collected again to find the names of a bad row.
        refusals: What is refused, by number.
        rows: What names a row: the task's columns, trajectory and step.
    """

    def check(numbers: pl.Series) -> pl.Series:
        clean = numbers == 0
        if not clean.all():
            # Not by the streaming engine, which may have only the one thread that waits here.
            raise StepTableError(_line(steps.with_columns(fault), refusals, rows))
        return clean

    return fault.map_batches(check, return_dtype=pl.Boolean, is_elementwise=True)


def _line(steps: pl.LazyFrame, refusals: Sequence[RowCheck], rows: Sequence[pl.Expr]) -> str:
    """What is wrong with the first of the bad rows."""
    labels = [row.meta.output_name() for row in rows]
    shown = [refusal.shown.alias(f"(shown {number})") for number, refusal in enumerate(refusals)]
    found = steps.select("(fault)", *rows, *shown).filter(pl.col("(fault)") != 0).collect(engine="in-memory")
    number = int(str(found["(fault)"].min()))
    found = found.filter(pl.col("(fault)") == number)
    first = found.row(0, named=True)
    task, trajectory, step = (first[label] for label in labels[-3:])
    if number == _SHARED:
        tasks = found.filter(pl.col(labels[-2]) == trajectory).select(labels[:-2]).unique(maintain_order=True).rows()
        one, other = (", ".join(map(str, names)) for names in tasks[:2])
        problem = f"trajectory {trajectory!r} is in {one} and in {other}"
        return f"a trajectory belongs to one task, but {problem}; name trajectories apart"
    if number == _TWICE:
        return f"a step is there once, but trajectory {trajectory!r} of task {task!r} has step {step} twice"
    place = number - _FIRST_REFUSAL
    where = ", ".join(f"{label}={first[label]!r}" for label in labels)
    return f"{refusals[place].line.format(shown=first[f'(shown {place})'])} at {where}"


def absent(name: str) -> RowCheck:
    """Nulls of a column, in trajectories that count."""
    return RowCheck(pl.col(name).is_null() & ~pl.col("(aborted)"), f"{name} must not be null, as it is", pl.col(name))


def not_finite(value: pl.Expr, line: str) -> RowCheck:
    """Values that are no finite numbers, in trajectories that count."""
    return RowCheck(~value.is_finite().fill_null(value=False) & ~pl.col("(aborted)"), line, value)


# ------------------------------------------------------------------------------------------- making returns


def with_returns(steps: pl.LazyFrame, p: Parameters, schema: pl.Schema) -> tuple[pl.LazyFrame, list[RowCheck]]:
    """Adds `reward`, `penalty`, `return`, `episode_return` and `episode_score`; keys become null where it was aborted.

    Source: Eq. 5 of GiGPO (arXiv 2505.10978); `compute_step_discounted_returns` of verl-agent's core_gigpo.py, and
    `apply_invalid_action_penalty` of its trainers for when the penalty comes off.

    Args:
        steps: A table with keys.
        p: Which rewards, scaled, discounted and rounded how.
        schema: The columns of the table.

    Returns:
        The table, and what is refused of it, marked in `(fault)`.

    Raises:
        InputError: A column is missing.
    """
    source = require(schema, _REWARDS[p.reward], why=f"reward={p.reward!r}")
    chosen, penalty = pl.col(source).cast(pl.Float64), pl.lit(0.0)
    number = not_finite(pl.col("(source)"), f"{source} must be a finite number, got {{shown}}")
    refusals = [absent(source) if p.reward == "success" else number]
    if p.invalid_action_penalty:
        require(schema, "action_valid", why="invalid_action_penalty")
        penalty = pl.when(pl.col("action_valid").cast(pl.Boolean)).then(0.0).otherwise(p.invalid_action_penalty)
        refusals.append(absent("action_valid"))
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
        value["return"] = power(p.gamma, steps_left()) * pl.col("episode_return")
    counts = ~pl.col("(aborted)")
    steps = steps.with_columns(
        *(pl.when(counts).then(name).alias(name) for name in ("task_key", "batch_key")),
        *(penalised(of, p).alias(name) for name, of in value.items()),
        mark_bad_rows(refusals),
    )
    return steps, refusals


_OUTCOMES: Final = pl.Struct(
    {"return": pl.Float64, "episode_return": pl.Float64, "(aborted)": pl.Boolean, "(fault)": pl.Int8}
)


def _outcomes(columns: Sequence[pl.Series], gamma: float) -> pl.Series:
    """What depends on whole trajectories: returns, sums of rewards, whether a step was aborted, faults of names."""
    task, trajectory, step, reward = columns[:4]
    aborted = columns[4] if len(columns) > 4 else pl.repeat(value=False, n=len(step), eager=True)
    if not len(step):
        raise StepTableError("the step table has no rows")
    if step.null_count():
        raise StepTableError("step must be a whole number in every row, got null")
    order = trajectory_order(trajectory, step)
    fault = _faults(task, trajectory, step, in_order=order is None)
    if order is not None:
        trajectory, reward, aborted = (column.gather(order) for column in (trajectory, reward, aborted))
    starts, rewards = trajectory_starts(trajectory), reward.to_numpy()
    lengths = np.diff(starts, append=len(rewards))
    number = np.repeat(np.arange(len(starts)), lengths)  # each row's trajectory, from 0
    totals = np.bincount(number, rewards, len(starts))  # added in the order of steps
    ended = np.logical_or.reduceat(aborted.fill_null(value=False).to_numpy(), starts)
    made = [
        pl.Series("return", returns(rewards, starts, gamma)),
        pl.Series("episode_return", totals[number]),
        pl.Series("(aborted)", ended[number]),
    ]
    if order is not None:
        back = order.arg_sort()
        made = [column.gather(back) for column in made]
    return pl.DataFrame([*made, fault.alias("(fault)")]).to_struct("outcomes")


def _faults(task: pl.Series, trajectory: pl.Series, step: pl.Series, *, in_order: bool) -> pl.Series:
    """Marks trajectories in two tasks (`_SHARED`) and duplicate steps (`_TWICE`); 0 elsewhere."""
    moves = (task != task.shift(1)) & (trajectory == trajectory.shift(1))
    if in_order and not moves.any():
        return pl.zeros(len(step), pl.Int8, eager=True)  # as tables are written
    rows = pl.DataFrame([task.alias("task"), trajectory.alias("trajectory"), step.alias("step")])
    shared = (pl.col("task").n_unique() > 1).over("trajectory")
    twice = pl.struct("trajectory", "step").is_duplicated()
    return rows.select(pl.when(shared).then(_SHARED).when(twice).then(_TWICE).otherwise(0).cast(pl.Int8)).to_series()


def penalised(value: pl.Expr, p: Parameters) -> pl.Expr:
    """Returns or scores, rounded, with the penalty off where penalties come off these."""
    if p.penalty_at == "reward":
        return rounded(value, p)
    return rounded(rounded(value, p) - rounded(pl.col("penalty"), p), p)


def rounded(value: pl.Expr, p: Parameters) -> pl.Expr:
    """Values rounded to float32 (and held as float64), unless the precision is float64."""
    exact = value if p.precision == "float64" else value.cast(pl.Float32).cast(pl.Float64)
    return exact + 0.0  # one zero, not two


def power(base: float, exponent: pl.Expr) -> pl.Expr:
    """base^exponent in float64."""
    return pl.lit(base, pl.Float64).pow(exponent.cast(pl.Float64))


# ---------------------------------------------------------------------------------------------------------- hashes


def text_hash(name: str) -> pl.Expr:
    """The hashes of a column of texts, as `hgpo_envs.hashing` makes them; null where there is none."""

    def hashes(texts: pl.Series) -> pl.Series:
        distinct = texts.drop_nulls().unique()
        made = pl.Series(hashing.text_hashes(distinct), dtype=pl.Int64)
        return texts.replace_strict(distinct, made, default=None, return_dtype=pl.Int64)

    return pl.col(name).cast(pl.String).map_batches(hashes, return_dtype=pl.Int64, is_elementwise=True)


def with_hashes(steps: pl.LazyFrame, depth: int, schema: pl.Schema) -> pl.LazyFrame:
    """Adds the hashes that a table does not have but has the texts for, contexts down to a depth."""
    derived = [name for name in ("state", "action") if name in schema and f"{name}_hash" not in schema]
    steps = steps.with_columns(text_hash(name).alias(f"{name}_hash") for name in derived)
    there = {*schema, *(f"{name}_hash" for name in derived)}
    if "state_hash" not in there:
        return steps
    steps = steps.with_columns(_next_state(schema).alias("next_state_hash"))
    for kind, stem in CHAINS.items():
        stored = all(f"{stem}{k}" in schema for k in range(depth + 1))
        if not stored and (kind == "states" or "action_hash" in there):
            steps = _with_chain(steps, stem, depth, kind)
    return steps


def _next_state(columns: Collection[str]) -> pl.Expr:
    """Where each step led: what the table says, else the state of the trajectory's next step."""
    stored = [pl.col("next_state_hash")] if "next_state_hash" in columns else []
    texts = [text_hash("next_state")] if "next_state" in columns else []
    return pl.coalesce(*texts, *stored, neighbour(pl.col("state_hash"), 1))


def _with_chain(steps: pl.LazyFrame, stem: str, depth: int, kind: Context) -> pl.LazyFrame:
    """Contexts as chains of the states before a step, and of the actions between them."""
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
