"""Evaluation: every task of a split exactly once a seed, and intervals of the result.

An evaluation is a step table whose `iteration` is the seed. Intervals and tests take tasks, not episodes, for the
independent units: episodes of one task under several seeds are alike, and counting them apart makes intervals too
narrow. Resampling is seeded, so the same table gives the same numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


MEASURES: Final = ("success", "score", "length", "validity")
"""What is measured of an episode: solved (0 or 1), last score, steps, share of valid actions."""

_RESAMPLES: Final = 10_000
_SEED: Final = 20_260_222


def episode_table(steps: pl.LazyFrame) -> pl.DataFrame:
    """One row an episode: seed, task_id, task_type, success, score, length, validity, aborted.

    Rows are sorted by seed and task.
    """
    return (
        steps.group_by("iteration", "task_id", "trajectory")
        .agg(
            pl.col("task_type").first(),
            pl.col("won").any().cast(pl.Float64).alias("success"),
            pl.col("score").sort_by("step").last().cast(pl.Float64),
            pl.len().cast(pl.Float64).alias("length"),
            pl.col("action_valid").mean().alias("validity"),
            pl.col("aborted").any(),
        )
        .rename({"iteration": "seed"})
        .drop("trajectory")
        .sort("seed", "task_id")
        .collect()
    )


@dataclass(frozen=True, slots=True)
class MeasureSummary:
    """One measure over a set of episodes.

    Attributes:
        mean: Over all episodes.
        std: Standard deviation (ddof 1) of the seeds' means; None with one seed.
        low: Lower end of the 95% interval of the mean, tasks resampled (percentile bootstrap).
        high: Its upper end.
    """

    mean: float
    std: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What an evaluation found, of all tasks or of one task type.

    Attributes:
        name: ``all``, or the task type.
        tasks: How many tasks.
        episodes: How many whole episodes.
        aborted: Episodes that failed for a reason outside the task; they are left out.
        seeds: The seeds.
        measures: Each of `MEASURES`.
    """

    name: str
    tasks: int
    episodes: int
    aborted: int
    seeds: tuple[int, ...]
    measures: dict[str, MeasureSummary]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def evaluation_reports(table: pl.DataFrame) -> list[EvaluationReport]:
    """Reports of all tasks and of each task type.

    Args:
        table: Episodes, as `episode_table` makes them.

    Raises:
        InputError: There is no whole episode.
    """
    if not len(table.filter(~pl.col("aborted"))):
        raise InputError("the run holds no whole episode; look at its `error` column")
    kinds = sorted(kind for kind in table["task_type"].unique().to_list() if kind)
    parts = [("all", table), *((kind, table.filter(pl.col("task_type") == kind)) for kind in kinds)]
    return [_report(name, part) for name, part in parts if len(part.filter(~pl.col("aborted")))]


def _report(name: str, table: pl.DataFrame) -> EvaluationReport:
    whole = table.filter(~pl.col("aborted"))
    return EvaluationReport(
        name=name,
        tasks=table["task_id"].n_unique(),
        episodes=len(whole),
        aborted=len(table) - len(whole),
        seeds=tuple(sorted(table["seed"].unique().to_list())),
        measures={measure: _summarize_measure(whole, measure) for measure in MEASURES},
    )


def _summarize_measure(table: pl.DataFrame, measure: str) -> MeasureSummary:
    seeds = table.group_by("seed").agg(pl.col(measure).mean()).sort("seed")[measure]
    sums = table.group_by("task_id").agg(pl.col(measure).sum(), pl.len()).sort("task_id")
    total, number = sums[measure].to_numpy(), sums["len"].to_numpy().astype(np.float64)
    drawn = bootstrap_tasks(len(sums))
    means = total[drawn].sum(1) / number[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    deviation = seeds.std(ddof=1) if len(seeds) > 1 else None
    return MeasureSummary(
        mean=float(total.sum() / number.sum()),
        std=None if deviation is None else float(deviation),  # type: ignore[arg-type]  # a float column's is a float
        low=float(low),
        high=float(high),
    )


def bootstrap_tasks(tasks: int) -> NDArray[np.int64]:
    """Tasks drawn with replacement, a resample a row."""
    rng = np.random.Generator(np.random.PCG64(_SEED))
    return rng.integers(0, tasks, (min(_RESAMPLES, 20_000_000 // tasks + 1), tasks))
