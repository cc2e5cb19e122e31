"""The overview of a run: totals, success by task type, curves by iteration, and shared contexts by level."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.advantages.parameters import STATISTICS_HISTORY_LENGTH
from hgpo_train.analysis.describe import beginning, describe
from hgpo_train.analysis.statistics import default_permutations, statistics, with_and_without_unchanged
from hgpo_train.proportions import by_length, success_bounds, wilson_interval
from hgpo_train.view.tasks import OUTCOMES

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_train.analysis.statistics import Statistics
    from hgpo_train.view.index import Index
    from hgpo_train.view.sources import Source

_METRICS_BYTES: Final = 256 << 20
_LEVEL_COLUMNS: Final = (
    *("level", "eligible", "shared", "cross", "mean_size", "step_size", "differing", "flat", "weight", "explained"),
    "sign_disagreement",
)


def overview_document(source: Source, index: Index) -> dict[str, Any]:
    """Return what a run contains: counts, its configuration, and results of all episodes and by task type."""
    episodes = index.episodes
    task_types = episodes.partition_by("task_type", maintain_order=True)
    task_types.sort(key=lambda part: str(part["task_type"][0] or "\U0010ffff"))
    iterations = sorted(episodes["iteration"].unique())
    return {
        "name": source.name,
        "path": str(source.path),
        "environments": sorted(episodes["env_id"].drop_nulls().unique()),
        "splits": sorted(episodes["split"].drop_nulls().unique()),
        "tasks": episodes.select(pl.struct("env_id", "task_id").n_unique()).item(),
        "groups": index.groups.height,
        "trajectories": episodes.height,
        "steps": index.rows,
        "files": len(index.files),
        "depth": index.depth,
        "iterations": iterations,
        "config": source.config(),
        "training": source.training() is not None,
        "total": _results(episodes),
        "task_types": [{"task_type": part["task_type"][0], **_results(part)} for part in task_types],
        "outcomes": _outcomes(index.groups),
        "lengths": by_length(episodes).to_dicts(),
    }


def _results(episodes: pl.DataFrame) -> dict[str, Any]:
    """Return results. The 95% interval of success takes tasks as independent trials, because rollouts share them."""
    whole = episodes.filter(~pl.col("aborted"))
    tasks = whole.drop_nulls("won").group_by("env_id", "task_id").agg(pl.col("won").mean())
    share: Any = tasks["won"].mean()
    interval = wilson_interval(min(1.0, share), tasks.height) if tasks.height else None
    steps, judged, aborted = int(whole["length"].sum()), int(whole["judged"].sum()), int(episodes["aborted"].sum())
    bounds = None
    if aborted:
        unknown = aborted + whole["won"].null_count()
        bounds = success_bounds(int(whole["won"].sum()), unknown, episodes.height)
    return {
        "tasks": episodes.select(pl.struct("env_id", "task_id").n_unique()).item(),
        "episodes": episodes.height,
        "success": whole["won"].mean(),
        "success_by_task": share,
        "interval": interval,
        "mean_return": whole["episode_return"].mean(),
        "mean_length": whole["length"].mean(),
        "bounds": bounds,
        "invalid": int(whole["invalid"].sum()) / steps if steps else None,
        "admissible": int(whole["admissible"].sum()) / judged if judged else None,
        "aborted": aborted,
        "truncated": int(episodes["truncated"].sum()),
    }


def _outcomes(groups: pl.DataFrame) -> dict[str, int]:
    """Return the number of groups by how many of their trajectories won."""
    return groups.select(**{name: expression.sum() for name, expression in OUTCOMES.items()}).row(0, named=True)


def curves_document(source: Source, index: Index) -> dict[str, Any]:
    """Return results by iteration, from the steps and from the metrics of a training run.

    Returns:
        ``iterations``, lists of results for each of them, and ``metrics``: for a training run, the values of each
        metric by its name, with null where it was not logged, for the iterations in ``metrics_iterations``.
    """
    whole = ~pl.col("aborted")
    length, invalid = pl.col("length").filter(whole), pl.col("invalid").filter(whole)
    table = (
        index.episodes.group_by("iteration")
        .agg(
            pl.col("won").filter(whole).mean().alias("success"),
            pl.col("episode_return").filter(whole).mean().alias("return"),
            length.mean(),
            (1 - invalid.sum() / length.sum()).fill_nan(None).alias("valid"),
            pl.col("aborted").sum().cast(pl.Int64),
            pl.len().cast(pl.Int64).alias("trajectories"),
            pl.col("length").sum().alias("steps"),
        )
        .sort("iteration")
    )
    folder = source.training()
    lines = [] if folder is None else _metrics(folder / "metrics.jsonl")
    names = sorted({name for line in lines for name in line if name != "iteration"})
    return {
        "iterations": table["iteration"].to_list(),
        "results": {name: table[name].to_list() for name in table.columns if name != "iteration"},
        "metrics_iterations": [line["iteration"] for line in lines],
        "metrics": {name: [line.get(name) for line in lines] for name in names},
    }


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
