"""Statistics of the groups that advantages are computed in: how often steps share a context at each depth.

`hgpo_train.analysis.definitions` defines each statistic.

The last level is the oracle, which groups steps by their whole histories. Its `shared` is the fraction of oracle steps
and its `inconsistency` is that of k = ∞.

**Intervals.** Tasks are independent; steps, rollouts and groups of one task are not. Intervals are by the jackknife
over tasks, wider where few tasks decide (`resampling`); shares in which too few tasks differ have Wilson's. With fewer
than six tasks there is no interval: with five, all of them are on one side of the true mean with probability 1/16.

**Chance.** If returns from a state do not depend on the history, they can be permuted among the rollouts that visit the
state. Each permutation keeps groups, histories and the returns at each state. `chance` is the mean of a statistic over
the permutations; an interval that contains it does not show an influence of histories.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
from polars import selectors

from hgpo_datasets.partitions import in_processes
from hgpo_envs.errors import InputError
from hgpo_envs.plugins import install_command
from hgpo_envs.wording import listed
from hgpo_train.advantages.estimators.hgpo import hgpo
from hgpo_train.advantages.parameters import STATISTICS_HISTORY_LENGTH
from hgpo_train.advantages.tables import ROWS, table_parts
from hgpo_train.analysis.chunk_sums import ALL, ORACLE, Settings, part_sums
from hgpo_train.analysis.definitions import DEFINITIONS
from hgpo_train.analysis.level_sums import level_statistics
from hgpo_train.measures import figures
from hgpo_train.proportions import by_length
from hgpo_train.resampling import FEWEST_TASKS, jackknife_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import altair as alt

    from hgpo_train.advantages.tables import StepTable
    from hgpo_train.analysis.level_sums import Floats

SHARES: Final = {
    "shared": "rows",
    "cross": "rows",
    "differing": "pairs",
    "inconsistency": "pairs",
    "sign_disagreement": "compared",
    "in_pairs": "compared",
}
"""The statistics with intervals that are shares, and what they are shares of."""
WITH_INTERVALS: Final = (*SHARES, "explained", "bias")
OF_RETURNS: Final = ("explained", "bias", "sign_disagreement")
"""Those that depend on returns, for which chance has a meaning."""
STATES: Final = 10  # that are listed
MOST: Final = 1_000  # of levels and of permutations: memory is proportional to both
_MEASURES: Final = ("success", "mean_return", "mean_length", "valid", "admissible")
_SUMMARY: Final = tuple(DEFINITIONS["summary"])
_UNEXPLAINED: Final = 10.0  # an interval that begins below 1 - 10 says nothing


class Statistics(NamedTuple):
    """Tidy frames of statistics; the columns named in `by` come first in each. A notebook shows them as tables.

    Attributes:
        levels: One row per level: `level` ("0", "1" … "oracle") and its statistics.
        intervals: One row per level and statistic of `WITH_INTERVALS`: `level`, `statistic`, `value`, its 95% interval
            `low` and `high`, `chance` (without permutations null), and `tasks`. Null where there is none.
        sizes: One row per level and group size: `level`, `size`, `groups`, `steps`.
        states: The `STATES` states that carry most pairs of steps at the same state: `state` (its text, or its hash if
            the table has no texts), `pairs` and `steps`, its shares of all pairs and of all steps.
        summary: One row: the statistics of the rollouts. Null is what is not known.
        lengths: Rollouts by their number of steps: `steps` (such as ``6–10``), `episodes`, `aborted`, `won`.
    """

    levels: pl.DataFrame
    intervals: pl.DataFrame
    sizes: pl.DataFrame
    states: pl.DataFrame
    summary: pl.DataFrame
    lengths: pl.DataFrame

    @property
    def by(self) -> list[str]:
        """The columns that the statistics are split by."""
        return self.levels.columns[: self.levels.columns.index("level")]

    def describe(self) -> str:
        """Return what the statistics say, a sentence a line.

        Raises:
            InputError: The statistics are split by a column.
        """
        from hgpo_train.analysis.describe import describe

        if self.by:
            raise InputError(
                f"describe: expected statistics of a whole run, received some that are split by {self.by}"
            )
        return "\n".join(describe(self))

    def chart(self) -> alt.VConcatChart:
        """Return a chart of shared contexts, differing histories, and what these explain. Requires `hgpo[notebooks]`.

        Raises:
            InputError: The statistics are split by several columns, or the extra is not installed.
        """
        try:
            from hgpo_train.analysis.charts import statistics_chart
        except ModuleNotFoundError as error:
            raise InputError(
                f"chart needs {error.name}: {install_command('notebooks')}"
            ) from None
        if len(self.by) > 1:
            raise InputError(
                f"chart: expected statistics split by one column at most, received {self.by}"
            )
        return statistics_chart(self.intervals, by=next(iter(self.by), None))

    def _repr_html_(self) -> str:
        from hgpo_train.analysis.describe import html_tables

        return html_tables(self)


def default_permutations(rows: int) -> int:
    """Return a number of permutations: the more groups there are, the less their means vary.

    >>> [default_permutations(rows) for rows in (1_000, 100_000, 10_000_000)]
    [20, 10, 2]
    """
    return max(2, min(20, 1_000_000 // max(rows, 1)))


def statistics(
    steps: StepTable,
    *,
    by: str | Sequence[str] = (),
    state_key: str | None = None,
    without_unchanged: bool = False,
    permutations: int = 0,
    seed: int = 0,
    chunk_rows: int = ROWS,
    processes: int = 1,
    progress: Callable[[int], object] = lambda _: None,
    **parameters: object,
) -> Statistics:
    """Return the statistics of a step table, computed in chunks of whole groups.

    Args:
        steps: A step table with the columns of `by` and those that `hgpo_train.advantages.compute` needs, in any form
            that it accepts.
        by: Column or columns to split the statistics by, constant within a group, such as `task_type` or `iteration`.
        state_key: What is compared instead of the state's text: a name of `hgpo_envs.state_keys`, ``alfworld-nodes``
            for the nodes of G2PO in ALFWorld, or ``module:function``.
        without_unchanged: Whether steps are left out whose state replies to an action that changed nothing: the state
            is the same as before, begins with "Nothing happens", or follows an action that was not admissible. They
            remain in the histories of later steps.
        permutations: Number of permutations of the returns for `chance`.
        seed: Seed of the permutations.
        chunk_rows: Approximate number of rows in memory of each process. Permutations depend on it.
        processes: Number of processes, which share the shards of runs if `steps` is a path.
        progress: Called with the number of rows of each finished part.
        **parameters: HGPO's parameters; `history_length` is the deepest level K, 4 by default.

    Raises:
        InputError: As for `hgpo_train.advantages.compute`.

    >>> table = pl.DataFrame({"task": "a", "trajectory": ["x", "x", "y", "y"], "step": [0, 1, 0, 1], "reward": 0.0,
    ...                       "state": ["hall", "kitchen", "hall", "cellar"], "action_valid": True})
    >>> statistics(table, history_length=1).levels.select("level", "shared", "inconsistency").rows()
    [('0', 0.5, 0.0), ('1', 0.0, 1.0), ('oracle', 0.5, 0.0)]
    """
    (found,) = _statistics(
        steps,
        (without_unchanged,),
        by=by,
        state_key=state_key,
        permutations=permutations,
        seed=seed,
        chunk_rows=chunk_rows,
        processes=processes,
        progress=progress,
        **parameters,
    )
    return found


def with_and_without_unchanged(
    steps: StepTable, **arguments: Any
) -> tuple[Statistics, Statistics | None]:
    """Return the statistics of all steps, and those without replies to actions that changed nothing, if there are any.

    The arguments are those of `statistics`. The table is read once.
    """
    everything, changed = _statistics(steps, (False, True), **arguments)
    return everything, changed if (everything.summary["unchanged"] > 0).any() else None


def _statistics(
    steps: StepTable,
    variants: tuple[bool, ...],
    *,
    by: str | Sequence[str] = (),
    permutations: int = 0,
    seed: int = 0,
    chunk_rows: int = ROWS,
    processes: int = 1,
    progress: Callable[[int], object] = lambda _: None,
    **parameters: Any,
) -> list[Statistics]:
    """Return the statistics of each variant: whether replies to actions that changed nothing are left out."""
    estimator = hgpo.with_parameters(
        details=True, **{"history_length": STATISTICS_HISTORY_LENGTH} | parameters
    )
    _check("history_length", estimator.parameters.history_length, 0, MOST)
    _check("permutations", permutations, 0, MOST)
    _check("seed", seed, 0)
    _check("processes", processes, 1)
    columns = (by,) if isinstance(by, str) else tuple(by)
    settings = Settings(columns or (ALL,), estimator, variants, permutations, seed)
    parts = table_parts(steps, chunk_rows)
    # chunks of one table, which this process reads
    if isinstance(parts[0], pl.LazyFrame):
        processes = 1

    collected: list[dict[str, list[pl.DataFrame]]] = [{} for _ in variants]
    work = partial(part_sums, settings=settings)
    try:
        with closing(in_processes(work, list(enumerate(parts)), processes)) as results:
            for rows, of_variants in results:
                progress(rows)
                for frames, named in zip(collected, of_variants, strict=True):
                    for name, frame in named:
                        frames.setdefault(name, []).append(frame)
        found = []
        for frames in collected:
            sums = {name: pl.concat(several) for name, several in frames.items()}
            found.append(_from_sums(sums, list(settings.by)))
    except pl.exceptions.DuplicateError as error:
        expected = "columns with other names than statistics have, each once"
        raise InputError(
            f"columns to split by: expected {expected}, received {listed(settings.by)}"
        ) from error
    return found


def _check(name: str, number: object, least: int, most: int | None = None) -> None:
    if not isinstance(number, int | np.integer) or number < least:
        raise InputError(
            f"{name}: expected an integer of at least {least}, received {number!r}"
        )
    if most is not None and number > most:
        raise InputError(
            f"{name}: expected an integer of at most {most:,}, received {number}"
        )


def _from_sums(sums: dict[str, pl.DataFrame], by: list[str]) -> Statistics:
    # Levels are sorted as they came, since "10" is not before "2", and the oracle is last.
    order = pl.Enum(sums["levels"]["level"].unique(maintain_order=True))
    of_size = sums["sizes"].group_by(*by, "level", "size", maintain_order=True)
    sizes = of_size.agg(pl.col("groups").sum())
    sizes = sizes.with_columns(steps=pl.col("size") * pl.col("groups"))
    sizes = sizes.sort(*by, pl.col("level").cast(order), "size")
    levels, intervals = _levels(sums["levels"], sums.get("permuted"), by)
    states = _states(sums["states"], by)
    summary = _summary(sums["episodes"], sums["levels"].filter(level="0"), by)
    lengths = by_length(sums["episodes"], *by)
    tables = (levels, intervals, sizes, states, summary, lengths)
    return Statistics(*(table.drop(ALL, strict=False) for table in tables))


def _levels(
    sums: pl.DataFrame, permuted: pl.DataFrame | None, by: list[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `Statistics.levels` and `Statistics.intervals`."""
    levels = sums["level"].unique(maintain_order=True).to_list()
    tasks = sums.group_by(*by, "(task)", "level", maintain_order=True).sum()
    of_chance = {}
    if permuted is not None:
        permutations = permuted.group_by(
            *by, "(permutation)", "level", maintain_order=True
        ).sum()
        of_chance = _by_value(permutations, by, len(levels))

    tables = []
    bounds = []
    for values, of_tasks in _by_value(tasks, by, len(levels)).items():
        # A task of which all steps are left out is no observation.
        present = of_tasks["rows"][:, 0] > 0
        arrays = {name: array[present] for name, array in of_tasks.items()}
        whole = {name: array.sum(0) for name, array in arrays.items()}
        found = level_statistics(whole)
        keys = [
            pl.lit(value, sums.schema[name]).alias(name)
            for name, value in zip(by, values, strict=True)
        ]

        # Sums are floats; the numbers that are shown are integers, and the oracle has no advantages to compare.
        numbers = {
            "steps": whole["rows"],
            "groups": whole["groups"],
            "compared": whole["compared"],
        }
        integers = [
            pl.Series(name, array.astype(np.int64)) for name, array in numbers.items()
        ]
        table = pl.DataFrame({"level": levels} | found).with_columns(integers)
        compared = pl.when(pl.col("level") != ORACLE).then("compared")
        tables.append(table.with_columns(compared).select(*keys, pl.all()))

        # Chance is the mean of a statistic over the permutations, not the statistic of their sums.
        chance = level_statistics(of_chance[values]) if of_chance else {}
        for name, (low, high) in _intervals(arrays, found).items():
            frame = pl.DataFrame(
                {
                    "level": levels,
                    "statistic": name,
                    "value": found[name],
                    "low": low,
                    "high": high,
                }
            )
            mean = np.full(len(levels), np.nan)
            if name in OF_RETURNS and chance:
                mean = chance[name].mean(0)
            frame = frame.with_columns(
                pl.Series("chance", mean), tasks=pl.lit(int(present.sum()))
            )
            bounds.append(frame.select(*keys, pl.all()))
    return _sorted(tables, by), _sorted(bounds, by)


