"""Results of `learning.py`: curves over environment steps, success on fresh tasks, a table and a picture."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import TYPE_CHECKING, Any, Final

import altair as alt
import numpy as np
import polars as pl
from readme import ESTIMATORS, title_of
from record import results_folder, store
from rich.table import Table

from hgpo_datasets import scan_steps
from hgpo_train.evaluation import compare
from hgpo_train.evaluation.report import episode_table
from hgpo_train.evaluation.report import evaluation_reports as summary
from hgpo_train.models.checkpoint_files import list_checkpoints
from hgpo_train.resampling import student_quantile
from hgpo_train.training.tracking import read_metrics

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

START: Final = "warm-start"
"""Name of the policy before training."""
MEASURED: Final = {
    "approx_kl": "actor/approx_kl",
    "clip_fraction": "actor/clip_fraction",
    "largest_advantage": "critic/advantages/max",
    "entropy": "actor/entropy",
    "bootstrapped": "adaptive/weight",  # of the estimator `adaptive` of research
}
"""The metrics of `hgpo train` that show how far an iteration moves the policy, by their names in the results."""


def file_name(estimator: str) -> str:
    """Return the name of the files of an estimator with parameters, without the colons that Windows refuses.

    >>> file_name("gigpo:episode_weight=0")
    'gigpo+episode_weight=0'
    """
    return estimator.replace(":", "+")


def report(
    world: str, folder: Path, console: Console, name: str | None = None, against: Path | None = None, *, keep: bool
) -> None:
    """Write the table, the JSON and the picture; with `keep`, these replace the kept results.

    Args:
        world: The environment's short name.
        folder: The folder of the runs.
        console: Where the tables are printed.
        name: The name of the runs, which is part of the result's name.
        against: The folder of other runs, with which success on fresh tasks is compared too.
        keep: Whether to replace the kept results.
    """
    found = curves(folder)
    if found.is_empty():
        console.print(f"no run in {folder} has been evaluated yet")
        return
    ends = found.sort("iteration").group_by("estimator", "seed", maintain_order=True).agg(
        pl.col("success").first().alias("start"), pl.col("success").last().alias("end"), pl.col("iteration").last(),
        pl.col("environment_steps").last(), pl.col("success").max().alias("best"),
    )  # fmt: skip
    table = Table(title=f"{world}: success on held-out tasks")
    for head in ("estimator", "seed", "iterations", "steps", "warm start", "end", "lift", "best"):
        table.add_column(head, justify="right")
    for row in ends.sort("estimator", "seed").iter_rows(named=True):
        table.add_row(
            row["estimator"], str(row["seed"]), str(row["iteration"]), f"{row['environment_steps']:,.0f}",
            f"{row['start']:.1%}", f"{row['end']:.1%}", f"{100 * (row['end'] - row['start']):+.1f}",
            f"{row['best']:.1%}",
        )  # fmt: skip
    console.print(table)
    fresh = fresh_figures(folder, against)
    if fresh:
        console.print(fresh_table(world, fresh), differences_table(fresh["differences"]))
    means = ends.group_by("estimator").agg(pl.col("start", "end", "environment_steps").mean()).sort("estimator")
    configs = {
        path.stem: re.sub(r'(?m)^path = ".*/', 'path = "', path.read_text())  # the path of the warm start is irrelevant
        for path in sorted(folder.glob("*-*.toml"))
    }
    result = f"learning_{world}_{name}" if name else f"learning_{world}"
    kept = {
        "ends": {estimator: figures for estimator, *figures in means.iter_rows()},
        "curves": found.to_dicts(),
        "fresh": fresh,
        "training": training_metrics(folder),
        "configurations": configs,
    }
    console.print(store(result, kept, keep=keep))
    console.print(f"the curves are in {draw(found, world, results_folder(keep=keep) / f'{result}.png')}")


def runs_of(folder: Path) -> list[Path]:
    """Return the metrics of all existing runs."""
    return sorted(folder.glob("*-*/metrics.jsonl"))


def curves(folder: Path) -> pl.DataFrame:
    """Return all evaluations of all runs: estimator, seed, iteration, environment steps, success, score."""
    rows = []
    for path in runs_of(folder):
        estimator, _, seed = path.parent.name.rpartition("-")
        rows += [
            {
                "estimator": estimator.replace("+", ":"),
                "seed": int(seed),
                "iteration": line["iteration"],
                "environment_steps": line["training/environment_steps"],
                "success": line["val/success_rate"],
                "score": line["val/score/mean"],
                "seconds": line.get("timing_s/step"),
            }
            for line in read_metrics(path)
            if line.get("val/success_rate") is not None
        ]
    return pl.DataFrame(rows)


def training_metrics(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return the metrics of `MEASURED` of each estimator: in the first iteration, in all later ones, in the last one.

    Each is a mean over the runs, up to the last iteration that all of the estimator's runs have.
    """
    rows = [
        {"estimator": path.parent.name.rpartition("-")[0].replace("+", ":"), "run": path.parent.name, **line}
        for path in runs_of(folder)
        for line in read_metrics(path)
        if line["iteration"] > 0
    ]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (estimator,), lines in pl.DataFrame(rows, infer_schema_length=None).group_by("estimator", maintain_order=True):
        last = lines.group_by("run").agg(pl.col("iteration").max())["iteration"].min()
        parts = {
            "first": lines.filter(iteration=1),
            "later": lines.filter(pl.col("iteration").is_between(2, last)),
            "last": lines.filter(iteration=last),
        }
        known = [name for name in lines.columns if lines[name].count()]
        found[str(estimator)] = {
            part: {name: each[metric].mean() for name, metric in MEASURED.items() if metric in known}
            for part, each in parts.items()
        }
    return found


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
    if not (played and fresh_folder(folder, START).exists()):
        return {}
    before = episode_table(scan_steps(fresh_folder(folder, START)))
    figures: dict[str, Any] = {"tasks": before["task_id"].n_unique(), START: success(before)}
    for estimator, runs in played.items():
        after = pl.concat(runs.values())
        figures[estimator] = success(after) | {"lift": dataclasses.asdict(compare(after, before))}
        figures[estimator]["seeds"] = [success(run)["mean"] for _, run in sorted(runs.items())]
    others = {f"{against.name}/{name}": runs for name, runs in fresh_episodes(against).items()} if against else {}
    figures["differences"] = differences(played, others)
    return figures


