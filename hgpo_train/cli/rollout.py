"""`hgpo rollout`: a policy plays groups of rollouts, every step goes into a step table."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from hgpo_envs.errors import InputError
from hgpo_train.rollout.failures import MAX_FAILED, failures_of_run, failures_of_tally, raise_if_too_many

if TYPE_CHECKING:
    from rich.console import Console

    from hgpo_train.rollout.collector import Tally


def rollout(
    out: Annotated[Path, typer.Option(help="The run's folder. A run that is there is continued.")],
    env: Annotated[str, typer.Option(help="Gymnasium id.")] = "HGPO/ALFWorld-v0",
    policy: Annotated[
        str, typer.Option(help="random, expert, explorer, mixture:expert=0.7,random=0.3, … (docs/rollouts.md)")
    ] = "random",
    tasks: Annotated[int, typer.Option(help="How many tasks, each played by one group.")] = 16,
    group_size: Annotated[int, typer.Option(help="Rollouts of each task.")] = 8,
    seed: Annotated[int, typer.Option(help="Seeds the order of tasks and every rollout.")] = 0,
    split: Annotated[str, typer.Option(help="Which tasks; 'all' is everything.")] = "train",
    order: Annotated[str, typer.Option(help="shuffled, sweep, random or verl-agent.")] = "shuffled",
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
    dynamic: Annotated[
        int | None,
        typer.Option(help="Refill groups whose returns are all the same; play at most so many groups."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            help="Environments at once; changes the speed, not the table. 256, with --workers one per processor."
        ),
    ] = None,
    workers: Annotated[
        bool,
        typer.Option(
            "--workers",
            help="Each environment in a process of its own, for slow or fragile ones; --workers N plays N at once.",
        ),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option(help="Play rollouts again that failed in an earlier run of this command.")
    ] = True,
    max_failed: Annotated[
        float, typer.Option(help="Exit with an error when more than this share of the rollouts failed.")
    ] = MAX_FAILED,
    without: Annotated[
        str, typer.Option(help="Columns or families not to store, comma-separated: prompt,timings,tokens")
    ] = "",
) -> None:
    """Collect groups of rollouts into a step table."""
    from rich.console import Console

    from hgpo_datasets import StepWriter
    from hgpo_train.assignments import read_assignments
    from hgpo_train.policies.registry import PolicyContext, make_policy, option_annotations
    from hgpo_train.rollout.env_handle import open_env
    from hgpo_train.rollout.older_runs import comparable
    from hgpo_train.rollout.progress_line import live_progress
    from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, collect, run_config, stop_on_interrupt

    check_max_failed(max_failed)
    spec = RolloutSpec(tasks, group_size, seed, order, max_groups=dynamic)
    execution = ExecutionOptions(default_slots(slots, workers=workers), workers)
    options = {
        "split": split,
        "history_length": history_length,
        "action_format": action_format,
        **({} if data is None else {"data": str(data)}),
        **({} if max_steps is None else {"max_steps": max_steps}),
        **read_assignments("--env-option", env_option or (), {}),
    }
    policy_options = read_assignments("--policy-option", policy_option or (), option_annotations(policy))
    handle = open_env(env, **options)
    acting = make_policy(policy, PolicyContext(handle.shared.source.name, action_format, policy_options))
    left_out = [name.strip() for name in without.split(",") if name.strip()]
    console = Console(stderr=True, highlight=False)
    config = comparable(out, run_config(handle, options, policy, policy_options, spec), handle, partial(note, console))
    try:
        with (
            StepWriter(out, config=config, without=left_out) as writer,
            stop_on_interrupt() as should_stop,
        ):
            before = len(writer.committed)
            if before:
                console.print(f"{out} holds {before} groups already", soft_wrap=True, markup=False)
            with live_progress(console, expected=(tasks - min(before, tasks)) * group_size) as progress:
                tally = collect(
                    handle,
                    acting,
                    writer,
                    spec,
                    execution,
                    retry_failed=retry_failed,
                    progress=progress,
                    should_stop=should_stop,
                )
            groups = len(writer.committed)
    finally:
        acting.close()
    _report(console, out, tally, groups, interrupted=should_stop.requested)
    if should_stop.requested:
        raise typer.Exit(130)
    check_failures(console, out, tally, max_failed)


def note(console: Console, line: str) -> None:
    """Prints a line of plain text."""
    console.print(line, soft_wrap=True, markup=False)


def default_slots(slots: int | None, *, workers: bool) -> int:
    """How many environments are played at once, where the user does not say."""
    if slots is not None:
        return slots
    return max(2, os.cpu_count() or 1) if workers else 256


def check_max_failed(max_failed: float) -> None:
    """Raises unless the option is a share."""
    if not 0 <= max_failed <= 1:
        raise InputError(f"--max-failed: expected a share from 0 to 1, got {max_failed}")


def check_failures(console: Console, out: Path, tally: Tally | None, max_failed: float) -> None:
    """Says what failed, and raises where it is too much: of what the run holds, or of what was played now.

    Raises:
        RolloutError: More than `max_failed` of the rollouts failed.
    """
    stored = failures_of_run(out)
    again = "The same command plays the failed rollouts again."
    for failures in (stored, *([] if tally is None else [failures_of_tally(tally)])):
        raise_if_too_many(failures, max_failed, again)
    if stored.failed:
        console.print(f"{stored}. {again}", soft_wrap=True, markup=False)


def _report(console: Console, out: Path, tally: Tally, groups: int, *, interrupted: bool) -> None:
    from rich.table import Table

    whole = tally.trajectories - tally.aborted
    table = Table(show_header=False, box=None)
    for name, value in (
        ("groups in the run", f"{groups}"),
        ("rollouts now", f"{tally.trajectories}" + (f", {tally.aborted} of them failed" if tally.aborted else "")),
        ("steps", f"{tally.steps:,}  ({tally.steps / max(tally.seconds, 1e-9):,.0f}/s)"),
        ("solved", f"{tally.success:.1%}" if whole else "–"),
        ("mean score", f"{tally.score / whole:.3f}" if whole else "–"),
    ):
        table.add_row(name, value)
    console.print(table)
    if interrupted:
        console.print("Interrupted: whole groups are committed; the same command continues from there.")
    console.print(f"Steps are in {out}. Next: hgpo stats {out}, or hgpo advantages {out}", soft_wrap=True, markup=False)
