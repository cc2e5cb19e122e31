"""The input columns of estimators, derived from a step table with any row order.

A step table has one row per step of a rollout, with `task`, `trajectory`, `step`, `reward`, `action_valid`, `state` and
other columns (docs/estimators.md). An estimator receives it as a LazyFrame in which the rows of a trajectory are next
to each other, in the order of their steps, with these additional columns:

    task_key          int64    key of the rollouts that are compared; null in aborted trajectories
    trajectory_key    int64    key of the trajectory
    batch_key         int64    key of the rows of one run and iteration; null in aborted trajectories
    steps_left        int64    the number of steps that follow in the trajectory, T - t
    first             bool     whether the step is its trajectory's first
    penalty           float64  what is subtracted from a return for the step's action: `invalid_action_penalty` if the
                               action is invalid; 0 if it is valid, or with `penalty_at="reward"`
    step_reward       float64  r_t, the scaled reward of this step; with `penalty_at="reward"`, minus its penalty
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

Where a table has branches (`hgpo_datasets.branches`), these columns are those of whole trajectories, which begin with
their parents' steps; estimators receive every row once. Two more columns say where a branch leaves its parent:

    parent_key        int64    trajectory_key of the parent; null in other trajectories
    branch_step       int64    the first step of the branch; null in other trajectories

Keys are hashes and are valid only within one query. The table's own hashes are used if it has them; otherwise, or with
a `state_key`, they are computed from its texts.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_datasets.derived_columns import text_hashes
from hgpo_envs import hashing
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.plugins import answer_of
from hgpo_envs.state_keys import state_key
from hgpo_envs.wording import listed
from hgpo_train.advantages import branch_inputs
from hgpo_train.advantages.alfworld_nodes import ALFWORLD_NODES, with_alfworld_nodes
from hgpo_train.advantages.branch_inputs import parent_columns, with_parents
from hgpo_train.advantages.discounting import discounted
from hgpo_train.advantages.windows import chain, key, neighbour

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from hgpo_train.advantages.parameters import Context, Parameters, Precision

BATCH_KEYS: Final = ("run", "iteration")
"""Rows with equal values in these columns were collected for the same update."""

GROUP_KEYS: Final = ("run", "iteration", "env_id", "task_id", "group")
"""Rollouts with equal values in these columns are compared. Missing columns are ignored."""

CHAINS: Final[Mapping[Context, str]] = {
    "states": "history_hash_",
    "states_actions": "context_hash_",
}
"""The prefix of each context's columns; the depth follows."""

_HASH: Final = re.compile(
    r"state_hash|next_state_hash|action_hash|(?:history|context)_hash_\d+"
)
_NULLABLE: Final = re.compile(r"next_state.*|(?:history|context)_hash_[1-9]\d*")
_REWARDS: Final = {"reward": "reward", "success": "won", "score": "score"}
"""The column that each value of `Parameters.reward` selects."""

_FLAGS: Final = ("action_valid", "action_admissible", "aborted", "won")
_TEXTS: Final = frozenset({"state", "next_state", "action"})
_UNIQUE: Final = (
    "each trajectory in one task and group (names used again can be made unique, as with "
    "pl.format('{}/{}', 'task', 'trajectory'))"
)


def group_keys(columns: Collection[str]) -> list[str]:
    """Return the columns that identify a group of compared rollouts: those of `GROUP_KEYS`, or `task` for `task_id`."""
    keys = [name for name in GROUP_KEYS if name in columns]
    return keys if "task_id" in columns else [*keys, "task"]


def row_keys(columns: Collection[str]) -> list[str]:
    """Return the columns that identify a row."""
    return [*group_keys(columns), "trajectory", "step"]


def _sources(
    column: str,
    stored: Collection[str],
    p: Parameters,
) -> list[str]:
    """Return the columns of a table that a column is read or derived from."""
    if column in stored or not _HASH.fullmatch(column):
        return [column]
    state = ["state_hash"] if "state_hash" in stored else ["state"]
    if p.state_key == ALFWORLD_NODES:
        state.append("admissible_actions")
    action = "action_hash" if "action_hash" in stored else "action"
    if column == "action_hash":
        return [action]
    if column.startswith(CHAINS["states_actions"]):
        return [*state, action]
    return state


