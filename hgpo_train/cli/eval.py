"""`hgpo eval`: every task of a split once a seed; a table that can be published, and the step table behind it."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from hgpo_envs.errors import InputError
from hgpo_train.cli.rollout import check_failures, check_max_failed, default_slots, note
from hgpo_train.rollout.failures import MAX_FAILED, failures_of_run, raise_if_too_many

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from rich.table import Table

    from hgpo_train.evaluation import Comparison
    from hgpo_train.evaluation.report import EvaluationReport, MeasureSummary

_SAMPLING = ("openai", "transformers", "vllm")


def evaluate(
    out: Annotated[Path, typer.Option(help="The run's folder. An evaluation that is there is continued.")],
    policy: Annotated[
        str, typer.Option(help="random, expert, openai:MODEL, vllm:MODEL, transformers:MODEL, … (docs/rollouts.md)")
    ] = "random",
    env: Annotated[str, typer.Option(help="Gymnasium id.")] = "HGPO/ALFWorld-v0",
    split: Annotated[str, typer.Option(help="ALFWorld: valid_seen, valid_unseen. WebShop: eval, test.")] = "",
    seeds: Annotated[str, typer.Option(help="Each plays every task once.")] = "123,456,789",
    temperature: Annotated[
        float | None, typer.Option(help="Of a model's sampling; 0.4 as published, 0 is greedy.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Official folder, pack, catalogue; else the bundled set.")] = None,
    history_length: Annotated[int, typer.Option(help="Past steps that the prompt shows (K).")] = 2,
    max_steps: Annotated[int | None, typer.Option(help="Step limit; the environment's own without.")] = None,
    action_format: Annotated[str, typer.Option(help="response (with tags), command or number.")] = "response",
    env_option: Annotated[
        list[str] | None, typer.Option(help="Another argument of the environment, name=value; may be repeated.")
    ] = None,
    policy_option: Annotated[
        list[str] | None, typer.Option(help="An option of the policy, name=value; may be repeated.")
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Another evaluation's run: compare task by task.")] = None,
    slots: Annotated[
        int | None,
        typer.Option(help="Environments at once; changes the speed alone. 256, with --workers one per processor."),
    ] = None,
    workers: Annotated[
        bool,
        typer.Option(
            "--workers",
            help="Each environment in a process of its own, for slow or fragile ones; --workers N plays N at once.",
        ),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option(help="Play episodes again that failed in an earlier run of this command.")
    ] = True,
    max_failed: Annotated[
        float, typer.Option(help="Exit with an error when more than this share of the episodes failed.")
    ] = MAX_FAILED,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Evaluate a policy on every task of a split."""
    from rich.console import Console

    from hgpo_datasets import StepWriter
    from hgpo_train.assignments import read_assignments
    from hgpo_train.evaluation import evaluate as play
    from hgpo_train.evaluation.play import TEMPERATURE
    from hgpo_train.policies.registry import PolicyContext, make_policy, option_annotations
    from hgpo_train.rollout.env_handle import open_env
    from hgpo_train.rollout.older_runs import comparable
    from hgpo_train.rollout.progress_line import live_progress
    from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, run_config, stop_on_interrupt

    check_max_failed(max_failed)
    split = split or ("eval" if "WebShop" in env else "valid_seen")
    other = None if against is None else _episodes(against)
    options = {
        "split": split,
        "history_length": history_length,
        "action_format": action_format,
        **({} if data is None else {"data": str(data)}),
        **({} if max_steps is None else {"max_steps": max_steps}),
        **read_assignments("--env-option", env_option or (), {}),
    }
    policy_options = read_assignments("--policy-option", policy_option or (), option_annotations(policy))
    if policy.partition(":")[0] in _SAMPLING:
        policy_options = {"temperature": TEMPERATURE if temperature is None else temperature, **policy_options}
    elif temperature is not None:
        raise InputError(f"--temperature: policy {policy!r} does not sample from a model")
    chosen = _seeds(seeds)
    handle = open_env(env, **options)
    acting = make_policy(policy, PolicyContext(handle.shared.source.name, action_format, policy_options))
    console = Console(stderr=True)
    spec = RolloutSpec(tasks=len(handle.tasks), order="sweep")
    config = {**run_config(handle, options, policy, policy_options, spec), "evaluation": True}
    del config["seed"]
    config = comparable(out, config, handle, partial(note, console))
    try:
        with StepWriter(out, config=config) as writer, stop_on_interrupt() as should_stop:
            left = len(handle.tasks) * len(chosen) - len(writer.committed)
            execution = ExecutionOptions(default_slots(slots, workers=workers), workers)
            with live_progress(console, expected=max(left, 0)) as progress:
                play(
                    handle,
                    acting,
                    writer,
                    chosen,
                    execution,
                    retry_failed=retry_failed,
                    progress=progress,
                    should_stop=should_stop,
                )
    finally:
        acting.close()
    if should_stop.requested:
        line = f"Interrupted: whole episodes are in {out}; the same command continues from there."
        console.print(line, markup=False)
        raise typer.Exit(130)
    raise_if_too_many(failures_of_run(out), 1.0, "The same command plays them again.")
    _print_results(console, out, against, _episodes(out), other, as_json=as_json)
    check_failures(console, out, None, max_failed)


