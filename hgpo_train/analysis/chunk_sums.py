"""The sums of a chunk of a step table from which statistics are made: one row per task and level, state or episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from hgpo_datasets.branches import roots
from hgpo_datasets.derived_columns import any_won
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.state_keys import mask_numbers
from hgpo_envs.wording import listed
from hgpo_train.advantages.alfworld_nodes import ALFWORLD_NODES, NOTHING
from hgpo_train.advantages.input_columns import CHAINS, prepare, row_keys, text_hash
from hgpo_train.advantages.windows import chain
from hgpo_train.analysis.level_sums import (
    Groups,
    counts,
    exchanged,
    spread,
    sum_by,
    unbiased_squares,
)
from hgpo_train.measures import TASK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hgpo_datasets.partitions import Partition
    from hgpo_train.advantages.registry import Estimator
    from hgpo_train.analysis.level_sums import Floats

ORACLE: Final = "oracle"
ALL: Final = "(all)"
"""The column that statistics are split by if the caller names none."""
TEXTS: Final = 100
"""The number of states of a chunk whose texts are kept."""

_READ: Final = (
    "state_hash",
    "state",
    "action_hash",
    "action",
    "admissible_actions",
    "action_admissible",
    "aborted",
    "action_valid",
    "won",
    "reward",
    "score",
)


class Settings(NamedTuple):
    """The arguments of `statistics` that the sums of a chunk depend on."""

    by: tuple[str, ...]
    estimator: Estimator
    # whether steps whose states reply to actions that changed nothing are left out
    variants: tuple[bool, ...]
    permutations: int
    seed: int


def part_sums(
    numbered: tuple[int, Partition | pl.LazyFrame], settings: Settings
) -> tuple[int, list[list[tuple[str, pl.DataFrame]]]]:
    """Return the number of rows of a part of a table, and the named sums of each variant."""
    place, part = numbered
    table = _read(part if isinstance(part, pl.LazyFrame) else part.scan(), settings)

    # Units are numbered; the steps of a trajectory must be in one of them.
    keys = [*settings.by, "(task)"]
    units = table.select(keys).unique(maintain_order=True)
    units = units.with_row_index("(unit)").cast({"(unit)": pl.Int64})
    table = table.join(
        units, on=keys, how="left", nulls_equal=True, maintain_order="left"
    )
    of_trajectory = table.group_by(row_keys(table.columns)[:-1])
    units_of_each = of_trajectory.agg(pl.col("(unit)").n_unique())
    if (units_of_each["(unit)"] > 1).any():
        received = listed(list(settings.by))
        raise InputError(
            f"columns to split by: expected one value in each trajectory, received {received}"
        )

    prepared = _prepared(table, settings)
    episodes = ("episodes", _episode_sums(prepared, units))
    prepared = prepared.filter(~pl.col("(aborted)"))
    variants = []
    for without_unchanged in settings.variants:
        kept = (
            prepared.filter(~pl.col("(unchanged)")) if without_unchanged else prepared
        )
        variants.append([episodes, *_sums(kept, units, settings, place)])
    return table.height, variants


def _read(steps: pl.LazyFrame, settings: Settings) -> pl.DataFrame:
    """Return the columns of a part that are needed, with `(task)`, the name of the task, without branches."""
    steps = roots(steps)
    schema = steps.collect_schema()
    for name in settings.by:
        if name not in schema and name != ALL:
            raise InputError(unknown("column to split by", name, schema))
    read = {*_READ, *settings.estimator.columns(schema)}
    if (
        "action_admissible" in schema
        and settings.estimator.parameters.state_key != ALFWORLD_NODES
    ):
        read.discard("admissible_actions")  # the widest column
    wanted = {*row_keys(schema), *settings.by, *read}
    task = (
        [name for name in TASK if name in schema] if "task_id" in schema else ["task"]
    )
    texts = [pl.col(name).cast(pl.String) for name in task]
    named = pl.concat_str(texts, separator=" ", ignore_nulls=True).alias("(task)")
    return (
        steps.select(name for name in schema if name in wanted)
        .collect()
        .with_columns(pl.lit(0).alias(ALL), named)
    )


def _sums(
    steps: pl.DataFrame, units: pl.DataFrame, settings: Settings, place: int
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the named sums of prepared steps; random numbers depend on the place of the part in the table."""
    p = settings.estimator.parameters
    contexts = {
        str(k): pl.col(f"{CHAINS[p.context]}{k}") for k in range(p.history_length + 1)
    }
    if "(whole)" in steps.columns:
        contexts[ORACLE] = pl.col("(whole)")
    groups = {
        level: _groups(steps, context, units.height)
        for level, context in contexts.items()
    }
    yield (
        "sizes",
        pl.concat(_sizes(level, group, units) for level, group in groups.items()),
    )
    yield "states", _states(steps, f"{CHAINS[p.context]}0", groups["0"], units)

    # 1. What does not depend on returns.
    trajectories = steps["trajectory_key"].to_numpy()
    rows = sum_by(steps["(unit)"].to_numpy(), np.ones(steps.height), units.height)
    masked = np.full(units.height, np.nan)
    if "state" in steps.columns and p.state_key is None:
        masked = counts(_groups(steps, pl.col("(masked)"), units.height), trajectories)[
            "shared"
        ]
    structure = {}
    for level, group in groups.items():
        structure[level] = counts(group, trajectories) | {
            "rows": rows,
            "masked": masked,
            "whole_pairs": group.pairs(),
        }
        # Steps with fewer states than the level has are compared by their whole histories, where these are known.
        if len(group.rows) < steps.height and ORACLE in contexts:
            compared = _groups(
                steps, pl.coalesce(contexts[level], "(whole)"), units.height
            )
            structure[level]["whole_pairs"] = compared.pairs()

    # 2. What does, for the returns themselves and for each permutation.
    returns = steps["return"].to_numpy()
    seeds = (
        [settings.seed, place, permutation, 0]
        for permutation in range(settings.permutations)
    )
    generators = map(np.random.default_rng, seeds)
    values = np.stack(
        [returns, *exchanged(groups["0"], trajectories, returns, generators)]
    )
    of_returns = _with_returns(values, steps, groups, settings.estimator)
    for number in range(len(values)):
        sums = {}
        for level in contexts:
            numbered = {
                name: array[number] for name, array in of_returns[level].items()
            }
            sums[level] = structure[level] | numbered
        frame = _framed(sums, units)
        if number == 0:
            yield "levels", frame
        else:
            permutation = pl.lit(number).alias("(permutation)")
            yield "permuted", frame.drop("(task)").with_columns(permutation)