def columns_used(
    schema: pl.Schema,
    p: Parameters,
    reads: Sequence[str] | None,
    name: str,
) -> tuple[list[str], list[str], list[str]]:
    """Return the columns that an estimator reads, which of them must not be null, and which of all are used as stored.

    Args:
        schema: The columns of the table.
        p: The estimator's parameters.
        reads: The hashes and columns of texts that it reads. None is all that can be derived, of which none has to be
            but what a state key is made of.
        name: Its name, for the error message.

    Raises:
        InputError: Columns are missing (the line names them all), or have types that cannot be used.
    """
    # 1. The columns that are used as they are. With a state key, hashes of states are not; and where pandas has made
    # floats of hashes with nulls, these are not.
    stored = []
    for column, dtype in schema.items():
        is_lossy = dtype.is_float() and _NULLABLE.fullmatch(column)
        is_keyed = p.state_key and column != "action_hash" and _HASH.fullmatch(column)
        if not (is_lossy or is_keyed):
            stored.append(column)

    # 2. What is read, and what of it must not be null.
    if reads is None:
        reads = ["state_hash"] if p.state_key else []
    added = _added_rewards(p).meta.root_names()
    flags = ["action_valid"] if p.invalid_action_penalty else []
    needed = dict.fromkeys([*row_keys(schema), _REWARDS[p.reward], *added])
    checked: dict[str, None] = {}
    for column in [*reads, *flags]:
        # null where a trajectory ends, and absent where nothing is known of it
        if column == "next_state":
            continue
        sources = dict.fromkeys(_sources(column, stored, p))
        needed |= sources
        if not _NULLABLE.fullmatch(column):
            checked |= sources

    # 3. What cannot be read.
    if missing := [column for column in needed if column not in schema]:
        raise InputError(
            f"the table has no {listed([f'`{column}`' for column in missing])}, which {name} reads; it has "
            f"{', '.join(schema) or 'no columns'}. Rename or add columns (docs/estimators.md describes them)"
        )
    _check_types(schema, p, needed)

    used = {*needed, "aborted", *branch_inputs.COLUMNS}
    if any("next" in column for column in reads):
        used |= {"next_state", "next_state_hash"}
    return [column for column in schema if column in used], list(checked), stored


def _check_types(
    schema: pl.Schema,
    p: Parameters,
    needed: Collection[str],
) -> None:
    """Raise `InputError` if a column has a type that cannot be used as what it means."""
    step = schema["step"]
    # NumPy has none of 128 bits
    if not step.is_integer() or step in (pl.Int128, pl.UInt128):
        raise InputError(
            f"column step: expected integers, received {step}; convert it with cast"
        )

    expected_types = dict.fromkeys(_FLAGS, "booleans")
    for column in (_REWARDS[p.reward], *p.rewards):
        expected_types[column] = "numbers"
    for column, expected in expected_types.items():
        dtype = schema.get(column, pl.Null())
        if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
            raise InputError(
                f"column {column}: expected {expected}, received {dtype}; convert it with cast"
            )
    for column in needed:
        if _HASH.fullmatch(column) and schema[column] != pl.Int64():
            fix = (
                "reinterpret(signed=True)"
                if schema[column] == pl.UInt64()
                else "cast or hash"
            )
            raise InputError(
                f"column {column}: expected int64, received {schema[column]}; convert it with {fix}"
            )
    for column in _TEXTS & schema.keys():
        if schema[column].is_nested():
            raise InputError(
                f"column {column}: expected texts, received {schema[column]}; convert it with cast"
            )