def fresh_episodes(folder: Path) -> dict[str, dict[int, pl.DataFrame]]:
    """Return the episodes on fresh tasks of each estimator by seed; empty unless all runs have been evaluated."""
    places = {path.parent.name: fresh_folder(folder, path.parent.name) for path in runs_of(folder)}
    if not all(place.exists() for place in places.values()):
        return {}
    return by_estimator({name: episode_table(scan_steps(place)) for name, place in places.items()})


def by_estimator(played: dict[str, pl.DataFrame]) -> dict[str, dict[int, pl.DataFrame]]:
    """Return the episodes of each estimator by seed, from those of each run by its name."""
    found: dict[str, dict[int, pl.DataFrame]] = {}
    for name in sorted(played):
        estimator, _, seed = name.rpartition("-")
        found.setdefault(estimator.replace("+", ":"), {})[int(seed)] = played[name]
    return found


def differences(
    played: dict[str, dict[int, pl.DataFrame]], others: dict[str, dict[int, pl.DataFrame]]
) -> list[dict[str, Any]]:
    """Return the paired difference of success between any two estimators, with its 95% interval over seeds.

    `others` are compared with those of `played`, not with each other. The interval is Student's over the seeds'
    differences, and needs at least two common seeds. One over resampled tasks would hold for these runs only: it leaves
    out what another run of the same estimator changes, which is most of it.
    """
    found = []
    every = played | others
    for first, second in (*itertools.combinations(played, 2), *itertools.product(played, others)):
        common = sorted(every[first].keys() & every[second].keys())
        if not common:
            continue
        each = [compare(every[first][seed], every[second][seed]).difference for seed in common]
        margin = None
        if len(common) > 1:
            margin = float(student_quantile(0.975, len(common) - 1) * np.std(each, ddof=1) / np.sqrt(len(common)))
        mean = float(np.mean(each))
        found.append({"first": first, "second": second, "difference": mean, "seeds": each, "margin_of_seeds": margin})
    return found


