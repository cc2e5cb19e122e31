"""Results of `learning.py`: curves over environment steps, success on fresh tasks, and a picture."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import TYPE_CHECKING, Any, Final

import altair as alt
import numpy as np
import polars as pl

from benchmarks.readme import ESTIMATORS, WORLDS, title_of
from benchmarks.runner import Part, Row
from hgpo_datasets import scan_steps
from hgpo_train.evaluation import compare
from hgpo_train.evaluation.report import episode_table
from hgpo_train.evaluation.report import evaluation_reports as summary
from hgpo_train.models.checkpoint_files import list_checkpoints
from hgpo_train.resampling import student_quantile
from hgpo_train.training.tracking import read_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START: Final = "warm-start"
"""Name of the policy before training."""


def file_name(estimator: str) -> str:
    """Return the name of the files of an estimator with parameters, without the colons that Windows refuses.

    >>> file_name("gigpo:episode_weight=0")
    'gigpo+episode_weight=0'
    """
    return estimator.replace(":", "+")


def report(
    world: str, folder: Path, name: str = "", against: Path | None = None
) -> list[Part]:
    """Return the result of all runs in a folder.

    Args:
        world: The environment's short name.
        folder: The folder of the runs.
        name: The name of the runs, which is part of the result's name.
        against: The folder of other runs, with which success on fresh tasks is compared too.
    """
    found = curves(folder)
    ends = (
        found.sort("iteration")
        .group_by("estimator", "seed")
        .agg(
            start=pl.col("success").first(),
            end=pl.col("success").last(),
            steps=pl.col("environment_steps").last(),
        )
        .group_by("estimator")
        .agg(pl.col("start", "end", "steps").mean())
        .sort("estimator")
    )
    # the path of the warm start is irrelevant
    configs = {
        path.stem: re.sub(r'(?m)^path = ".*/', 'path = "', path.read_text("utf-8"))
        for path in sorted(folder.glob("*-*.toml"))
    }
    kept = {
        "ends": {estimator: figures for estimator, *figures in ends.iter_rows()},
        "curves": found.to_dicts(),
        "fresh": fresh_figures(folder, against),
        "configurations": configs,
    }
    title = WORLDS[world]
    rows = list(success_rows(title, kept, shown="" if name else "readme"))
    suffix = f"_{world}_{name}".rstrip("_")
    return [Part(rows, kept, suffix, curves_chart(found, title))]


def success_rows(title: str, kept: dict[str, Any], shown: str) -> Iterator[Row]:
    """Return success of each estimator before and after training, and the differences on fresh tasks in points."""
    for estimator, (start, end, _) in kept["ends"].items():
        yield Row(
            f"{title}: success on held-out tasks, {title_of(estimator)}",
            end,
            "%",
            rival=("before training", start),
        )
    fresh = kept["fresh"]
    if not fresh:
        return
    others = [
        f"{title_of(name)} {fresh[name]['mean']:.0%}"
        for name in kept["ends"]
        if name != "hgpo"
    ]
    for estimator, (_, _, steps) in kept["ends"].items():
        ours = estimator == "hgpo"
        yield Row(
            f"{title}: success on {fresh['tasks']} fresh tasks after {steps:,.0f} training steps of 1.1M parameters, "
            f"{title_of(estimator)}",
            fresh[estimator]["mean"],
            "%",
            rival=("before training", fresh[START]["mean"]),
            note=", ".join(others) if ours else "",
            shown=shown if ours else "",
        )
    for pair in fresh["differences"]:
        margin = pair["margin_of_seeds"]
        yield Row(
            f"{title}: {title_of(pair['first'])} − {title_of(pair['second'])}, fresh tasks",
            100 * pair["difference"],
            "points",
            note="" if margin is None else f"± {100 * margin:.1f} by seeds",
        )


def runs_of(folder: Path) -> list[Path]:
    """Return the metrics of all existing runs."""
    return sorted(folder.glob("*-*/metrics.jsonl"))


def curves(folder: Path) -> pl.DataFrame:
    """Return all evaluations of all runs: estimator, seed, iteration, environment steps, success, score."""
    rows = []
    for path in runs_of(folder):
        estimator, _, seed = path.parent.name.rpartition("-")
        for line in read_metrics(path):
            if line.get("val/success_rate") is None:
                continue
            row = {
                "estimator": estimator.replace("+", ":"),
                "seed": int(seed),
                "iteration": line["iteration"],
                "environment_steps": line["training/environment_steps"],
                "success": line["val/success_rate"],
                "score": line["val/score/mean"],
                "seconds": line.get("timing_s/step"),
            }
            rows.append(row)
    if not rows:
        raise SystemExit(f"no run in {folder} has been evaluated yet")
    return pl.DataFrame(rows)


def fresh_folder(folder: Path, name: str) -> Path:
    """Return the step table of fresh tasks for a run's newest checkpoint or for the policy before training."""
    found = list_checkpoints(folder / name / "checkpoints")
    return folder / "fresh" / (f"{name}-{found[-1].name}" if found else name)