def prepare(
    steps: pl.DataFrame,
    p: Parameters,
    reads: Sequence[str] | None = None,
    name: str = "an estimator",
    *,
    branches: bool = False,
) -> pl.LazyFrame:
    """Return a step table with the input columns of estimators. Columns of the table with the same names are replaced.

    The column `(row)` is the position of a row in the table, and `(aborted)` says whether its trajectory is aborted.
    Input columns are computed when the result is collected, if the query uses them.

    Args:
        steps: A step table.
        p: The parameters.
        reads: The hashes and columns of texts to add; by default all that can be derived.
        name: The estimator, for error messages.
        branches: Whether it takes tables with branches.

    Raises:
        InputError: A column is missing, rows are invalid, or there are branches that the estimator does not take.
    """
    # 1. The hashes to add. Those of an estimator that does not name them are the ones that the table allows.
    schema = steps.schema
    _, checked, stored = columns_used(schema, p, reads, name)
    if reads is None:
        depths = range(getattr(p, "history_length", hashing.DEFAULT_DEPTH) + 1)
        chains = [f"{prefix}{k}" for prefix in CHAINS.values() for k in depths]
        hashes = ["state_hash", "action_hash", "next_state_hash", *chains]
        reads = [
            column
            for column in hashes
            if set(_sources(column, stored, p)) <= set(schema)
        ]

    # 2. Rows without keys belong to nothing.
    if steps.is_empty():
        raise StepTableError("the step table has no rows")
    task = "task_id" if "task_id" in schema else "task"
    for column in (task, "trajectory", "step"):
        if steps[column].null_count():
            raise StepTableError(
                f"expected a value as {column} in every row, received null; drop or repair such rows"
            )

    # A table that has only one of these columns means something else by it.
    has_branches = (
        set(schema) >= branch_inputs.COLUMNS
        and steps["parent"].null_count() < steps.height
    )
    if has_branches:
        steps = with_parents(steps, name, accepted=branches)

    # 3. Each row's keys, reward and penalty.
    penalty = pl.lit(0.0)
    if p.invalid_action_penalty:
        is_valid = pl.col("action_valid").cast(pl.Boolean)
        penalty = pl.when(is_valid).then(0.0).otherwise(p.invalid_action_penalty)
    if p.penalty_at == "reward":
        penalty = rounded(penalty, p.precision)
    reward = pl.col(_REWARDS[p.reward]).cast(pl.Float64) * p.reward_scale
    keyed = steps.with_columns(
        key(group_keys(schema)).alias("task_key"),
        key(name for name in ("run", "trajectory") if name in schema).alias(
            "trajectory_key"
        ),
        rounded(reward, p.precision).alias("(reward)"),
        rounded(_added_rewards(p), p.precision).alias("(added)"),
        penalty.alias("penalty"),
        pl.int_range(pl.len()).alias("(row)"),
        **(parent_columns(schema) if branches else {}),
    )
    # Numbers are used repeatedly, and their chunks would be joined each time; texts are hashed once.
    keyed = pl.DataFrame(
        [column.rechunk() if column.dtype.is_numeric() else column for column in keyed]
    )

    # 4. Sums over trajectories, then the returns. Each operation of the official code is rounded like its float32.
    ordered = _with_outcomes(keyed, p, checked)
    plain = pl.col("(return)")
    score = pl.col("episode_return")
    if p.returns == "from_end":
        plain = p.gamma ** pl.col("steps_left").cast(pl.Float64) * score
    plain = rounded(plain, p.precision)
    score = rounded(score, p.precision)
    cost = rounded(pl.col("penalty"), p.precision)
    is_whole = ~pl.col("(aborted)")
    batch = key(name for name in BATCH_KEYS if name in schema)
    inputs = ordered.with_columns(
        pl.when(is_whole).then("task_key").alias("task_key"),
        pl.when(is_whole).then(batch).alias("batch_key"),
        plain.alias("plain_return"),
        rounded(plain - cost, p.precision).alias("return"),
        rounded(score - cost, p.precision).alias("episode_score"),
    )

    # 5. The hashes that the table does not have. A stored `next_state_hash` has nulls, which are filled.
    hashes_read = {name for name in reads if _HASH.fullmatch(name)}
    derived = hashes_read.difference(stored) | hashes_read.intersection(
        ["next_state_hash"]
    )
    inputs = _with_hashes(inputs, stored, p, derived) if derived else inputs
    texts = {"state", "next_state"}.intersection(reads)
    if p.state_key and texts:
        inputs = _with_keys_as_texts(inputs, p.state_key, texts)
    return inputs.filter(~pl.col("in_prefix")) if has_branches else inputs


def _added_rewards(p: Parameters) -> pl.Expr:
    """Return what `Parameters.rewards` and the penalty of long responses add to a step's scaled reward."""
    added = pl.lit(0.0)
    for column, weight in p.rewards.items():
        added += weight * pl.col(column).cast(pl.Float64)
    if p.overlong_penalty:
        # The penalty grows over the buffer below the limit, and is whole at the limit.
        length = pl.col("response_token_ids").list.len().cast(pl.Float64)
        above = length - (p.overlong_limit - p.overlong_buffer)
        added -= p.overlong_penalty * (above / p.overlong_buffer).clip(0.0, 1.0)
    return added


# --------------------------------------------------------------------------------------------- returns and invalid rows


def no_flag(numbers: pl.Series) -> pl.Series:
    """Return which numbers are neither 0, 1 nor null, and so no value of a flag."""
    return ((numbers != 0) & (numbers != 1)).fill_null(value=False)


