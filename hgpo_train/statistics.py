"""What group advantages rest on: how many steps find company at each depth of context, and what that is worth.

Of the groups at depth k (n their size, R returns, A_k the advantages within them; see advantages/estimators/hgpo.py):

    eligible        steps that have k states before them, of all steps
    shared          steps in a group of n > 1, of all steps
    cross           steps in a group with two or more trajectories, of all steps
    mean_size       Σ n / number of groups, and step_size, the group size of the average step, Σ n² / Σ n
    inconsistency   CIR_k = 1 - Σ n_k (n_k - 1) / Σ n_0 (n_0 - 1): of the ordered pairs of steps at the same state,
                    the share that is not in one group at depth k, for different states before it or for none
    differing       the same where steps nearer than k to their start, which are in no group at depth k, are compared
                    by their whole histories: it only grows with k, towards the oracle's
    variance        the variance of R within a group of n > 1, on average over those groups; and flat, the share of
                    them with none
    weight          the level's weight in HGPO's sum after levels without advantage are left out, mean over steps
    bias            mean |A_k - A_K| over the steps that have both (`compared`), K the deepest level asked for; and
                    sign_disagreement, the share of those whose signs differ

The level after the deepest is the oracle: steps whose whole histories are the same. Its `shared` is the fraction of
oracle steps, its `inconsistency` that of k = ∞.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError, unknown
from hgpo_train.advantages.chunks import ROWS, chunks
from hgpo_train.advantages.contexts import Level, levels, whole_history
from hgpo_train.advantages.estimators import hgpo
from hgpo_train.advantages.groups import Groups, add_up, centre, value_order
from hgpo_train.advantages.registry import Job
from hgpo_train.advantages.returns import episode_rewards, step_returns
from hgpo_train.advantages.steps import Steps, arrange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hgpo_train.advantages.registry import Columns

ORACLE: Final = "oracle"


class Statistics(NamedTuple):
    """Tidy frames; the columns named in `by` come first in each.

    Attributes:
        levels: One row a level: `level` ("0", "1" … "oracle") and the statistics of this module's text.
        sizes: One row a level and group size: `level`, `size`, `groups`, `steps`.
        summary: One row: `groups` (of rollouts), `trajectories`, `steps`, `aborted` (trajectories that broke off and
            are counted nowhere else), `mean_return`, `success` (episodes with a positive return), `flat_groups` (of
            rollouts that all have the same return: they teach GRPO nothing), `mean_length`, `invalid` (actions).
    """

    levels: pl.DataFrame
    sizes: pl.DataFrame
    summary: pl.DataFrame


def statistics(
    steps: pl.LazyFrame | pl.DataFrame,
    *,
    by: Sequence[str] = (),
    chunk_rows: int = ROWS,
    progress: Callable[[int], object] = lambda _: None,
    **parameters: object,
) -> Statistics:
    """The statistics of a step table, a chunk of whole groups at a time.

    Args:
        steps: A step table; what `hgpo_train.advantages.compute` needs, and the columns of `by`.
        by: Columns that rows are told apart by, each the same on all rows of a group: `task_type`, `iteration` …
        chunk_rows: About how many rows are in memory at a time.
        progress: Told the rows of each chunk that is done.
        **parameters: HGPO's parameters; `history_length` is the deepest level K.

    >>> table = pl.DataFrame({"task": "a", "trajectory": ["x", "x", "y", "y"], "step": [0, 1, 0, 1], "reward": 0.0,
    ...                       "state": ["hall", "kitchen", "hall", "cellar"], "action_valid": True})
    >>> statistics(table, history_length=1).levels.select("level", "shared", "inconsistency").rows()
    [('0', 0.5, 0.0), ('1', 0.0, 1.0), ('oracle', 0.5, 0.0)]
    """
    steps = steps.lazy()
    available = steps.collect_schema().names()
    p = hgpo.HGPO.of(parameters)
    job, whole = Job(hgpo.ESTIMATOR, p), _history_columns(available, p)
    columns = [*job.columns(available), *whole]
    for name in by:
        if name not in available:
            raise InputError(unknown("column to tell rows apart by", name, available))
    parts = []
    needed = list(dict.fromkeys([*columns, *by, *(["action_valid"] if "action_valid" in available else [])]))
    for chunk in chunks(steps, needed, chunk_rows):
        parts.append(_chunk_sums(chunk, list(by), p, oracle=bool(whole)))
        progress(chunk.height)
    if not parts:
        raise InputError("the step table has no rows")
    sums = [pl.concat(frames) for frames in zip(*parts, strict=True)]
    return Statistics(_levels(sums[0], list(by)), _sizes(sums[1], list(by)), _summary(sums[2], list(by)))


def _history_columns(available: Sequence[str], p: hgpo.HGPO) -> list[str]:
    """What whole histories are made from; nothing if the table has only the hashes of limited depth."""
    pairs = [("state_hash", "state"), ("action_hash", "action")][: 2 if p.context == "states_actions" else 1]
    found = [next((name for name in pair if name in available), None) for pair in pairs]
    return [] if None in found else [name for name in found if name]


def _chunk_sums(
    chunk: pl.DataFrame, by: list[str], p: hgpo.HGPO, *, oracle: bool
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """What can be added up over chunks: of levels, of group sizes, and of the whole."""
    steps, _ = arrange(chunk, p.history_length)
    names = {name: steps.columns.frame[name] for name in by}
    returns = step_returns(steps, p)
    columns = hgpo.estimate(steps, p, details=True)
    found = list(levels(steps, p.history_length, p.context, np.arange(steps.height)))
    whole = whole_history(steps, p.context) if oracle else None
    if whole is not None:
        found.append(whole)
    level_sums, size_sums = [], []
    for level in found:
        defined = np.ones(steps.height, np.bool_) if level.k < 0 else steps.context(level.k, p.context)[1]
        numbers = _level_rows(steps, level, defined, whole, returns) | _compared(level.k, columns, p)
        label = pl.lit(str(level.k) if level.k >= 0 else ORACLE).alias("level")
        rows = pl.DataFrame(names | numbers).with_columns(label)
        level_sums.append(rows.group_by(*by, "level", maintain_order=True).agg(pl.exclude(*by, "level", "size").sum()))
        sizes = rows.filter(pl.Series(defined)).group_by(*by, "level", "size", maintain_order=True)
        size_sums.append(sizes.agg(pl.len().alias("steps"), pl.col("groups").sum()))
    summary = _summary_rows(chunk, steps, p, by)
    return pl.concat(level_sums), pl.concat(size_sums), summary


def _level_rows(
    steps: Steps, level: Level, defined: NDArray[np.bool_], whole: Level | None, returns: NDArray[np.float64]
) -> dict[str, pl.Series]:
    """One level's numbers on each row, to be added up."""
    number = max(level.groups.number, 1)
    size, whole_size, code = defined.astype(np.int64), defined.astype(np.int64), np.zeros(steps.height, dtype=np.int64)
    if whole is not None:
        whole_size[~defined] = whole.size[~defined]
    size[level.rows] = whole_size[level.rows] = level.size
    code[level.rows] = level.groups.code
    shared = size > 1
    head = size == 1
    first, last = np.zeros(number, dtype=np.int64), np.zeros(number, dtype=np.int64)
    members = np.flatnonzero(shared)
    first[code[members[::-1]]] = members[::-1]
    last[code[members]] = members
    head[first[code[members]]] = True
    crosses = shared & (steps.trajectory.code[first[code]] != steps.trajectory.code[last[code]])
    order = value_order(returns)
    order = order[shared[order]]
    groups = Groups(code[order], number)
    centred = centre(returns[order], groups)
    variance = add_up(groups.code, centred * centred, number) / groups.size().clip(min=1)
    columns: dict[str, NDArray[np.generic]] = {
        "rows": np.ones(steps.height, dtype=np.int64),
        "eligible": defined,
        "shared": shared,
        "cross": crosses,
        "size": size,
        "size_sum": size,
        "pairs": (size - 1).clip(min=0),
        "whole_pairs": (whole_size - 1).clip(min=0),
        "groups": head,
        "shared_groups": head & shared,
        "flat": head & shared & (variance[code] == 0),
        "variance": np.where(head & shared, variance[code], 0.0),
    }
    return {name: pl.Series(name, values) for name, values in columns.items()}


