"""Statistics of the groups that advantages are computed in: how often steps share a context at each depth.

The statistics of depth k, where n is a group's size, R a return and A_k an advantage within a group (the equations are
in advantages/estimators/hgpo.py):

    eligible        share of all steps with at least k earlier states in their trajectory
    shared          share of all steps in a group of n > 1
    cross           share of all steps in a group with two or more trajectories
    mean_size       Σ n / number of groups; step_size is the group size of the average step, Σ n² / Σ n
    inconsistency   CIR_k = 1 - Σ n_k (n_k - 1) / Σ n_0 (n_0 - 1): of the ordered pairs of steps at the same state,
                    the share that is not in the same group at depth k, because the earlier states differ or there are
                    fewer than k of them
    differing       CIR_k, but steps with fewer than k earlier states, which are in no group at depth k, are compared
                    by their whole histories; it never decreases with k and is at most the oracle's
    variance        variance of R within a group of n > 1, averaged over those groups; flat is the share of those
                    groups in which all returns are equal
    explained       share of the variance of returns at the same state that the k states before it explain, over steps
                    in a group of n_k > 1: 1 - Σ q_k / Σ q_0, where q_k = (R - mean_k)² n_k / (n_k - 1) estimates the
                    variance in the step's group. If they explain nothing, it is 0 on average, and below 0 where
                    rollouts visit a state repeatedly: `uncertainty` computes what chance gives
    weight          the level's weight in HGPO's sum after levels without advantage are left out, averaged over steps
    bias            mean |A_k - A_K| over the steps that have both (`compared`), where K is the deepest level;
                    sign_disagreement is the share of those steps in which the signs differ, and in_pairs the share in
                    a group of two at depth K, where z-scores are 1 and -1, or 0, whatever the returns are

The last level is the oracle, which groups steps by their whole histories. Its `shared` is the fraction of oracle steps
and its `inconsistency` is that of k = ∞.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from hgpo_envs.errors import InputError, unknown
from hgpo_train.advantages.chunks import ROWS, chunks
from hgpo_train.advantages.estimators import hgpo
from hgpo_train.advantages.input_columns import CHAINS, row_keys
from hgpo_train.advantages.parameters import STATISTICS_HISTORY_LENGTH
from hgpo_train.advantages.registry import EstimatorSpec, columns_read, prepare
from hgpo_train.advantages.required_columns import check_columns
from hgpo_train.advantages.tables import table_parts
from hgpo_train.advantages.windows import along, chain, size
from hgpo_train.analysis.part_sums import PartSums, sums_of_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from polars.dataframe.group_by import GroupBy

    from hgpo_train.advantages.parameters import Context
    from hgpo_train.advantages.tables import StepTable

ORACLE: Final = "oracle"
_SUMS: Final = ("levels", "sizes", "summary")
"""The frames of `chunk_sums`."""


class Statistics(NamedTuple):
    """Tidy frames of statistics; the columns named in `by` come first in each.

    Attributes:
        levels: One row per level: `level` ("0", "1" … "oracle") and the statistics listed in this module's docstring.
        sizes: One row per level and group size: `level`, `size`, `groups`, `steps`.
        summary: One row: `groups` (of rollouts), `trajectories`, `steps`, `aborted` (aborted trajectories, which no
            other column counts), `mean_return`, `success` (share of episodes with a positive return), `flat_groups`
            (share of groups whose rollouts all have the same return), `mean_length` (in steps), `invalid` (share of
            invalid actions).
    """

    levels: pl.DataFrame
    sizes: pl.DataFrame
    summary: pl.DataFrame


def statistics(
    steps: StepTable,
    *,
    by: str | Sequence[str] = (),
    chunk_rows: int = ROWS,
    processes: int = 1,
    sums_folder: Path | None = None,
    progress: Callable[[int], object] = lambda _: None,
    **parameters: object,
) -> Statistics:
    """Return the statistics of a step table, computed in chunks of whole groups.

    Args:
        steps: A step table with the columns of `by` and those that `hgpo_train.advantages.compute` needs, in any form
            that it accepts.
        by: Column or columns to split the statistics by, constant within a group, such as `task_type` or `iteration`.
        chunk_rows: Approximate number of rows in memory of each process.
        processes: Number of processes, which share the shards of runs if `steps` is a path. The result does not depend
            on it.
        sums_folder: Folder in which the sums of finished parts are kept, so that another call continues.
        progress: Called with the number of rows of each finished part.
        **parameters: HGPO's parameters; `history_length` is the deepest level K, 4 by default.

    Raises:
        InputError: `steps` is no table, it has no rows, a column is missing, or a parameter is unknown or invalid.

    >>> table = pl.DataFrame({"task": "a", "trajectory": ["x", "x", "y", "y"], "step": [0, 1, 0, 1], "reward": 0.0,
    ...                       "state": ["hall", "kitchen", "hall", "cellar"], "action_valid": True})
    >>> statistics(table, history_length=1).levels.select("level", "shared", "inconsistency").rows()
    [('0', 0.5, 0.0), ('1', 0.0, 1.0), ('oracle', 0.5, 0.0)]
    """
    by = [by] if isinstance(by, str) else list(by)
    p = hgpo.HGPO.of({"history_length": STATISTICS_HISTORY_LENGTH} | parameters)
    work = partial(_part_sums, by=by, p=p, chunk_rows=chunk_rows)
    parts = sums_of_parts(work, table_parts(steps, chunk_rows), processes, sums_folder, progress)
    found = [part.frames for part in parts]
    sums = {name: pl.concat(frames[name] for frames in found) for name in _SUMS}
    return Statistics(level_statistics(sums["levels"], by), _sizes(sums["sizes"], by), _summary(sums["summary"], by))


def _part_sums(_: int, steps: pl.LazyFrame, *, by: list[str], p: hgpo.HGPO, chunk_rows: int) -> PartSums:
    """Return the sums of all chunks of a part."""
    chunks = read_chunks(steps, by, p, chunk_rows)
    rows, sums = zip(*((chunk.height, chunk_sums(chunk, by, p)) for chunk in chunks), strict=True)
    return PartSums(sum(rows), {name: pl.concat(frames) for name, *frames in zip(_SUMS, *sums, strict=True)})


def read_chunks(steps: pl.LazyFrame, by: Sequence[str], p: hgpo.HGPO, chunk_rows: int) -> Iterator[pl.DataFrame]:
    """Yield the columns that statistics need, in chunks of whole groups.

    Raises:
        InputError: A column is missing, or there are no rows.
    """
    schema = steps.collect_schema()
    for name in by:
        if name not in schema:
            raise InputError(unknown("column to split by", name, schema))
    job = EstimatorSpec(hgpo.ESTIMATOR, p, "hgpo", details=True)
    check_columns(schema, [job])
    optional = ("state_hash", "state", "action_hash", "action", "aborted", "action_valid")
    texts = [name for name in optional if name in schema]
    read = [name for name in schema if name in {*row_keys(schema), *by, *texts, *columns_read(schema, [job])}]
    rows = 0
    for chunk in chunks(steps, read, chunk_rows):
        rows += chunk.height
        yield chunk
    if not rows:
        raise InputError("the step table has no rows")


def chunk_sums(
    chunk: pl.DataFrame, by: list[str], p: hgpo.HGPO, permutation: np.random.Generator | None = None
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the sums of one chunk, by level, by group size and in total; chunks are combined by adding them.

    Args:
        chunk: Whole groups, from `read_chunks`.
        by: The columns to split by.
        p: HGPO's parameters.
        permutation: A generator with which returns are permuted among the rollouts that visit the same state.
    """
    if "action_valid" not in chunk.columns:
        chunk = chunk.with_columns(action_valid=pl.lit(value=True))
    named = chunk.lazy().with_columns(pl.col(name).alias(f"(by) {name}") for name in by)
    prepared = prepare(named, p).with_columns(whole_history(p.context, named.collect_schema()).alias("(whole)"))
    contexts = [f"{CHAINS[p.context]}{k}" for k in range(p.history_length + 1)]
    if permutation is not None:
        prepared = _permuted(prepared.collect(), contexts[0], permutation).lazy()
    numbers = ("return", "episode_return", "(whole)", "(aborted)", "action_valid", *contexts, *hgpo.details(p))
    keys = [pl.col(f"(by) {name}").alias(name) for name in by]
    rows = hgpo.hgpo_advantages(prepared, p).select(*keys, "task_key", "trajectory_key", *numbers).collect()
    first = pl.col(contexts[0])
    counted = rows.filter(~pl.col("(aborted)")).with_columns(_own_variance(first).alias("(state variance)"))
    levels = {str(k): _level(counted, by, pl.col(context), k, p) for k, context in enumerate(contexts)}
    if rows["(whole)"].null_count() < rows.height:
        levels[ORACLE] = _level(counted, by, pl.col("(whole)"), None, p)
    sums = [frame.with_columns(level=pl.lit(level)) for level, (frame, _) in levels.items()]
    sizes = [frame.with_columns(level=pl.lit(level)) for level, (_, frame) in levels.items()]
    return pl.concat(sums, how="diagonal"), pl.concat(sizes), _groups(rows, by)