def _prepared(chunk: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """Return a chunk with the input columns of estimators and those that statistics need in addition.

    These are `(rewards)`, the trajectory's sum of stored rewards, which no parameter changes; `(whole)`, a key of the
    whole history, if the table has every state (and action); `(masked)`, a key of the state without its numbers;
    `(admissible)`, whether the environment could execute the action; and `(unchanged)`, whether the state replies to
    an action that changed nothing.
    """
    p = settings.estimator.parameters
    columns = chunk.columns
    if "action_valid" not in columns:
        chunk = chunk.with_columns(action_valid=pl.lit(value=True))
    rewards = pl.lit(None, pl.Float64)
    if "reward" in columns:
        trajectory = row_keys(columns)[:-1]
        rewards = pl.col("reward").cast(pl.Float64).sum().over(trajectory)
    chunk = chunk.with_columns(
        rewards.alias("(rewards)"), _admissible(chunk.schema).alias("(admissible)")
    )
    steps = prepare(chunk, p)

    # A step replies to the action of the row before it, of the same trajectory.
    has_texts = "state" in columns
    state = pl.col("state" if has_texts else f"{CHAINS[p.context]}0")
    executed = pl.col("(admissible)").shift(1).fill_null(value=True)
    unchanged = [((state == state.shift(1)) | ~executed).over("trajectory_key")]
    masked = pl.lit(None, pl.Int64)
    if has_texts:
        unchanged.append(pl.col("state").cast(pl.String).str.starts_with(NOTHING))
        masked = text_hash("state", mask_numbers)
    steps = steps.with_columns(
        masked.alias("(masked)"),
        pl.any_horizontal(unchanged).fill_null(value=False).alias("(unchanged)"),
    )
    items = ["state_hash"] if p.context == "states" else ["state_hash", "action_hash"]
    if set(items) <= set(steps.collect_schema()):
        item = pl.col("state_hash")
        if p.context == "states_actions":
            item = chain(pl.col("action_hash").shift(1).fill_null(0), item)
        # Each item is hashed with its position, so that the running sum of the hashes identifies the sequence. Polars
        # evaluates all of it within `over`: positions begin anew in each trajectory.
        placed = pl.struct(item=item, position=pl.int_range(pl.len())).hash()
        running = placed.reinterpret(signed=True).cum_sum().over("trajectory_key")
        steps = steps.with_columns(running.alias("(whole)"))
    return steps.collect(engine="in-memory")


def _admissible(schema: pl.Schema) -> pl.Expr:
    """Return whether the environment could execute each action; null where that is not stored."""
    if "action_admissible" in schema:
        return pl.col("action_admissible")
    if "action" not in schema or "admissible_actions" not in schema:
        return pl.lit(None, pl.Boolean)
    kind = schema["admissible_actions"]
    if not isinstance(kind, pl.List):
        raise InputError(
            f"column admissible_actions: expected lists of texts, received {kind}; convert or drop it"
        )
    return pl.col("admissible_actions").list.contains(pl.col("action"))


def _episode_sums(steps: pl.DataFrame, units: pl.DataFrame) -> pl.DataFrame:
    """Return one row per trajectory, with the columns of `hgpo_train.measures` and `return`, which is scaled."""
    won = pl.lit(None, pl.Boolean)
    if "won" in steps.columns:
        won = any_won(pl.col("won").cast(pl.Boolean))
    is_invalid = ~pl.col("action_valid").cast(pl.Boolean)
    episodes = steps.group_by(
        "(unit)", "task_key", "trajectory_key", maintain_order=True
    ).agg(
        pl.col("episode_return").first().alias("return"),
        length=pl.len().cast(pl.Int64),
        episode_return=pl.col("(rewards)").first(),
        invalid=is_invalid.sum().cast(pl.Int64),
        admissible=pl.col("(admissible)").sum().cast(pl.Int64),
        judged=pl.col("(admissible)").count().cast(pl.Int64),
        unchanged=pl.col("(unchanged)").sum().cast(pl.Int64),
        aborted=pl.col("(aborted)").any(),
        won=won,
    )
    return units.join(episodes, on="(unit)").drop("(unit)")


def _groups(steps: pl.DataFrame, context: pl.Expr, count: int) -> Groups:
    """Return the groups of the steps of a unit with an equal context; steps whose context is null are in none."""
    # One key of task, context and unit is faster to sort than three; it is null where the context is.
    key = chain(chain(pl.col("task_key"), context), pl.col("(unit)"))
    keys = steps.select(key).to_series()
    units = steps["(unit)"].to_numpy()
    is_known = keys.is_not_null().to_numpy()
    return Groups.of(keys.fill_null(0).to_numpy(), is_known, units, count)


def _with_returns(
    returns: Floats,
    steps: pl.DataFrame,
    groups: Mapping[str, Groups],
    estimator: Estimator,
) -> dict[str, dict[str, Floats]]:
    """Return the sums of each level that depend on returns, for each permutation of the returns."""
    states = groups["0"]
    at_state = unbiased_squares(states, returns)
    compared = [_compared(returns[:1], steps, list(groups), estimator, states.count)]
    if len(returns) > 1:
        # Advantages are compared where there are some at the deepest level: other states are left out.
        deep = np.zeros(steps.height, np.bool_)
        deep[groups[str(estimator.parameters.history_length)].shared().rows] = True
        rows = states.rows[states.by_row(states.reduced(np.logical_or, deep))]
        permuted = returns[1:, rows]
        compared.append(
            _compared(permuted, steps[rows], list(groups), estimator, states.count)
        )
    sums = {}
    for level, group in groups.items():
        sums[level] = spread(group, returns, at_state)
        for name in compared[0][level]:
            sums[level][name] = np.concatenate([part[level][name] for part in compared])
    return sums


def _compared(
    returns: Floats,
    steps: pl.DataFrame,
    levels: Sequence[str],
    estimator: Estimator,
    count: int,
) -> dict[str, dict[str, Floats]]:
    """Return each level's sums about advantages, of copies of the steps with different returns."""
    # 1. The estimator is applied once, to all copies, which have different tasks.
    inputs = [name for name in steps.columns if name.startswith(tuple(CHAINS.values()))]
    copies = []
    for number, values in enumerate(returns):
        task = chain(pl.col("task_key"), pl.lit(number))
        copies.append(
            steps.select(pl.Series("return", values), task, "episode_score", *inputs)
        )
    details = pl.col(list(estimator.added.values())).cast(pl.Float64).fill_null(np.nan)
    advantages = estimator.apply(pl.concat(copies).lazy())
    frame = advantages.select(details).collect(engine="in-memory")
    columns = {each.name: each.to_numpy().reshape(returns.shape) for each in frame}

    # 2. Each level's advantages are compared with those of the deepest one.
    name = f"k{estimator.parameters.history_length}"
    deepest = columns[name]
    # Levels without advantages, as the oracle's, have NaN, and count as not compared.
    units = steps["(unit)"].to_numpy()
    nothing = np.full(returns.shape, np.nan)
    sums = {}
    for level in levels:
        own = columns.get(f"k{level}", nothing)
        both = ~np.isnan(own) & ~np.isnan(deepest)
        compared = {
            "bias": np.where(both, np.abs(own - deepest), 0.0),
            "sign_disagreement": both & (np.sign(own) != np.sign(deepest)),
            "compared": both,
            "in_pairs": both & (columns[f"size_{name}"] == 2),
            "weight": columns.get(f"weight_k{level}", nothing),
        }
        sums[level] = {
            name: sum_by(units, value, count) for name, value in compared.items()
        }
    return sums


def _framed(
    sums: Mapping[str, Mapping[str, Floats]], units: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per unit and level."""
    levels = list(sums)
    columns = {}
    for name in sums[levels[0]]:
        columns[name] = np.stack(
            [sums[level][name] for level in levels], axis=1
        ).ravel()
    repeated = units.drop("(unit)")[np.repeat(np.arange(units.height), len(levels))]
    return repeated.hstack(pl.DataFrame({"level": levels * units.height, **columns}))


def _sizes(level: str, groups: Groups, units: pl.DataFrame) -> pl.DataFrame:
    """Return the number of groups of each size."""
    # Sizes are counted over all tasks, so that these do not become rows.
    by = units.drop("(unit)", "(task)")
    frame = by[groups.units].with_columns(
        pl.lit(level).alias("level"), pl.Series("size", groups.sizes)
    )
    sizes = frame.group_by(*by.columns, "level", "size", maintain_order=True)
    return sizes.agg(pl.len().cast(pl.Int64).alias("groups"))


def _states(
    steps: pl.DataFrame, state: str, groups: Groups, units: pl.DataFrame
) -> pl.DataFrame:
    """Return the number of steps and of pairs of steps at each state, with the texts of the states of most pairs."""
    text = pl.col("state") if "state" in steps.columns else pl.lit(None, pl.String)
    texts = steps.select("(unit)", key=state, state=text)
    first = texts[groups.rows[groups.starts]]
    n = groups.sizes
    pairs = n * (n - 1)
    frame = first.with_columns(pl.Series("steps", n), pl.Series("pairs", pairs))
    by = [name for name in units.columns if name not in ("(unit)", "(task)")]
    states = units.join(frame, on="(unit)").group_by(*by, "key", maintain_order=True)
    sums = states.agg(pl.col("steps", "pairs").sum(), pl.col("state").first())
    # Texts take most of the memory, and only those of the first states are shown.
    kept = pl.col("pairs").rank("ordinal", descending=True).over(by) <= TEXTS
    return sums.with_columns(pl.when(kept).then("state").alias("state"))
