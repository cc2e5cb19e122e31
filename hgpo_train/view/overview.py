"""Results of a run and of two runs side by side: totals, by task type, by iteration, and shared contexts by level."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from hgpo_datasets import scan_steps
from hgpo_datasets.branches import IS_BRANCH
from hgpo_envs.errors import InputError
from hgpo_envs.files.sealed import CHECK
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.advantages.parameters import STATISTICS_HISTORY_LENGTH
from hgpo_train.analysis.definitions import DEFINITIONS
from hgpo_train.analysis.describe import beginning, describe
from hgpo_train.analysis.statistics import (
    Statistics,
    default_permutations,
    statistics,
    with_and_without_unchanged,
)
from hgpo_train.evaluation.comparison import TASK, compare
from hgpo_train.measures import MEASURES, figures, measure, measure_by_task
from hgpo_train.proportions import by_length

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_train.view.index import Index
    from hgpo_train.view.sources import Source

_METRICS_BYTES: Final = 256 << 20
_METRICS: Final = 1_000
"""Names of metrics that are shown: a damaged file can have one in each line."""


_LINE: Final = msgspec.json.Decoder(dict[str, float | None])
_TASKS: Final = 200
"""Tasks that a comparison lists."""


def definitions_document() -> dict[str, dict[str, dict[str, str]]]:
    """Return the label and the text on hover of each statistic, by the tables of statistics."""
    return {
        table: {
            name: {"label": of.label, "text": of.text}
            for name, of in DEFINITIONS[table].items()
        }
        for table in ("summary", "levels")
    }


def overview_document(source: Source, index: Index) -> dict[str, Any]:
    """Return what a run contains: counts, its configuration, and results of all episodes and by task type."""
    episodes = index.episodes
    (total,) = results(episodes)
    return {
        "environments": sorted(episodes["env_id"].drop_nulls().unique()),
        "splits": sorted(episodes["split"].drop_nulls().unique()),
        "groups": index.groups.height,
        "files": len(index.files),
        "depth": index.depth,
        "iterations": sorted(episodes["iteration"].unique()),
        "config": source.config(),
        "evaluation": source.config().get("evaluation") is True,
        "total": total,
        "task_types": results(episodes, "task_type"),
        "outcomes": index.groups.select(
            none=(pl.col("won") == 0).sum(),
            partly=pl.col("won").is_between(0, pl.col("roots"), closed="none").sum(),
            all=(pl.col("won") == pl.col("roots")).sum(),
        ).row(0, named=True),
        "lengths": by_length(episodes.filter(~IS_BRANCH)).to_dicts(),
    }


def results(episodes: pl.DataFrame, by: str | None = None) -> list[dict[str, Any]]:
    """Return the results of all episodes but branches, or of those of each value of a column, sorted by it.

    `steps` are those that were played, also by branches.
    The figures are those of `hgpo_train.measures.figures`, with the `intervals` of all measures, and with the `bounds`
    of success where rollouts were aborted; None where unknown.
    """
    played = episodes.group_by(by or pl.lit(0).alias("all")).agg(pl.col("length").sum())
    steps = dict(played.iter_rows())
    episodes = episodes.filter(~IS_BRANCH).with_columns(success="won")
    measures = measure(episodes, by=by)
    rows = figures(episodes, [by] if by else []).to_dicts()
    for row in rows:
        found = measures[row[by] if by else None]
        row["steps"] = steps[row[by] if by else 0]
        row |= {name: estimate and estimate.value for name, estimate in found.items()}
        row["intervals"] = {
            name: estimate and estimate.interval for name, estimate in found.items()
        }
        bounds = [row["success_if_aborted_lost"], row["success_if_aborted_won"]]
        row["bounds"] = bounds if row["aborted"] and None not in bounds else None
    return rows


def curves_document(source: Source, index: Index) -> dict[str, Any]:
    """Return results by iteration, from the steps and from the metrics of a training run.

    Returns:
        ``results``: `results` of each iteration; ``seeds``: whether an iteration is a seed of an evaluation; and
        ``metrics``: for a training run, the values of each metric by its name, with null where it was not logged, for
        the iterations in ``metrics_iterations``.
    """
    folder = source.training()
    lines = [] if folder is None else _metrics(folder / "metrics.jsonl")
    names = sorted(
        {name for line in lines for name in line if name not in ("iteration", CHECK)}
    )[:_METRICS]
    return {
        "results": results(index.episodes, "iteration"),
        "seeds": source.config().get("evaluation") is True,
        "metrics_iterations": [line["iteration"] for line in lines],
        "metrics": {name: [line.get(name) for line in lines] for name in names},
    }


def comparison_document(first: Index, second: Index) -> dict[str, Any]:
    """Return what two runs did with the tasks that both contain.

    Returns:
        ``differences``: for each measure that of the second run to the first (`hgpo_train.evaluation.compare`);
        ``total`` (of common tasks); and ``tasks``: those with the largest differences in success, with the measures
        and the first group's position in each run.
    """
    runs = [run.episodes.with_columns(success="won") for run in (first, second)]

    # 1. The differences of each measure; it is left out if it is unknown of all common tasks.
    differences = {}
    for name in MEASURES:
        with suppress(InputError):
            differences[name] = msgspec.to_builtins(compare(runs[1], runs[0], name))

    # 2. The measures of each task in both runs.
    same: dict[str, Any] = {"on": TASK, "nulls_equal": True, "maintain_order": "left"}
    sides = []
    for run in runs:
        side = run.group_by(TASK, maintain_order=True).agg(pl.col("number").first())
        for name in MEASURES:
            side = side.join(measure_by_task(run, name, TASK), how="left", **same)
        sides.append(side)
    both = sides[0].join(sides[1], suffix=" of b", **same)
    distance = (pl.col("success of b") - pl.col("success")).abs()
    listed = both.sort(
        distance, descending=True, nulls_last=True, maintain_order=True
    ).head(_TASKS)
    tasks = []
    for row in listed.iter_rows(named=True):
        names = ("number", *MEASURES)
        tasks.append(
            {
                "task_id": row["task_id"],
                "task": beginning(row["task"] or "", 300),
                "sides": [
                    {name: row[name + end] for name in names} for end in ("", " of b")
                ],
            }
        )
    return {"differences": differences, "total": both.height, "tasks": tasks}


def _metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a `metrics.jsonl`, without damaged ones: the run may be writing."""
    metrics: dict[int, dict[str, Any]] = {}
    for line in read_bytes(path, _METRICS_BYTES, "metrics").splitlines():
        with suppress(ValueError, RecursionError):
            values = _LINE.decode(line)
            iteration = values.get("iteration")
            if (
                iteration is not None
                and iteration.is_integer()
                and 0 <= iteration <= 1 << 53
            ):
                metrics[int(iteration)] = {**values, "iteration": int(iteration)}
    return [metrics[iteration] for iteration in sorted(metrics)]


