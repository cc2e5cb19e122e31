"""What `hgpo eval` prints: a table of results or JSON, and the comparison with another evaluation."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from hgpo_envs.wording import counted
from hgpo_train.evaluation import compare
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.evaluation.summary import NAME as SUMMARY

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from hgpo_train.evaluation import Comparison
    from hgpo_train.evaluation.report import EvaluationReport, MeasureSummary
    from hgpo_train.rollout.collection import CollectedRun


def print_results(
    console: Console, run: CollectedRun, against: Path | None, other: pl.DataFrame | None, *, as_json: bool
) -> None:
    """Print the results of an evaluation, and its comparison with another one.

    Args:
        console: The console for hints, which is not standard output.
        run: The evaluation.
        against: The other evaluation's folder, if there is one.
        other: Episodes of the other evaluation (`hgpo_train.evaluation.report.episode_table`).
        as_json: Whether to print JSON instead of tables.
    """
    episodes = episode_table(run.steps)
    reports = evaluation_reports(episodes)
    measures = [name for name in ("success", "score") if name == "success" or _scored(reports)]
    known = [name for name in measures if reports and reports[0].measures[name] is not None]
    comparisons = [] if other is None else [compare(episodes, other, measure) for measure in known]
    if as_json:
        result: dict[str, object] = {"run": str(run.path), "reports": [report.as_dict() for report in reports]}
        if against is not None:
            result |= {"against": str(against), "comparisons": [asdict(comparison) for comparison in comparisons]}
        print(json.dumps(result, indent=1))
        return
    plain = Console()
    if reports:
        plain.print(_table(reports))
        plain.print(f"success of all tasks: {reports[0].success.describe()}", highlight=False, soft_wrap=True)
    for comparison in comparisons:
        plain.print(_sentence(comparison, against), highlight=False)
    hint = f"Steps are in {run.path}, all numbers in {run.path / SUMMARY}. Next: hgpo stats {run.path}"
    console.print(hint, highlight=False, soft_wrap=True, markup=False)


def _table(reports: list[EvaluationReport]) -> Table:
    seeds = ", ".join(map(str, reports[0].seeds))
    scored, grouped = _scored(reports), reports[0].scenarios is not None
    intervals = "success: Wilson, score: bootstrap" if scored else "Wilson"
    title = f"seeds {seeds}; ± std over seeds, 95% interval over tasks ({intervals})"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("task type", no_wrap=True)
    scores, scenarios = ("score", "95%") if scored else (), ("scenarios\n%",) if grouped else ()
    for name in ("tasks", "success\n%", "95%", *scores, *scenarios, "steps", "valid\n%", "admiss.\n%"):
        table.add_column(name, justify="right", no_wrap=True)
    for report in reports:
        values = report.measures
        table.add_row(
            report.name,
            str(report.tasks),
            *_mean_and_interval(values["success"], 100, 1),
            *(_mean_and_interval(values["score"], 1, 3) if scored else ()),
            *(("–" if report.scenario_success is None else f"{100 * report.scenario_success:.1f}",) if grouped else ()),
            _mean(values["length"], 1),
            _mean(values["validity"], 100),
            _mean(values["admissibility"], 100),
            style="bold" if report.name == "all" else "",
        )
    return table


def _scored(reports: list[EvaluationReport]) -> bool:
    """Return whether mean scores differ from success rates, so they are worth showing."""
    means = [[report.measures[name] for name in ("score", "success")] for report in reports]
    return any(score and (not success or score.mean != success.mean) for score, success in means)


def _mean(summary: MeasureSummary | None, scale: float) -> str:
    return "unknown" if summary is None else f"{scale * summary.mean:.1f}"


def _mean_and_interval(summary: MeasureSummary | None, scale: float, places: int) -> tuple[str, str]:
    if summary is None:
        return "unknown", "–"
    spread = "" if summary.std is None else f" ±{scale * summary.std:.{places}f}"
    return (
        f"{scale * summary.mean:.{places}f}{spread}",
        f"{scale * summary.low:.{places}f}–{scale * summary.high:.{places}f}",
    )


def _sentence(comparison: Comparison, against: Path | None) -> str:
    difference, low, high = (
        round(value, 3) + 0.0 for value in (comparison.difference, comparison.low, comparison.high)
    )
    return (
        f"{comparison.measure} against {against}: {difference:+.3f} (95% {low:+.3f} … {high:+.3f}) over "
        f"{counted(comparison.tasks, 'task')}, better on {comparison.better}, worse on {comparison.worse}; paired "
        f"permutation test p = {comparison.p:.4f}"
    )
