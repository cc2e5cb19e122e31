"""Results of a run and of two runs side by side: totals, by task type, by iteration, and shared contexts by level."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.advantages.parameters import STATISTICS_HISTORY_LENGTH
from hgpo_train.analysis.definitions import DEFINITIONS
from hgpo_train.analysis.describe import beginning, describe
from hgpo_train.analysis.statistics import default_permutations, statistics, with_and_without_unchanged
from hgpo_train.evaluation.comparison import TASK
from hgpo_train.proportions import by_length, wilson_interval
from hgpo_train.resampling import student_quantile
from hgpo_train.view.tasks import OUTCOMES

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_train.analysis.statistics import Statistics
    from hgpo_train.view.index import Index
    from hgpo_train.view.sources import Source

_METRICS_BYTES: Final = 256 << 20
_TASKS: Final = 200
"""Tasks that a comparison lists."""

_WHOLE: Final = ~pl.col("aborted")
_MEASURES: Final = {
    "success": pl.col("won").filter(_WHOLE).mean().alias("success"),
    "mean_return": pl.col("episode_return").filter(_WHOLE).mean().alias("mean_return"),
    "mean_length": pl.col("length").filter(_WHOLE).mean().alias("mean_length"),
    "valid": (1 - pl.col("invalid").filter(_WHOLE).sum() / pl.col("length").filter(_WHOLE).sum()).fill_nan(None)
    .alias("valid"),
}  # fmt: skip
"""Measures of episodes that were not aborted."""
_BOUNDS: Final = {"mean_length": (1, math.inf), "valid": (0, 1)}
"""The ranges of measures that cannot have any value."""
_LEVEL_COLUMNS: Final = (
    *("level", "eligible", "shared", "cross", "mean_size", "step_size", "differing", "flat", "weight", "explained"),
    "sign_disagreement",
)


def definitions_document() -> dict[str, dict[str, dict[str, str]]]:
    """Return the label and the text on hover of each statistic, by the tables of statistics."""
    return {
        table: {name: {"label": of.label, "text": of.text} for name, of in DEFINITIONS[table].items()}
        for table in ("summary", "levels")
    }


def overview_document(source: Source, index: Index) -> dict[str, Any]:
    """Return what a run contains: counts, its configuration, and results of all episodes and by task type."""
    episodes = index.episodes
    (total,) = results(episodes)
    return {
        "name": source.name,
        "path": str(source.path),
        "environments": sorted(episodes["env_id"].drop_nulls().unique()),
        "splits": sorted(episodes["split"].drop_nulls().unique()),
        "groups": index.groups.height,
        "files": len(index.files),
        "depth": index.depth,
        "iterations": sorted(episodes["iteration"].unique()),
        "config": source.config(),
        "training": source.training() is not None,
        "total": total,
        "task_types": results(episodes, "task_type"),
        "outcomes": index.groups.select(**{name: own.sum() for name, own in OUTCOMES.items()}).row(0, named=True),
        "lengths": by_length(episodes).to_dicts(),
    }


def results(episodes: pl.DataFrame, by: str | None = None) -> list[dict[str, Any]]:
    """Return the results of all episodes, or of those of each value of a column, sorted by it.

    Aborted rollouts are counted, and change `bounds` of success; measures are those of the others. `intervals` of
    measures (95%, None where unknown) take tasks as independent trials, because rollouts of one share its difficulty:
    Wilson's of success, around `success_by_task`; Student's of the mean over tasks of the others.
    """
    episodes = episodes if by else episodes.with_columns(all=0)
    key = by or "all"
    totals = episodes.group_by(key).agg(
        pl.struct("env_id", "task_id").n_unique().cast(pl.Int64).alias("tasks"),
        pl.len().cast(pl.Int64).alias("episodes"),
        pl.col("length").sum().alias("steps"),
        *_MEASURES.values(),
        (pl.col("admissible").filter(_WHOLE).sum() / pl.col("judged").filter(_WHOLE).sum()).fill_nan(None),
        pl.col("aborted", "truncated").sum().cast(pl.Int64),
        pl.col("won").filter(_WHOLE).sum().cast(pl.Int64),
        pl.col("won").filter(_WHOLE).null_count().cast(pl.Int64).alias("unknown"),
    )
    tasks = episodes.group_by(key, "env_id", "task_id").agg(*_MEASURES.values())
    spread = tasks.group_by(key).agg(
        pl.concat_list(pl.col(name).mean(), pl.col(name).std(), pl.col(name).count()).alias(f"{name}, tasks")
        for name in _MEASURES
    )
    rows = totals.join(spread, on=key, nulls_equal=True).sort(key, nulls_last=True).to_dicts()
    for row in rows:
        highest = row["won"] + row.pop("unknown") + row["aborted"]
        row["bounds"] = (row["won"] / row["episodes"], highest / row["episodes"]) if row["aborted"] else None
        of_tasks = {name: row.pop(f"{name}, tasks") for name in _MEASURES}
        row["success_by_task"], _, trials = of_tasks["success"]
        row["intervals"] = {name: mean_interval(*values, *_BOUNDS.get(name, ())) for name, values in of_tasks.items()}
        if trials:
            row["intervals"]["success"] = wilson_interval(min(1.0, row["success_by_task"]), int(trials))
    return rows


def mean_interval(
    mean: float | None, deviation: float | None, count: float, least: float = -math.inf, most: float = math.inf
) -> tuple[float, float] | None:
    """Return the 95% interval of a mean of independent values from a range, or None for fewer than two."""
    if mean is None or deviation is None:
        return None
    half = student_quantile(0.975, int(count) - 1) * deviation / math.sqrt(count)
    return max(least, mean - half), min(most, mean + half)


def curves_document(source: Source, index: Index) -> dict[str, Any]:
    """Return results by iteration, from the steps and from the metrics of a training run.

    Returns:
        ``results``: `results` of each iteration; and ``metrics``: for a training run, the values of each metric by its
        name, with null where it was not logged, for the iterations in ``metrics_iterations``.
    """
    folder = source.training()
    lines = [] if folder is None else _metrics(folder / "metrics.jsonl")
    names = sorted({name for line in lines for name in line if name != "iteration"})
    return {
        "results": results(index.episodes, "iteration"),
        "metrics_iterations": [line["iteration"] for line in lines],
        "metrics": {name: [line.get(name) for line in lines] for name in names},
    }


def comparison_document(first: Index, second: Index) -> dict[str, Any]:
    """Return what two runs did with the tasks that both contain.

    Returns:
        ``differences``: for each measure the mean over tasks of second - first, with its 95% `interval` (paired), and
        the numbers of `tasks` that were compared, `higher` and `lower`; ``total`` (of common tasks); and ``tasks``:
        those with the largest differences in success, with the measures and the first group's position in each run.
    """
    sides = [
        run.episodes.group_by(TASK, maintain_order=True).agg(pl.col("task_type", "number").first(), *_MEASURES.values())
        for run in (first, second)
    ]
    both = sides[0].join(sides[1], on=TASK, suffix=" of b", maintain_order="left", nulls_equal=True)
    differences = {}
    for name in _MEASURES:
        change = (both[f"{name} of b"] - both[name]).drop_nulls()
        if change.len():
            mean, deviation = change.mean(), change.std()
            interval = mean_interval(mean, deviation, change.len())  # type: ignore[arg-type]  # of floats
            counts = {"tasks": change.len(), "higher": int((change > 0).sum()), "lower": int((change < 0).sum())}
            differences[name] = {"mean": mean, "interval": interval, **counts}
    distance = (pl.col("success of b") - pl.col("success")).abs()
    listed = both.sort(distance, descending=True, nulls_last=True, maintain_order=True).head(_TASKS)
    tasks = [
        {
            **{name: beginning(row[name] or "", 300) if name == "task" else row[name] for name in ("task_id", "task")},
            "sides": [{name: row[name + end] for name in ("number", *_MEASURES)} for end in ("", " of b")],
        }
        for row in listed.iter_rows(named=True)
    ]
    return {"differences": differences, "total": both.height, "tasks": tasks}


def _metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a `metrics.jsonl`, without damaged ones: the run may be writing."""
    metrics: dict[Any, dict[str, Any]] = {}
    for line in read_bytes(path, _METRICS_BYTES, "metrics").splitlines():
        with suppress(msgspec.DecodeError, KeyError):
            values = msgspec.json.decode(line, type=dict[str, int | float | None])
            metrics[values["iteration"]] = values
    return [metrics[iteration] for iteration in sorted(metrics)]