@lru_cache(8)
def levels_document(index: Index, *, chance: bool = False) -> dict[str, Any]:
    """Return how often steps share a context, by level: of the whole run, and of each iteration if there are several.

    Args:
        index: The index of the run.
        chance: Whether to compute what chance alone gives, which takes several times as long.

    Returns:
        ``problem``, if there are no statistics; or else
        ``levels`` and ``levels_changed``: rows of the statistics, of all steps and without replies to actions that
        changed nothing; ``intervals`` and ``intervals_changed``: for each statistic and level ``low`` and ``high``
        (null with few tasks), and ``chance`` (null for statistics that do not depend on returns); ``states`` that carry
        most pairs; ``sentences``; ``tasks``, ``permutations``; and ``by_iteration``.
    """
    permutations = default_permutations(index.rows) if chance else 0
    steps = scan_steps(index.files)
    depth = min(STATISTICS_HISTORY_LENGTH, index.depth)
    by_iteration: dict[str, Any] = {}
    try:
        result, changed = with_and_without_unchanged(
            steps, permutations=permutations, history_length=depth
        )
    except InputError as error:
        return {"problem": str(error), "levels": [], "by_iteration": by_iteration}

    if index.episodes["iteration"].n_unique() > 1:
        levels = statistics(steps, by="iteration", history_length=depth).levels
        shared = (
            levels.pivot("level", index="iteration", values="shared")
            .sort("iteration")
            .to_dict(as_series=False)
        )
        by_iteration = {"iterations": shared.pop("iteration"), "shared": shared}
    states = result.states.head(3).to_dicts()
    return {
        "levels": result.levels.to_dicts(),
        "levels_changed": [] if changed is None else changed.levels.to_dicts(),
        "intervals": _bounds(result),
        "intervals_changed": _bounds(changed),
        "states": [{**row, "state": beginning(row["state"])} for row in states],
        "sentences": describe(result, changed),
        "tasks": result.intervals["tasks"][0],
        "permutations": permutations,
        "by_iteration": by_iteration,
    }


def _bounds(result: Statistics | None) -> dict[str, dict[str, Any]]:
    """Return the interval and the chance of each statistic and level."""
    intervals: dict[str, dict[str, Any]] = {}
    for row in [] if result is None else result.intervals.iter_rows(named=True):
        bounds = {name: row[name] for name in ("low", "high", "chance")}
        intervals.setdefault(row["statistic"], {})[row["level"]] = bounds
    return intervals