def _sorted(tables: list[pl.DataFrame], by: list[str]) -> pl.DataFrame:
    """Return tables as one, with null for NaN."""
    table = pl.concat(tables).with_columns(selectors.float().fill_nan(None))
    return table.sort(by, maintain_order=True)


def _by_value(
    sums: pl.DataFrame, by: list[str], levels: int
) -> dict[tuple[object, ...], dict[str, Floats]]:
    """Return sums as arrays of shape (tasks or permutations, levels), by the values of the columns `by`."""
    # The rows of a task or permutation follow each other, its levels always in the same order.
    names = sums.select(selectors.float()).columns
    arrays = {}
    for values, part in sums.partition_by(
        by, as_dict=True, maintain_order=True
    ).items():
        arrays[values] = {
            name: part[name].to_numpy().reshape(-1, levels) for name in names
        }
    return arrays


def _intervals(
    tasks: dict[str, Floats], values: dict[str, Floats]
) -> dict[str, tuple[Floats, Floats]]:
    """Return the bounds of each statistic's interval, one per level; NaN where there is none."""
    # The jackknife: the same statistics without each task in turn.
    others = {name: array.sum(0) - array for name, array in tasks.items()}
    without = level_statistics(others)
    # Shares of pairs are of those at the same state, at every level.
    pairs = tasks["pairs"]
    weights = tasks | {"pairs": np.broadcast_to(pairs[:, :1], pairs.shape)}
    bounds = {}
    for name, of in SHARES.items():
        bounds[name] = jackknife_bounds(
            values[name], without[name], weights[of], "share"
        )
    compared = tasks["compared"]
    bounds["bias"] = jackknife_bounds(
        values["bias"], without["bias"], compared, "positive"
    )

    # What is not explained is positive, and can exceed 1. Where it is 0, only the interval of a share has a width.
    rest = (1 - values["explained"], 1 - without["explained"], tasks["at_state"])
    of_share = jackknife_bounds(*rest, "share")
    of_positive = jackknife_bounds(*rest, "positive")
    below, above = np.where(rest[0] == 0, of_share, of_positive)
    above = np.where(above <= _UNEXPLAINED, above, np.nan)
    bounds["explained"] = (1 - above, np.where(np.isnan(above), np.nan, 1 - below))
    if len(tasks["rows"]) < FEWEST_TASKS:
        return bounds

    # What is 0 by definition has no uncertainty; and a deeper context is shared less often. The oracle, which has no
    # weight in advantages, is none of these.
    deepest = int(np.flatnonzero(np.isfinite(values["weight"]))[-1])
    certain = {
        "differing": 0,
        "inconsistency": 0,
        "bias": deepest,
        "sign_disagreement": deepest,
    }
    for name, level in certain.items():
        if values[name][level] == 0:
            for bound in bounds[name]:
                bound[level] = 0.0
    for name in ("shared", "cross"):
        # A level without an interval has none, and changes no other level's.
        high = bounds[name][1][: deepest + 1]
        high[:] = np.where(np.isnan(high), np.nan, np.fmin.accumulate(high))
    return bounds