def success(table: pl.DataFrame) -> dict[str, float | None]:
    """Return success of all episodes: mean, standard deviation of the seeds, interval."""
    return dataclasses.asdict(summary(table)[0].measures["success"])


def fresh_table(world: str, fresh: dict[str, Any]) -> Table:
    """Print the results as a table."""
    table = Table(title=f"{world}: success on {fresh['tasks']} fresh tasks, with 95% intervals")
    for name in ("", "success", "lift"):
        table.add_column(name, justify="right")
    for name, found in fresh.items():
        if name in ("tasks", "differences"):
            continue
        lift = found.get("lift")
        gained = (
            f"{100 * lift['difference']:+.1f} ({100 * lift['low']:+.1f} to {100 * lift['high']:+.1f})" if lift else ""
        )
        table.add_row(name, f"{found['mean']:.1%} ({found['low']:.1%} to {found['high']:.1%})", gained)
    return table


def differences_table(found: list[dict[str, Any]]) -> Table:
    """Print the differences between estimators in percentage points."""
    table = Table("first", "second", "first - second", "95% by seeds", title="differences on fresh tasks")
    for row in found:
        seeds = "" if row["margin_of_seeds"] is None else f"± {100 * row['margin_of_seeds']:.1f}"
        table.add_row(row["first"], row["second"], f"{100 * row['difference']:+.1f}", seeds)
    return table


def at_equal_steps(found: pl.DataFrame) -> pl.DataFrame:
    """Interpolate each run's success linearly at common environment steps.

    The number of points is the smallest number of evaluations of a run; they are evenly spaced up to the shortest run's
    end.
    """
    runs = found.sort("environment_steps").partition_by("estimator", "seed", as_dict=True)
    end = min(run["environment_steps"].max() for run in runs.values())
    steps = np.linspace(0, end, min(run.height for run in runs.values()))
    points = []
    for (estimator, _), run in runs.items():
        success = np.interp(steps, run["environment_steps"], run["success"])
        points.append(pl.DataFrame({"estimator": estimator, "environment_steps": steps, "success": success}))
    return pl.concat(points)


def draw(found: pl.DataFrame, world: str, path: Path) -> Path:
    """Draw the curves as a PNG."""
    curves_chart(found, world).save(path, scale_factor=2)
    return path


def curves_chart(found: pl.DataFrame, world: str) -> alt.LayerChart:
    """Return a picture of the mean over seeds with their range.

    Args:
        found: The evaluations, from `curves` or from the kept results.
        world: The name for the title.
    """
    spread = at_equal_steps(found).group_by("estimator", "environment_steps").agg(
        pl.col("success").mean(), pl.col("success").min().alias("low"), pl.col("success").max().alias("high"),
    )  # fmt: skip
    titles = {
        name: title_of(name).replace("`", "") for name in (*ESTIMATORS, *found["estimator"].unique(maintain_order=True))
    }
    shown = [title for name, title in titles.items() if name in found["estimator"]]
    colours = alt.Scale(domain=list(titles.values()))  # the same colour per estimator in every picture
    legend = alt.Legend(values=shown, symbolOpacity=1, labelLimit=400)
    spread = spread.with_columns(pl.col("estimator").replace(titles)).sort("estimator", "environment_steps")
    base = alt.Chart(alt.Data(values=spread.to_dicts())).encode(
        x=alt.X("environment_steps:Q", title="environment steps of training"),
        color=alt.Color("estimator:N", title=None, scale=colours, legend=legend),
    )
    success = alt.Y("success:Q", title="success on held-out tasks", axis=alt.Axis(format="%"))
    line = base.mark_line(point=True).encode(y=success)
    ranges = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
    title = f"{world}: mean of {found['seed'].n_unique()} seeds, and their range"
    return (ranges + line).properties(width=520, height=320, title=title)