def _permuted(steps: pl.DataFrame, state: str, rng: np.random.Generator) -> pl.DataFrame:
    """Permute returns at random among the rollouts of a task that visit the same state.

    A rollout's visits of a state receive those of another, in their order, so that what they have in common remains. If
    it has more visits than the other rollout, that one's returns are used again from the first.
    """
    steps = steps.with_row_index("(row)")
    visits = steps.group_by("task_key", state, "trajectory_key", "(aborted)", maintain_order=True).agg(
        "(row)", "return"
    )
    places = ("task_key", state, "(aborted)")
    donor = pl.col("return").sort_by("(order)").over(*places, mapping_strategy="group_to_rows")
    given = (
        visits.with_columns(pl.Series("(order)", rng.random(visits.height)))
        .with_columns(donor.alias("(donor)"), pl.int_ranges(pl.col("(row)").list.len()).alias("(visit)"))
        .explode("(row)", "(visit)")
        .select("(row)", pl.col("(donor)").list.get(pl.col("(visit)") % pl.col("(donor)").list.len()).alias("return"))
    )
    return steps.with_columns(given.sort("(row)")["return"]).drop("(row)")


def whole_history(context: Context, columns: Collection[str]) -> pl.Expr:
    """Return a key of all states (and actions) of a trajectory up to each step.

    The key is null where the table stores only context hashes of limited depth. Each item is hashed together with its
    position, so the running sum of the hashes identifies the sequence.
    """
    names = ["state", "action"] if context == "states_actions" else ["state"]
    if not all(name in columns or f"{name}_hash" in columns for name in names):
        return pl.lit(None, pl.Int64)
    item = pl.col("state_hash")
    if context == "states_actions":
        item = chain(pl.col("action_hash").shift(1).fill_null(0), item)
    placed = pl.struct(item.alias("item"), pl.int_range(pl.len()).alias("place")).hash().reinterpret(signed=True)
    return along(placed.cum_sum())