def _states(sums: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return `Statistics.states`."""
    states = sums.group_by(*by, "key").agg(
        pl.col("steps", "pairs").sum(),
        pl.col("state").drop_nulls().first(),
    )
    shares = states.with_columns(
        state=pl.coalesce("state", pl.col("key").cast(pl.String)),
        pairs=_share(pl.col("pairs"), pl.col("pairs").sum().over(by)),
        steps=_share(pl.col("steps"), pl.col("steps").sum().over(by)),
    )
    descending = [False] * len(by) + [True, False]
    ordered = shares.sort(*by, "pairs", "key", descending=descending)
    place = pl.int_range(pl.len()).over(by)
    return ordered.filter(place < STATES).select(*by, "state", "pairs", "steps")


def _summary(
    episodes: pl.DataFrame, levels: pl.DataFrame, by: list[str]
) -> pl.DataFrame:
    """Return `Statistics.summary` from one row per trajectory, and the sums of level 0."""
    # 1. The figures that every command reports.
    table = figures(episodes, by, names=_MEASURES, task=["(task)"])

    # 2. Counts and shares of the rollouts that were not aborted, of their groups, and of pairs of their steps.
    whole = episodes.filter(~pl.col("aborted"))
    counts = whole.group_by(by).agg(
        trajectories=pl.len(),
        steps=pl.col("length").sum(),
        unchanged=_share(pl.col("unchanged").sum(), pl.col("length").sum()),
    )
    returns = pl.col("return")
    groups = whole.group_by(*by, "task_key")
    flat = groups.agg(flat_groups=returns.min() == returns.max()).group_by(by)
    of_groups = flat.agg(groups=pl.len(), flat_groups=pl.col("flat_groups").mean())
    tasks = levels.group_by(*by, "(task)").agg(pl.col("pairs", "masked", "rows").sum())
    tasks = tasks.sort("pairs", "(task)", descending=[True, False])
    of_pairs = tasks.group_by(by, maintain_order=True).agg(
        shared_masked=_share(pl.col("masked").sum(), pl.col("rows").sum()),
        largest_pairs=_share(pl.col("pairs").max(), pl.col("pairs").sum()),
        largest_task=pl.col("(task)").first(),
    )
    table = table.drop("steps")
    for frame in (counts, of_groups, of_pairs):
        table = table.join(frame, on=by, how="left", nulls_equal=True)
    numbers = pl.col("groups", "trajectories", "steps").fill_null(0).cast(pl.Int64)
    return table.with_columns(numbers).sort(by).select(*by, *_SUMMARY)


def _share(part: pl.Expr, of: pl.Expr) -> pl.Expr:
    """Return a ratio, null of nothing."""
    return (part / of).fill_nan(None)
