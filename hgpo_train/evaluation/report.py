"""Reports of evaluations: means and confidence intervals, over all tasks and per task type.

An evaluation is a step table whose `iteration` is the seed. Intervals and tests treat tasks, not episodes, as the
independent units: episodes of one task with different seeds are correlated, and treating them as independent makes
intervals too narrow. Resampling is seeded, so the same table gives the same numbers. A bootstrap interval has no width
if all values are equal, so the success rate also has Wilson's interval.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.errors import InputError
from hgpo_train.proportions import wilson_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_envs.environment_spec import EnvironmentSpec


MEASURES: Final = ("success", "score", "length", "validity")
"""Measures of an episode: success (0 or 1), final score, number of steps, share of valid actions."""

_RESAMPLES: Final = 10_000
_SEED: Final = 20_260_222


def episode_table(steps: pl.LazyFrame) -> pl.DataFrame:
    """Return a frame with one row per episode, sorted by seed and task.

    Its columns are seed, task_id, task_type, success, score, length, validity and aborted; and scenario, if the
    benchmark has scenarios (`hgpo_envs.environment_spec.EnvironmentSpec`).
    """
    episodes = (
        steps.group_by("iteration", "task_id", "trajectory")
        .agg(
            pl.col("task_type", "env_id").first(),
            pl.col("won").any(ignore_nulls=False).cast(pl.Float64).alias("success"),
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
    spec = _spec(episodes["env_id"].drop_nulls().unique().to_list())
    if spec is not None and spec.scenario is not None:
        episodes = episodes.with_columns(
            pl.Series("scenario", [spec.scenario(task_id) for task_id in episodes["task_id"]], pl.String)
        )
    return episodes.drop("env_id")


def _spec(env_ids: list[str]) -> EnvironmentSpec | None:
    """Return the description of the one benchmark that is installed under an id; None if there is none, or several."""
    try:
        return environment_spec(env_ids[0]) if len(env_ids) == 1 else None
    except InputError:
        return None


@dataclass(frozen=True, slots=True)
class MeasureSummary:
    """One measure over a set of episodes.

    Attributes:
        mean: Mean over all episodes.
        std: Standard deviation (ddof 1) of the means per seed; None with one seed.
        low: Lower bound of the mean's 95% confidence interval (percentile bootstrap over tasks).
        high: Upper bound of this interval.
        wilson_low: Lower bound of Wilson's 95% interval with the tasks as trials
            (`hgpo_train.proportions.wilson_interval`). None for measures other than success.
        wilson_high: Upper bound of this interval.
    """

    mean: float
    std: float | None
    low: float
    high: float
    wilson_low: float | None = None
    wilson_high: float | None = None


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """The results of an evaluation over all tasks or over one task type.

    Attributes:
        name: ``all``, or the task type.
        tasks: Number of tasks.
        episodes: Number of episodes without failure.
        aborted: Number of episodes that failed for a reason outside the task; the measures exclude them.
        seeds: The seeds.
        measures: A summary of each of `MEASURES`, over the episodes in which it is known; None if there is none.
        scenarios: Number of scenarios; None if the benchmark has none.
        scenario_success: The share of scenarios all of whose episodes of a seed solved their task, as a mean over
            seeds; scenarios with failed episodes are excluded (AppWorld's scenario goal completion).
    """

    name: str
    tasks: int
    episodes: int
    aborted: int
    seeds: tuple[int, ...]
    measures: dict[str, MeasureSummary | None]
    scenarios: int | None = None
    scenario_success: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the report as nested dictionaries, for JSON."""
        return asdict(self)


def evaluation_reports(table: pl.DataFrame) -> list[EvaluationReport]:
    """Return a report over all tasks, then one per task type.

    Args:
        table: Episodes of `episode_table`.

    Raises:
        InputError: Every episode failed.
    """
    if not len(table.filter(~pl.col("aborted"))):
        raise InputError("the run contains no episode without failure; see its `error` column")
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
        **_scenarios(table),
    )


def _scenarios(table: pl.DataFrame) -> dict[str, Any]:
    """Return the fields of a report that are about scenarios."""
    if "scenario" not in table.columns:
        return {}
    solved = table.group_by("seed", "scenario").agg(pl.col("success").min(), pl.col("aborted").any())
    solved = solved.filter(~pl.col("aborted")).group_by("seed").agg(pl.col("success").mean())
    return {"scenarios": table["scenario"].n_unique(), "scenario_success": solved["success"].mean()}


def _summarize_measure(table: pl.DataFrame, measure: str) -> MeasureSummary | None:
    table = table.drop_nulls(measure)
    if table.is_empty():
        return None
    seeds = table.group_by("seed").agg(pl.col(measure).mean()).sort("seed")[measure]
    sums = table.group_by("task_id").agg(pl.col(measure).sum(), pl.len()).sort("task_id")
    total, number = sums[measure].to_numpy(), sums["len"].to_numpy().astype(np.float64)
    drawn = bootstrap_tasks(len(sums))
    means = total[drawn].sum(1) / number[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    deviation = seeds.std(ddof=1) if len(seeds) > 1 else None
    mean = float(total.sum() / number.sum())
    wilson = wilson_interval(mean, len(sums)) if measure == "success" else (None, None)
    return MeasureSummary(
        mean=mean,
        std=None if deviation is None else float(deviation),  # type: ignore[arg-type]  # a float column's is a float
        low=float(low),
        high=float(high),
        wilson_low=wilson[0],
        wilson_high=wilson[1],
    )


def bootstrap_tasks(tasks: int) -> NDArray[np.int64]:
    """Return indices of tasks drawn with replacement, int64 of shape (resamples, tasks). The draws are seeded."""
    rng = np.random.Generator(np.random.PCG64(_SEED))
    return rng.integers(0, tasks, (min(_RESAMPLES, 20_000_000 // tasks + 1), tasks))
