"""What `hgpo eval` prints: a table of results or JSON, and the comparison with another evaluation."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from hgpo_envs.wording import counted
from hgpo_train.evaluation import compare
from hgpo_train.evaluation.report import evaluation_reports
from hgpo_train.evaluation.summary import NAME as SUMMARY

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from hgpo_train.evaluation import Comparison
    from hgpo_train.evaluation.report import EvaluationReport, MeasureSummary


def print_results(
    console: Console,
    out: Path,
    against: Path | None,
    own: pl.DataFrame,
    other: pl.DataFrame | None,
    *,
    as_json: bool,
) -> None:
    """Print the results of an evaluation, and its comparison with another one.

    Args:
        console: The console for hints, which is not standard output.
        out: The run's folder.
        against: The other run's folder, if there is one.
        own: Episodes of the run (`hgpo_train.evaluation.report.episode_table`).
        other: Episodes of the other run.
        as_json: Whether to print JSON instead of tables.
    """
    reports = evaluation_reports(own)
    measures = ["success"] if reports[0].measures["success"] else []
    measures += ["score"] if _scored(reports) else []
    comparisons = [] if other is None else [compare(own, other, measure) for measure in measures]
    if as_json:
        result = {"run": str(out), "reports": [one.as_dict() for one in reports]}
        if against is not None:
            result |= {"against": str(against), "comparisons": [asdict(one) for one in comparisons]}
        print(json.dumps(result, indent=1))
        return
    plain = Console()
    plain.print(_table(reports))
    if reports[0].aborted:
        plain.print(f"[yellow]Excluded: {counted(reports[0].aborted, 'failed episode')} (see the column `error`)[/]")
    plain.print(_both_intervals(reports[0].measures["success"]), highlight=False, soft_wrap=True)
    for comparison in comparisons:
        plain.print(_sentence(comparison, against), highlight=False)
    line = f"Steps are in {out}, all numbers in {out / SUMMARY}. Next: hgpo stats {out}"
    console.print(line, highlight=False, soft_wrap=True, markup=False)


def _table(reports: list[EvaluationReport]) -> Table:
    seeds = ", ".join(map(str, reports[0].seeds))
    scored = _scored(reports)
    intervals = "success: Wilson, score: bootstrap" if scored else "Wilson"
    title = f"seeds {seeds}; ± std over seeds, 95% interval over tasks ({intervals})"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("task type", no_wrap=True)
    grouped = reports[0].scenarios is not None
    scenarios = ("scenarios %",) if grouped else ()
    for name in ("tasks", "success %", "95%", *(("score", "95%") if scored else ()), *scenarios, "steps", "valid %"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in reports:
        table.add_row(
            one.name,
            str(one.tasks),
            *_mean_and_interval(_with_wilson(one.measures["success"]), 100, 1),
            *(_mean_and_interval(one.measures["score"], 1, 3) if scored else ()),
            *(("–" if one.scenario_success is None else f"{100 * one.scenario_success:.1f}",) if grouped else ()),
            f"{_mean(one, 'length') or 0:.1f}",
            f"{100 * (_mean(one, 'validity') or 0):.1f}",
            style="bold" if one.name == "all" else "",
        )
    return table


def _scored(reports: list[EvaluationReport]) -> bool:
    """Return whether mean scores differ from success rates, so they are worth showing."""
    return any(_mean(one, "score") not in (None, _mean(one, "success")) for one in reports)


def _mean(report: EvaluationReport, measure: str) -> float | None:
    summary = report.measures[measure]
    return None if summary is None else summary.mean


def _with_wilson(one: MeasureSummary | None) -> MeasureSummary | None:
    """Return a success rate with Wilson's interval in place of the bootstrap's, whose width is 0 at 0% and 100%."""
    if one is None or one.wilson_low is None or one.wilson_high is None:
        return one
    return replace(one, low=one.wilson_low, high=one.wilson_high)


def _both_intervals(one: MeasureSummary | None) -> str:
    if one is None:
        return "success of all tasks: unknown"
    bootstrap, wilson = (f"{100 * part.low:.1f}–{100 * part.high:.1f}" for part in (one, _with_wilson(one) or one))
    return f"success of all tasks: {100 * one.mean:.1f}%, 95% interval {wilson} (Wilson), {bootstrap} (bootstrap)"


def _mean_and_interval(one: MeasureSummary | None, scale: float, places: int) -> tuple[str, str]:
    if one is None:
        return "unknown", "–"
    spread = "" if one.std is None else f" ±{scale * one.std:.{places}f}"
    return (
        f"{scale * one.mean:.{places}f}{spread}",
        f"{scale * one.low:.{places}f}–{scale * one.high:.{places}f}",
    )


def _sentence(one: Comparison, against: Path | None) -> str:
    return (
        f"{one.measure} against {against}: {one.difference:+.3f} (95% {one.low:+.3f} … {one.high:+.3f}) over "
        f"{counted(one.tasks, 'task')}, better on {one.better}, worse on {one.worse}; paired "
        f"permutation test p = {one.p:.4f}"
    )