def _episodes(run: Path) -> pl.DataFrame:
    from hgpo_datasets import scan_steps
    from hgpo_train.evaluation.report import episode_table

    return episode_table(scan_steps(run))


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds: expected integers separated by commas, got {text!r}") from error


def _print_results(
    console: Console,
    out: Path,
    against: Path | None,
    own: pl.DataFrame,
    other: pl.DataFrame | None,
    *,
    as_json: bool,
) -> None:
    import json
    from dataclasses import asdict

    from rich.console import Console

    from hgpo_train.evaluation import compare
    from hgpo_train.evaluation.report import evaluation_reports

    reports = evaluation_reports(own)
    measures = ["success", *(["score"] if _scored(reports) else [])]
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
        plain.print(f"[yellow]{reports[0].aborted} episodes failed and are left out (column `error`)[/]")
    for comparison in comparisons:
        plain.print(_sentence(comparison, against), highlight=False)
    console.print(f"Steps are in {out}. Next: hgpo stats {out}", highlight=False, soft_wrap=True, markup=False)


def _table(reports: list[EvaluationReport]) -> Table:
    from rich.table import Table

    seeds = ", ".join(map(str, reports[0].seeds))
    scored = _scored(reports)
    title = f"seeds {seeds}; ± between seeds, 95% interval over tasks"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("task type", no_wrap=True)
    for name in ("tasks", "success %", "95%", *(("score", "95%") if scored else ()), "steps", "valid %"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in reports:
        table.add_row(
            one.name,
            str(one.tasks),
            *_mean_and_interval(one.measures["success"], 100, 1),
            *(_mean_and_interval(one.measures["score"], 1, 3) if scored else ()),
            f"{one.measures['length'].mean:.1f}",
            f"{100 * one.measures['validity'].mean:.1f}",
            style="bold" if one.name == "all" else "",
        )
    return table


def _scored(reports: list[EvaluationReport]) -> bool:
    """Whether scores say more than success does."""
    return any(one.measures["score"].mean != one.measures["success"].mean for one in reports)


def _mean_and_interval(one: MeasureSummary, scale: float, places: int) -> tuple[str, str]:
    spread = "" if one.std is None else f" ±{scale * one.std:.{places}f}"
    return (
        f"{scale * one.mean:.{places}f}{spread}",
        f"{scale * one.low:.{places}f}–{scale * one.high:.{places}f}",
    )


def _sentence(one: Comparison, against: Path | None) -> str:
    return (
        f"{one.measure} against {against}: {one.difference:+.3f} (95% {one.low:+.3f} … {one.high:+.3f}) over "
        f"{one.tasks} tasks, better on {one.better}, worse on {one.worse}; paired permutation test p = {one.p:.4f}"
    )