def fresh_figures(folder: Path, against: Path | None = None) -> dict[str, Any]:
    """Return success on fresh tasks before training and for each estimator's runs together, the gain, and differences.

    Intervals are 95% intervals by resampled tasks (`hgpo_train.evaluation`). The result is empty without evaluations.
    With `against`, each estimator is also compared with those of that folder, whose names begin with the folder's.
    """
    played = fresh_episodes(folder)
    start = fresh_folder(folder, START)
    if not (played and start.exists()):
        return {}
    before = episode_table(scan_steps(start))
    figures: dict[str, Any] = {
        "tasks": before["task_id"].n_unique(),
        START: success(before),
    }
    for estimator, runs in played.items():
        after = pl.concat(runs.values())
        figures[estimator] = success(after) | {
            "lift": dataclasses.asdict(compare(after, before)),
            "seeds": [success(run)["mean"] for _, run in sorted(runs.items())],
        }
    others = {}
    if against:
        for name, runs in fresh_episodes(against).items():
            others[f"{against.name}/{name}"] = runs
    figures["differences"] = differences(played, others)
    return figures


def fresh_episodes(folder: Path) -> dict[str, dict[int, pl.DataFrame]]:
    """Return the episodes on fresh tasks of each estimator by seed; empty unless all runs have been evaluated."""
    played = {}
    for path in runs_of(folder):
        name = path.parent.name
        place = fresh_folder(folder, name)
        if not place.exists():
            return {}
        played[name] = episode_table(scan_steps(place))
    return by_estimator(played)


def by_estimator(
    played: dict[str, pl.DataFrame],
) -> dict[str, dict[int, pl.DataFrame]]:
    """Return the episodes of each estimator by seed, from those of each run by its name."""
    found: dict[str, dict[int, pl.DataFrame]] = {}
    for name in sorted(played):
        estimator, _, seed = name.rpartition("-")
        found.setdefault(estimator.replace("+", ":"), {})[int(seed)] = played[name]
    return found


def differences(
    played: dict[str, dict[int, pl.DataFrame]],
    others: dict[str, dict[int, pl.DataFrame]],
) -> list[dict[str, Any]]:
    """Return the paired difference of success between any two estimators, with its 95% interval over seeds.

    `others` are compared with those of `played`, not with each other. The interval is Student's over the seeds'
    differences, and needs at least two common seeds. One over resampled tasks would hold for these runs only: it leaves
    out what another run of the same estimator changes, which is most of it.
    """
    found = []
    every = played | others
    for first, second in (
        *itertools.combinations(played, 2),
        *itertools.product(played, others),
    ):
        ours = every[first]
        theirs = every[second]
        common = sorted(ours.keys() & theirs.keys())
        if not common:
            continue
        each = [compare(ours[seed], theirs[seed]).difference for seed in common]
        count = len(common)
        margin = None
        if count > 1:
            widened = student_quantile(0.975, count - 1) * np.std(each, ddof=1)
            margin = float(widened / np.sqrt(count))
        pair = {
            "first": first,
            "second": second,
            "difference": float(np.mean(each)),
            "seeds": each,
            "margin_of_seeds": margin,
        }
        found.append(pair)
    return found


def success(table: pl.DataFrame) -> dict[str, float | None]:
    """Return success of all episodes: mean, standard deviation of the seeds, interval."""
    return dataclasses.asdict(summary(table)[0].measures["success"])


def at_equal_steps(found: pl.DataFrame) -> pl.DataFrame:
    """Interpolate each run's success linearly at common environment steps.

    The number of points is the smallest number of evaluations of a run; they are evenly spaced up to the shortest run's
    end.
    """
    runs = found.sort("environment_steps").partition_by(
        "estimator", "seed", as_dict=True
    )
    end = min(run["environment_steps"].max() for run in runs.values())
    steps = np.linspace(0, end, min(run.height for run in runs.values()))
    points = []
    for (estimator, _), run in runs.items():
        success = np.interp(steps, run["environment_steps"], run["success"])
        point = pl.DataFrame({"environment_steps": steps, "success": success})
        points.append(point.with_columns(estimator=pl.lit(estimator)))
    return pl.concat(points)


def curves_chart(found: pl.DataFrame, world: str) -> alt.LayerChart:
    """Return a picture of the mean over seeds with their range.

    Args:
        found: The evaluations, from `curves` or from the kept results.
        world: The name for the title.
    """
    names = (*ESTIMATORS, *found["estimator"].unique(maintain_order=True))
    titles = {name: title_of(name).replace("`", "") for name in names}
    shown = [title for name, title in titles.items() if name in found["estimator"]]
    # the same colour per estimator in every picture
    colours = alt.Scale(domain=list(titles.values()))
    legend = alt.Legend(values=shown, symbolOpacity=1, labelLimit=400)
    success = pl.col("success")
    spread = (
        at_equal_steps(found)
        .group_by(pl.col("estimator").replace(titles), "environment_steps")
        .agg(success.mean(), low=success.min(), high=success.max())
        .sort("estimator", "environment_steps")
    )
    base = alt.Chart(alt.Data(values=spread.to_dicts())).encode(
        x=alt.X("environment_steps:Q", title="environment steps of training"),
        color=alt.Color("estimator:N", title=None, scale=colours, legend=legend),
    )
    percent = alt.Axis(format="%")
    axis = alt.Y("success:Q", title="success on held-out tasks", axis=percent)
    line = base.mark_line(point=True).encode(y=axis)
    ranges = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
    title = f"{world}: mean of {found['seed'].n_unique()} seeds, and their range"
    return (ranges + line).properties(width=520, height=320, title=title)