def _compared(k: int, columns: Columns, p: hgpo.HGPO) -> dict[str, pl.Series]:
    """A level's weight, and how its advantages differ from the deepest level's, on each row."""
    if k < 0:
        names = ("weight", "bias", "sign_disagreement", "compared")
        return {name: pl.Series(name, np.zeros(len(columns["advantage"]))) for name in names}
    own, deepest = columns[f"k{k}"], columns[f"k{p.history_length}"]
    both = ~(np.ma.getmaskarray(own) | np.ma.getmaskarray(deepest))
    apart = np.ma.getdata(own) - np.ma.getdata(deepest)
    signs = np.sign(np.ma.getdata(own)) != np.sign(np.ma.getdata(deepest))
    found = {
        "weight": columns[f"weight_k{k}"],
        "bias": np.where(both, np.abs(apart), 0.0),
        "sign_disagreement": (both & signs).astype(np.float64),
        "compared": both.astype(np.float64),
    }
    return {name: pl.Series(name, values) for name, values in found.items()}


def _summary_rows(chunk: pl.DataFrame, steps: Steps, p: hgpo.HGPO, by: list[str]) -> pl.DataFrame:
    """One row a group of rollouts."""
    rewards = episode_rewards(steps, p)
    invalid = ~steps.flags("action_valid") if steps.columns.has("action_valid") else np.zeros(steps.height, np.bool_)
    rows = pl.DataFrame(
        {name: steps.columns.frame[name] for name in by}
        | {"task": steps.task.code, "first": steps.first, "reward": rewards, "invalid": invalid}
    )
    one = pl.col("reward").filter("first")
    groups = rows.group_by(*by, "task", maintain_order=True).agg(
        pl.len().alias("steps"),
        one.len().alias("trajectories"),
        one.sum().alias("return_sum"),
        (one > 0).sum().alias("successes"),
        (one.min() == one.max()).alias("flat"),
        pl.col("invalid").sum(),
    )
    kept = groups.drop("task").with_columns(pl.lit(0, pl.Int64).alias("aborted"), pl.lit(1, pl.Int64).alias("groups"))
    if "aborted" not in chunk.columns:
        return kept
    lost = chunk.filter(pl.col("aborted").fill_null(value=False)).with_columns(pl.lit(1, pl.Int64).alias("aborted"))
    return pl.concat([kept, lost.select(*by, "aborted")], how="diagonal")


