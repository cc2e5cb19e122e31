"""Reports of evaluations: means and confidence intervals, over all tasks and per task type.

An evaluation is a step table whose `iteration` is the seed. Intervals and tests treat tasks, not episodes, as the
independent units: episodes of one task with different seeds are correlated, and treating them as independent makes
intervals too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import stdev
from typing import Final

import polars as pl

from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.errors import InputError
from hgpo_train.measures import measure
from hgpo_train.rollout.outcomes import Success, rollout_table, success

MEASURES: Final = {
    "success": "success",
    "score": "score",
    "length": "mean_length",
    "validity": "valid",
    "admissibility": "admissible",
}
"""The measures of an evaluation, with their names in `hgpo_train.measures`: the share of solved tasks, the final score,
the number of steps, and the shares of well-formed and of admissible actions.
"""


def episode_table(steps: pl.LazyFrame) -> pl.DataFrame:
    """Return a frame with one row per episode, sorted by seed and task.

    Its columns are seed, env_id, task_id, task (the instruction), task_type, success and score (null where unknown),
    length, aborted, truncated, won; invalid, judged and admissible (numbers of actions, `hgpo_train.measures`); and
    scenario, if the benchmark has scenarios (`hgpo_envs.environment_spec.EnvironmentSpec`).
    """
    episodes = (
        rollout_table(steps)
        .select(
            pl.col("iteration").alias("seed"),
            "env_id",
            "task_id",
            "task",
            "task_type",
            pl.col("won").cast(pl.Float64).alias("success"),
            pl.col("score", "length").cast(pl.Float64),
            "aborted",
            "truncated",
            "won",
            "invalid",
            "judged",
            "admissible",
        )
        .sort("seed", "task_id")
        .collect()
    )
    env_ids = episodes["env_id"].drop_nulls().unique().to_list()
    try:
        spec = environment_spec(env_ids[0]) if len(env_ids) == 1 else None
    except InputError:
        spec = None  # the benchmark is not installed
    if spec is not None and spec.scenario is not None:
        scenarios = [spec.scenario(task_id) for task_id in episodes["task_id"]]
        episodes = episodes.with_columns(pl.Series("scenario", scenarios, pl.String))
    return episodes


@dataclass(frozen=True, slots=True)
class MeasureSummary:
    """One measure over a set of episodes.

    Attributes:
        mean: Mean over all episodes in which it is known; of shares of actions, over all actions.
        std: Standard deviation (ddof 1) of the means per seed; None with one seed.
        low: Lower bound of the mean's 95% confidence interval (`hgpo_train.measures`); None with few tasks.
        high: Upper bound of this interval.
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """The results of an evaluation over all tasks or over one task type.

    Attributes:
        name: ``all``, or the task type.
        tasks: Number of tasks.
        episodes: Number of episodes without failure.
        aborted: Number of episodes that failed for a reason outside the task; the measures exclude them.
        success: The share of solved episodes, with bounds for the aborted ones.
        seeds: The seeds.
        measures: A summary of each of `MEASURES`; None if it is unknown for all episodes.
        scenarios: Number of scenarios; None if the benchmark has none.
        scenario_success: The share of scenarios all of whose episodes of a seed solved their task, as a mean over
            seeds; scenarios with failed episodes are excluded (AppWorld's scenario goal completion).
    """

    name: str
    tasks: int
    episodes: int
    aborted: int
    success: Success
    seeds: tuple[int, ...]
    measures: dict[str, MeasureSummary | None]
    scenarios: int | None = None
    scenario_success: float | None = None


def evaluation_reports(table: pl.DataFrame) -> list[EvaluationReport]:
    """Return a report over all tasks, then one per task type; none of a part in which every episode failed.

    Args:
        table: Episodes of `episode_table`.
    """
    types = sorted(name for name in table["task_type"].unique().to_list() if name)
    parts = [
        ("all", table),
        *((name, table.filter(pl.col("task_type") == name)) for name in types),
    ]
    return [_report(name, part) for name, part in parts if not part["aborted"].all()]


def _report(name: str, table: pl.DataFrame) -> EvaluationReport:
    whole = table.filter(~pl.col("aborted"))
    scenarios = None
    scenario_success = None
    if "scenario" in table.columns:
        scenarios = table["scenario"].n_unique()
        solved = table.group_by("seed", "scenario").agg(
            pl.col("success").min(), pl.col("aborted").any()
        )
        by_seed = (
            solved.filter(~pl.col("aborted"))
            .group_by("seed")
            .agg(pl.col("success").mean())
        )
        scenario_success = by_seed["success"].mean()
    return EvaluationReport(
        name=name,
        tasks=table["task_id"].n_unique(),
        episodes=len(whole),
        aborted=len(table) - len(whole),
        success=success(table),
        seeds=tuple(sorted(table["seed"].unique().to_list())),
        measures={name: _summarize(whole, name) for name in MEASURES},
        scenarios=scenarios,
        scenario_success=scenario_success,  # type: ignore[arg-type]  # a float column's is a float
    )


def _summarize(table: pl.DataFrame, name: str) -> MeasureSummary | None:
    known = MEASURES[name]
    found = measure(table, [known])[None][known]
    if found is None:
        return None
    seeds = [of_seed[known] for of_seed in measure(table, [known], by="seed").values()]
    values = [one.value for one in seeds if one is not None]
    return MeasureSummary(
        found.value, stdev(values) if len(values) > 1 else None, found.low, found.high
    )