@lru_cache(8)
def levels_document(index: Index, *, chance: bool = False) -> dict[str, Any]:
    """Return how often steps share a context, by level: of the whole run, and of each iteration if there are several.

    Args:
        index: The index of the run.
        chance: Whether to compute what chance alone gives, which takes several times as long.

    Returns:
        ``levels`` and ``levels_changed``: rows of the statistics, of all steps and without replies to actions that
        changed nothing; ``intervals`` and ``intervals_changed``: for each statistic and level ``low`` and ``high``
        (null with few tasks), and ``chance`` (null for statistics that do not depend on returns); ``states`` that carry
        most pairs; ``sentences``; ``tasks``, ``permutations``; and ``by_iteration``.
    """
    permutations = default_permutations(index.rows) if chance else 0
    lists, tables = (
        ("levels", "levels_changed", "states", "sentences"),
        ("intervals", "intervals_changed", "by_iteration"),
    )
    document: dict[str, Any] = {"tasks": 0, "permutations": permutations}
    document |= {name: [] for name in lists} | {name: {} for name in tables}
    steps, depth = scan_steps(index.files), min(STATISTICS_HISTORY_LENGTH, index.depth)
    try:
        result, changed = with_and_without_unchanged(steps, permutations=permutations, history_length=depth)
    except InputError as error:
        return {**document, "problem": str(error)}
    document |= {"levels": result.levels.select(_LEVEL_COLUMNS).to_dicts(), "intervals": _bounds(result)}
    if changed is not None:
        rows = changed.levels.select(_LEVEL_COLUMNS).to_dicts()
        document |= {"levels_changed": rows, "intervals_changed": _bounds(changed)}
    if index.episodes["iteration"].n_unique() > 1:
        levels = statistics(steps, by="iteration", history_length=depth).levels
        shared = levels.pivot("level", index="iteration", values="shared").sort("iteration").to_dict(as_series=False)
        document["by_iteration"] = {"iterations": shared.pop("iteration"), "shared": shared}
    states = [{**row, "state": beginning(row["state"])} for row in result.states.head(3).to_dicts()]
    return {**document, "states": states, "sentences": describe(result, changed), "tasks": result.intervals["tasks"][0]}


def _bounds(result: Statistics) -> dict[str, dict[str, Any]]:
    """Return the interval and the chance of each statistic and level."""
    intervals: dict[str, dict[str, Any]] = {}
    for row in result.intervals.iter_rows(named=True):
        bounds = {name: row[name] for name in ("low", "high", "chance")}
        intervals.setdefault(row["statistic"], {})[row["level"]] = bounds
    return intervals