def _ratio(above: str | pl.Expr, below: str | pl.Expr) -> pl.Expr:
    """A quotient of two sums, null where there is nothing to divide by."""
    below = pl.col(below) if isinstance(below, str) else below
    return pl.when(below != 0).then((pl.col(above) if isinstance(above, str) else above) / below)


def _levels(parts: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """The statistics of each level, from the sums of all chunks."""
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
        pl.when(ours).then(_ratio("weight", "rows")).alias("weight"),
        _ratio("bias", "compared").alias("bias"),
        _ratio("sign_disagreement", "compared").alias("sign_disagreement"),
        pl.when(ours).then(pl.col("compared").cast(pl.Int64)).alias("compared"),
    )


def _sizes(parts: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """How many groups of each size, and how many steps are in them."""
    sums = parts.group_by(*by, "level", "size", maintain_order=True).sum()
    order = pl.col("level").replace_strict(ORACLE, 1 << 30, default=pl.col("level")).cast(pl.Int64)
    return sums.sort(*by, order, "size").select(
        *by, "level", "size", pl.col("groups").cast(pl.Int64), pl.col("steps").cast(pl.Int64)
    )


def _summary(parts: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """The whole table, or each of its kinds, from one row a group of rollouts."""
    total = parts.with_columns(pl.col("flat").cast(pl.Int64))
    sums = total.group_by(by, maintain_order=True).sum() if by else total.sum()
    return (sums.sort(by) if by else sums).select(
        *by,
        pl.col("groups", "trajectories", "steps", "aborted").cast(pl.Int64),
        _ratio("return_sum", "trajectories").alias("mean_return"),
        _ratio("successes", "trajectories").alias("success"),
        _ratio("flat", "groups").alias("flat_groups"),
        _ratio("steps", "trajectories").alias("mean_length"),
        _ratio("invalid", "steps").alias("invalid"),
    )
