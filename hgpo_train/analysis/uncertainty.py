"""Uncertainty of the statistics of a run: bootstrap intervals over tasks, and a permutation baseline.

**Intervals.** Tasks are independent, and steps, rollouts and groups of one task are not. Each resample draws as many
tasks as the run has, with replacement; the intervals are percentiles that are corrected for few tasks (`resampling`).
With fewer than six tasks there is no interval: with five, all of them are on the same side of the true mean with a
probability of 1/16, so that no interval of resampled tasks can reach 95%.

**Chance.** Under the null hypothesis, the return from a state does not depend on the history, so that returns can be
permuted among the rollouts that visit the same state. Each permutation keeps the groups, the histories and the returns
at each state, and computes the statistics again. `chance` is their mean over the permutations: the expected value of
the statistic under the null hypothesis. An interval that contains it does not reject this hypothesis.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.advantages.chunks import ROWS
from hgpo_train.advantages.estimators import hgpo
from hgpo_train.advantages.parameters import STATISTICS_HISTORY_LENGTH
from hgpo_train.advantages.tables import table_parts
from hgpo_train.analysis.part_sums import PartSums, sums_of_parts
from hgpo_train.analysis.resampling import intervals, task_weights
from hgpo_train.analysis.statistics import chunk_sums, level_statistics, read_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hgpo_train.advantages.tables import StepTable

STATISTICS: Final = (
    "shared",
    "cross",
    "differing",
    "inconsistency",
    "explained",
    "bias",
    "sign_disagreement",
    "in_pairs",
)
"""The statistics of levels that have intervals."""
OF_RETURNS: Final = ("explained", "bias", "sign_disagreement")
"""Those that depend on returns, for which chance has a meaning."""

FEWEST_TASKS: Final = 6
"""The smallest number of tasks with an interval."""

_UNITS: Final = 4096
"""Number of parts of a run that are resampled. A run with more tasks has several of them in each part."""


def default_permutations(rows: int) -> int:
    """Return a number of permutations for a table: 20 up to 50,000 rows, fewer for larger ones, and at least 2.

    Each permutation costs as much as the statistics. The more groups there are, the less their means vary.

    >>> [default_permutations(rows) for rows in (1_000, 100_000, 10_000_000)]
    [20, 10, 2]
    """
    return max(2, min(20, 1_000_000 // max(rows, 1)))


def uncertainty(
    steps: StepTable,
    *,
    by: str | Sequence[str] = (),
    resamples: int = 1000,
    permutations: int = 20,
    seed: int = 0,
    chunk_rows: int = ROWS,
    processes: int = 1,
    sums_folder: Path | None = None,
    progress: Callable[[int], object] = lambda _: None,
    **parameters: object,
) -> pl.DataFrame:
    """Return the statistics of each level with intervals, and with what chance alone gives.

    Args:
        steps: A step table, in any form that `hgpo_train.advantages.compute` accepts.
        by: Column or columns to split the statistics by.
        resamples: Number of resamples of the tasks.
        permutations: Number of permutations; 0 for none.
        seed: Seed of resamples and permutations.
        chunk_rows: Approximate number of rows in memory of each process. Permutations depend on it.
        processes: Number of processes, which share the shards of runs if `steps` is a path. The result does not depend
            on it.
        sums_folder: Folder in which the sums of finished parts are kept, so that another call continues.
        progress: Called with the number of rows of each finished part.
        **parameters: HGPO's parameters; `history_length` is the deepest level K, 4 by default.

    Returns:
        One row per value of `by`, level and statistic (`STATISTICS`, defined in `statistics`): `level`, `statistic`,
        `value`, its 95% interval `low` and `high`, `chance` (null for statistics without returns, `OF_RETURNS`), and
        `tasks`. Null where a statistic has no value, and intervals where there are fewer than `FEWEST_TASKS`.

    Raises:
        InputError: As `statistics`, or a number is out of range.

    >>> table = pl.DataFrame({"task": "a", "trajectory": ["x", "x", "y", "y"], "step": [0, 1, 0, 1], "reward": 0.0,
    ...                       "state": ["hall", "kitchen", "hall", "cellar"], "action_valid": True})
    >>> found = uncertainty(table, history_length=1)
    >>> found.filter(level="0", statistic="shared").select("value", "low", "tasks").row(0)
    (0.5, None, 1)
    """
    for name, number, least in (("resamples", resamples, 100), ("permutations", permutations, 0), ("seed", seed, 0)):
        if number < least:
            raise InputError(f"{name}: expected an integer of at least {least}, received {number}")
    by = [by] if isinstance(by, str) else list(by)
    p = hgpo.HGPO.of({"history_length": STATISTICS_HISTORY_LENGTH} | parameters)
    units: dict[object, int] = {}
    observed, permuted = [], []
    work = partial(_part_sums, by=by, p=p, permutations=permutations, seed=seed, chunk_rows=chunk_rows)
    for part in sums_of_parts(work, table_parts(steps, chunk_rows), processes, sums_folder, progress):
        frames = part.frames
        numbers = [units.setdefault(task, len(units) % _UNITS) for task in frames["tasks"]["task"]]
        observed.append(frames["observed"].with_columns(pl.col("(unit)").replace_strict(range(len(numbers)), numbers)))
        if permutations:
            permuted.append(frames["permuted"])
    sums = pl.concat(observed)
    split = sums.partition_by(by, as_dict=True, maintain_order=True) if by else {(): sums}
    found = pl.concat(_with_intervals(part, by, values, resamples, seed) for values, part in split.items())
    keys = [*by, "level", "statistic"]
    if not permuted:
        return found.with_columns(chance=pl.lit(None, pl.Float64))
    chance = _tidy(level_statistics(pl.concat(permuted), [*by, "(permutation)"]), [*by, "(permutation)"])
    of_returns = chance.filter(pl.col("statistic").is_in(OF_RETURNS)).group_by(keys, maintain_order=True)
    means = of_returns.agg(pl.col("value").mean().alias("chance"))
    return found.join(means, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _part_sums(
    place: int,
    steps: pl.LazyFrame,
    *,
    by: list[str],
    p: hgpo.HGPO,
    permutations: int,
    seed: int,
    chunk_rows: int,
) -> PartSums:
    """Return the sums of a part; random numbers depend on its place in the table alone.

    `observed` has the sums of each task, `(unit)`, which is the number of the task in `tasks`, in the order of the
    table; `permuted` has those of each permutation.
    """
    rows, observed, permuted = 0, [], []
    tasks: dict[object, int] = {}
    for number, chunk in enumerate(read_chunks(steps, by, p, chunk_rows)):
        rows += chunk.height
        with_units = chunk.with_columns(_unit_of(chunk, tasks).alias("(unit)"))
        observed.append(chunk_sums(with_units, [*by, "(unit)"], p)[0])
        for permutation in range(permutations):
            rng = np.random.Generator(np.random.PCG64([seed, place, permutation, number]))
            sums = chunk_sums(chunk, by, p, rng)[0]
            permuted.append(sums.with_columns(pl.lit(permutation).alias("(permutation)")))
    frames = {"observed": pl.concat(observed), "tasks": pl.DataFrame({"task": list(tasks)})}
    return PartSums(rows, frames | ({"permuted": pl.concat(permuted)} if permuted else {}))


def _unit_of(chunk: pl.DataFrame, tasks: dict[object, int]) -> pl.Series:
    """Return the number of each row's task; new tasks are added in the order of the table."""
    name = "task_id" if "task_id" in chunk.columns else "task"
    column = chunk[name]
    for task in column.unique(maintain_order=True):
        tasks.setdefault(task, len(tasks))
    return column.replace_strict(list(tasks), list(tasks.values()), return_dtype=pl.Int64)