def _with_outcomes(
    steps: pl.DataFrame,
    p: Parameters,
    checked: Sequence[str],
) -> pl.LazyFrame:
    """Sort rows, check them, and add the columns that depend on complete trajectories, such as discounted sums."""
    # 1. By trajectory and step, unless trajectories are contiguous and in order, which most tables are.
    keys = steps["trajectory_key"].to_numpy()
    step = steps["step"].to_numpy()
    first = np.append(True, keys[1:] != keys[:-1])
    is_next = first[1:] | (step[1:] >= step[:-1])
    if not (is_next.all() and pl.Series(keys[first]).is_unique().all()):
        steps = steps.sort("trajectory_key", "step")
        keys = steps["trajectory_key"].to_numpy()
        step = steps["step"].to_numpy()
        first = np.append(True, keys[1:] != keys[:-1])

    # 2. Where trajectories begin, and which are aborted: those with a row that says so.
    height = steps.height
    starts = np.flatnonzero(first)
    lengths = np.diff(starts, append=height)
    aborted = np.zeros(height, np.bool_)
    if "aborted" in steps.columns and steps["aborted"].cast(pl.Boolean).any():
        flags = steps["aborted"].cast(pl.Boolean).fill_null(value=False)
        any_row = np.logical_or.reduceat(flags.to_numpy(), starts)
        aborted = np.repeat(any_row, lengths)

    # 3. Rewards. Success and score are repeated in every row of a trajectory, and count once, at its end.
    column = _REWARDS[p.reward]
    rewards = steps["(reward)"].to_numpy()
    added = steps["(added)"].to_numpy()
    if p.reward != "reward":
        is_last = np.append(first[1:], True)
        if p.reward == "success":  # what is solved on the way is solved (`episode_won`)
            most = np.repeat(np.fmax.reduceat(np.abs(rewards), starts), lengths)
            solved = np.copysign(most, p.reward_scale)
            rewards = np.where(most > 0, solved, rewards)
        rewards = np.where(is_last, rewards, 0.0)

    # 4. Rows that cannot be used: the expectation, the column that is shown, and where it is not met.
    task = steps["task_key"].to_numpy()
    checks = {
        ("a step of 0 or more", "step"): step < 0,
        (_UNIQUE, "trajectory"): ~first & (task != np.roll(task, 1)),
        ("each step of a trajectory once", "step"): ~first & (step == np.roll(step, 1)),
        (f"a finite number as {column}", column): ~np.isfinite(rewards) & ~aborted,
    }
    if terms := _added_rewards(p).meta.root_names():
        expected = f"finite numbers as {listed(terms)}"
        checks[expected, "(added)"] = ~np.isfinite(added) & ~aborted
    _check_rows(steps, checks, ~aborted, checked)

    # 5. Sums over trajectories. A penalty at the reward is part of them, and is not subtracted from returns again.
    outcomes = {"first": first, "(aborted)": aborted}
    rewards = rewards + added
    if p.penalty_at == "reward":
        rewards = rewards - steps["penalty"].to_numpy()
        outcomes["penalty"] = np.zeros(height)
    # bincount adds in the order of steps, so the sums do not depend on the row order.
    number = np.repeat(np.arange(len(starts)), lengths)
    totals = np.bincount(number, rewards)
    outcomes["episode_return"] = np.repeat(totals, lengths)
    outcomes["step_reward"] = rewards
    steps = steps.with_columns(
        pl.Series(name, values) for name, values in outcomes.items()
    )

    # 6. What is computed only if a query uses it.
    ends = starts + lengths
    returns = pl.map_batches(
        ["step"],
        lambda _: pl.Series(discounted(rewards, p.gamma, starts)),
        pl.Float64(),
    )
    steps_left = pl.map_batches(
        ["step"],
        lambda _: pl.Series(np.repeat(ends, lengths) - np.arange(1, height + 1)),
        pl.Int64(),
    )
    return steps.lazy().with_columns(
        returns.alias("(return)"), steps_left.alias("steps_left")
    )


def _check_rows(
    steps: pl.DataFrame,
    checks: dict[tuple[str, str], NDArray[np.bool_]],
    whole: NDArray[np.bool_],
    checked: Sequence[str],
) -> None:
    """Raise `StepTableError` for the first row that fails a check, is no flag, or lacks a value if it is `whole`."""
    for name in _FLAGS:
        if name in steps.columns and steps[name].dtype.is_numeric():
            checks[f"true, false, 0 or 1 as {name}", name] = no_flag(
                steps[name]
            ).to_numpy()
    for name in checked:
        if steps[name].null_count():
            checks[f"a value as {name}", name] = (
                steps[name].is_null().to_numpy() & whole
            )
    for (expected, about), bad in checks.items():
        if bad.any():
            row = steps[int(bad.argmax())]
            value = row[about].item()
            received = "null" if value is None else str(value)
            if about == "step" and value >= 0:
                received = f"step {value} again"
            raise StepTableError(f"expected {expected}, received {received}", row)