def _level(
    rows: pl.DataFrame, by: list[str], context: pl.Expr, k: int | None, p: hgpo.HGPO
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return one level's sums, one row per value of `by`, and the number of its groups of each size."""
    n, shared = pl.col("size"), pl.col("size") > 1
    trajectory, value = pl.col("trajectory_key"), pl.col("return")
    rows = rows.with_columns(context.alias("context"))
    rows = rows.with_columns(_own_variance(pl.col("context")).alias("(variance)"))
    found = rows.select(*by, "task_key", "trajectory_key", "return", "(whole)", "context")
    groups = (
        found.drop_nulls("context")
        .group_by(*by, "task_key", "context", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("size"),
            (trajectory.min() != trajectory.max()).alias("cross"),
            (value.min() == value.max()).alias("flat"),
            value.var(ddof=0).alias("variance"),
        )
    )
    whole = found.group_by(*by, "task_key", pl.coalesce("context", "(whole)").alias("context")).len("size")
    whole = whole.drop_nulls("context").with_columns(n.cast(pl.Int64))
    of_groups = _by(groups, by).agg(
        n.sum().alias("eligible"),
        n.filter(shared).sum().alias("shared"),
        n.filter("cross").sum().alias("cross"),
        (n * n).sum().alias("size_sum"),
        (n * (n - 1)).sum().alias("pairs"),
        pl.len().cast(pl.Int64).alias("groups"),
        shared.sum().cast(pl.Int64).alias("shared_groups"),
        (shared & pl.col("flat")).sum().cast(pl.Int64).alias("flat"),
        pl.when(shared & ~pl.col("flat")).then("variance").otherwise(0.0).sum().alias("variance"),
    )
    parts = [
        _by(rows, by).agg(
            pl.len().cast(pl.Int64).alias("rows"),
            pl.col("(variance)").sum().alias("unexplained"),
            pl.col("(state variance)").filter(pl.col("(variance)").is_not_null()).sum().alias("state_variance"),
            *_compared(k, p),
        ),
        of_groups,
        _by(whole, by).agg((n * (n - 1)).sum().alias("whole_pairs")),
    ]
    sums = parts[0]
    for part in parts[1:]:
        sums = sums.join(part, on=[*by, "(all)"], how="left", nulls_equal=True, maintain_order="left")
    number = pl.len().cast(pl.Int64).alias("groups")
    sizes = groups.group_by(*by, "size", maintain_order=True).agg(n.sum().alias("steps"), number)
    return sums.drop("(all)").fill_null(0), sizes


def _own_variance(context: pl.Expr) -> pl.Expr:
    """Return an unbiased estimate of the variance of returns in each step's group, null in singleton groups."""
    value, keys = pl.col("return"), (pl.col("task_key"), context)
    n = pl.len().over(*keys)
    squares = (value - value.mean().over(*keys)) ** 2
    return pl.when((n > 1) & context.is_not_null()).then(squares * n / (n - 1))


def _by(frame: pl.DataFrame, by: list[str]) -> GroupBy:
    """Group rows by the columns of `by`, or into a single group if there are none."""
    return frame.with_columns(pl.lit(0).alias("(all)")).group_by(*by, "(all)", maintain_order=True)


def _compared(k: int | None, p: hgpo.HGPO) -> list[pl.Expr]:
    """Return the sums of a level's weights and of the differences between its advantages and the deepest level's."""
    if k is None:
        return [pl.lit(0.0).alias(name) for name in ("weight", "bias", "sign_disagreement", "compared", "in_pairs")]
    own, deepest = pl.col(f"k{k}"), pl.col(f"k{p.history_length}")
    pairs = pl.col(size(f"k{p.history_length}")) == 2
    return [
        pl.col(f"weight_k{k}").sum().alias("weight"),
        (own - deepest).abs().sum().alias("bias"),
        (own.sign() != deepest.sign()).sum().cast(pl.Float64).alias("sign_disagreement"),
        (own - deepest).count().cast(pl.Float64).alias("compared"),
        ((own - deepest).is_not_null() & pairs).sum().cast(pl.Float64).alias("in_pairs"),
    ]


def _groups(rows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return one row per group of rollouts, and one per aborted trajectory that has only `aborted` set."""
    episodes = rows.group_by(*by, "task_key", "trajectory_key", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("steps"),
        pl.col("episode_return").first().alias("reward"),
        (~pl.col("action_valid").cast(pl.Boolean)).sum().cast(pl.Int64).alias("invalid"),
        pl.col("(aborted)").any(),
    )
    reward, lost = pl.col("reward"), pl.col("(aborted)")
    groups = (
        episodes.filter(~lost)
        .group_by(*by, "task_key", maintain_order=True)
        .agg(
            pl.col("steps").sum(),
            pl.len().cast(pl.Int64).alias("trajectories"),
            reward.sum().alias("return_sum"),
            (reward > 0).sum().cast(pl.Int64).alias("successes"),
            (reward.min() == reward.max()).cast(pl.Int64).alias("flat"),
            pl.col("invalid").sum(),
            pl.lit(0, pl.Int64).alias("aborted"),
            pl.lit(1, pl.Int64).alias("groups"),
        )
    )
    broken = episodes.filter(lost).with_columns(aborted=pl.lit(1, pl.Int64)).select(*by, "aborted")
    return pl.concat([groups.drop("task_key"), broken], how="diagonal").fill_null(0)


def _ratio(above: str | pl.Expr, below: str | pl.Expr) -> pl.Expr:
    """Return the quotient of two sums, or null where the divisor is 0."""
    below = pl.col(below) if isinstance(below, str) else below
    return pl.when(below != 0).then((pl.col(above) if isinstance(above, str) else above) / below)


def level_statistics(parts: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return the statistics of each level from the sums of all chunks."""
    sums = parts.group_by(*by, "level", maintain_order=True).sum()
    all_pairs = pl.col("pairs").filter(pl.col("level") == "0").first()
    pairs = all_pairs.over(by) if by else all_pairs
    ours = pl.col("level") != ORACLE
    return sums.sort(
        *by, pl.col("level").replace_strict(ORACLE, 1 << 30, default=pl.col("level")).cast(pl.Int64)
    ).select(
        *by,
        "level",
        pl.col("rows").alias("steps"),
        _ratio("eligible", "rows").alias("eligible"),
        _ratio("shared", "rows").alias("shared"),
        _ratio("cross", "rows").alias("cross"),
        pl.col("groups").cast(pl.Int64),
        _ratio("eligible", "groups").alias("mean_size"),
        _ratio("size_sum", "eligible").alias("step_size"),
        _ratio(pairs - pl.col("pairs"), pairs).alias("inconsistency"),
        _ratio(pairs - pl.col("whole_pairs"), pairs).alias("differing"),
        _ratio("variance", "shared_groups").alias("variance"),
        _ratio("flat", "shared_groups").alias("flat"),
        (1 - _ratio("unexplained", "state_variance")).alias("explained"),
        pl.when(ours).then(_ratio("weight", "rows")).alias("weight"),
        _ratio("bias", "compared").alias("bias"),
        _ratio("sign_disagreement", "compared").alias("sign_disagreement"),
        _ratio("in_pairs", "compared").alias("in_pairs"),
        pl.when(ours).then(pl.col("compared").cast(pl.Int64)).alias("compared"),
    )


def _sizes(parts: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return the number of groups of each size and of the steps in them."""
    sums = parts.group_by(*by, "level", "size", maintain_order=True).sum()
    order = pl.col("level").replace_strict(ORACLE, 1 << 30, default=pl.col("level")).cast(pl.Int64)
    return sums.sort(*by, order, "size").select(
        *by, "level", "size", pl.col("groups").cast(pl.Int64), pl.col("steps").cast(pl.Int64)
    )


def _summary(parts: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return the summary of the table, or of each value of `by`, from one row per group of rollouts."""
    sums = parts.group_by(by, maintain_order=True).sum() if by else parts.sum()
    return (sums.sort(by) if by else sums).select(
        *by,
        pl.col("groups", "trajectories", "steps", "aborted").cast(pl.Int64),
        _ratio("return_sum", "trajectories").alias("mean_return"),
        _ratio("successes", "trajectories").alias("success"),
        _ratio("flat", "groups").alias("flat_groups"),
        _ratio("steps", "trajectories").alias("mean_length"),
        _ratio("invalid", "steps").alias("invalid"),
    )