def _with_intervals(
    sums: pl.DataFrame, by: list[str], values: tuple[object, ...], resamples: int, seed: int
) -> pl.DataFrame:
    """Return the statistics of one value of `by`, with intervals."""
    tasks = sums["(unit)"].n_unique()
    names = [name for name in sums.columns if name not in {*by, "(unit)", "level"}]
    whole = _tidy(level_statistics(sums.drop(*by, "(unit)"), []), [])
    weights = task_weights(tasks, resamples, seed)
    order = sums["(unit)"].unique().sort()
    drawn = []
    for level in sums["level"].unique(maintain_order=True):
        rows = pl.DataFrame({"(unit)": order}).join(
            sums.filter(level=level).group_by("(unit)", maintain_order=True).agg(pl.col(names).sum()),
            on="(unit)",
            how="left",
            maintain_order="left",
        )
        made = weights @ rows.select(pl.col(names).fill_null(0).cast(pl.Float64)).to_numpy()
        drawn.append(
            pl.DataFrame(made, schema=names).with_columns(level=pl.lit(level), resample=pl.int_range(resamples))
        )
    samples = _tidy(level_statistics(pl.concat(drawn), ["resample"]), ["resample"])
    keys = whole.select("level", "statistic").with_row_index("place")
    wide = samples.join(keys, on=["level", "statistic"]).sort("resample", "place")["value"]
    draws = wide.fill_null(float("nan")).to_numpy().reshape(resamples, whole.height)
    bounds = intervals(whole["value"].fill_null(float("nan")).to_numpy(), draws, tasks if tasks >= FEWEST_TASKS else 0)
    named = [pl.lit(value).alias(name) for name, value in zip(by, values, strict=True)]
    return whole.select(
        *named,
        "level",
        "statistic",
        "value",
        pl.Series("low", bounds.low).fill_nan(None),
        pl.Series("high", bounds.high).fill_nan(None),
        pl.lit(tasks, pl.Int64).alias("tasks"),
    )


def _tidy(levels: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return one row per level and statistic."""
    return levels.unpivot(
        list(STATISTICS), index=[*by, "level"], variable_name="statistic", value_name="value"
    ).with_columns(pl.col("value").fill_nan(None))