def rounded(value: pl.Expr, precision: Precision) -> pl.Expr:
    """Return values as float64, rounded to float32 unless the precision is ``float64``."""
    exact = value if precision == "float64" else value.cast(pl.Float32).cast(pl.Float64)
    return exact + 0.0  # replaces -0.0 by 0.0


class StepTableError(InputError):
    """An invalid row of a step table, detected while a query runs.

    Polars re-raises an exception of a query and appends the query's expressions to its message, which are removed here.
    """

    def __init__(self, message: str, row: pl.DataFrame | None = None) -> None:
        text = message.partition("\n\n")[0]
        if row is not None:
            names = [
                f"{column}={row[column].item()!r}" for column in row_keys(row.columns)
            ]
            text += f" at {', '.join(names)}"
        super().__init__(text)


# ---------------------------------------------------------------------------------------------------------- hashes


def _with_hashes(
    steps: pl.LazyFrame,
    stored: Collection[str],
    p: Parameters,
    derived: set[str],
) -> pl.LazyFrame:
    """Add hashes that are derived from other columns."""
    has_nodes = p.state_key == ALFWORLD_NODES
    key_of = None
    if p.state_key is not None and not has_nodes:
        key_of = state_key(p.state_key, (ALFWORLD_NODES,))

    if has_nodes:
        steps = with_alfworld_nodes(steps, into="state_hash")
    elif "state_hash" not in stored and "state" in stored:
        steps = steps.with_columns(text_hash("state", key_of).alias("state_hash"))
    if "action_hash" not in stored and "action" in stored:
        steps = steps.with_columns(text_hash("action").alias("action_hash"))

    # The next state's hash: stored, else of its text, else that of the trajectory's next row.
    if "next_state_hash" in derived:
        after = []
        if "next_state_hash" in stored:
            after.append(pl.col("next_state_hash"))
        # a node depends on more than the text
        if "next_state" in stored and not has_nodes:
            after.append(text_hash("next_state", key_of))
        steps = steps.with_columns(
            next_state_hash=pl.coalesce(*after, neighbour("state_hash", 1))
        )
    return _with_chains(steps, stored, derived)


def _with_keys_as_texts(
    steps: pl.LazyFrame, name: str, texts: Collection[str]
) -> pl.LazyFrame:
    """Replace the texts of states that an estimator compares (`similarity`) by their keys."""
    if name == ALFWORLD_NODES:
        raise InputError(
            f"state_key: expected a function of texts, because texts are compared, received {name}; leave out "
            "similarity or the key"
        )
    key_of = partial(_key, state_key(name, (ALFWORLD_NODES,)))
    keys = [
        pl.col(text)
        .cast(pl.String)
        .map_elements(key_of, return_dtype=pl.String)
        .alias(text)
        for text in texts
        if text in steps.collect_schema()
    ]
    return steps.with_columns(keys)


def _with_chains(
    steps: pl.LazyFrame,
    stored: Collection[str],
    derived: set[str],
) -> pl.LazyFrame:
    """Add the hashes of histories up to the deepest that is derived."""
    # A chain of depth k is the chain of depth k - 1 of the row before, with this row's state.
    for context, prefix in CHAINS.items():
        depths = [
            int(name.removeprefix(prefix))
            for name in derived
            if name.startswith(prefix)
        ]
        for k in range(max(depths, default=-1) + 1):
            if f"{prefix}{k}" in stored:
                continue
            item = pl.col("state_hash")
            if k:
                before = neighbour(f"{prefix}{k - 1}", -1)
                if context == "states_actions":
                    before = chain(before, neighbour("action_hash", -1))
                item = chain(before, item)
            steps = steps.with_columns(item.alias(f"{prefix}{k}"))
    return steps


def text_hash(column: str, of: Callable[[str], str] | None = None) -> pl.Expr:
    """Return the int64 hashes of a text column, or of a function of its texts; null for null."""
    texts = pl.col(column).cast(pl.String)
    key_of = None if of is None else partial(_key, of)
    return texts.map_batches(
        partial(text_hashes, of=key_of), return_dtype=pl.Int64, is_elementwise=True
    )


def _key(of: Callable[[str], object], text: str) -> str:
    """Return a state's key. Raises StepTableError if the function, which can be a user's, fails or returns no text."""
    try:
        return answer_of("state key", of, text, str)
    except InputError as error:
        raise StepTableError(f"{error} for {one_line(repr(text))}") from error
