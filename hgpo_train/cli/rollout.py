"""`hgpo rollout`: collect groups of rollouts into a step table."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from hgpo_train.cli import collection  # typer reads the annotations
from hgpo_train.rollout.failures import MAX_FAILED

if TYPE_CHECKING:
    from rich.console import Console

    from hgpo_train.rollout.collector import Tally


def rollout(
    out: Annotated[Path, typer.Option(help="The run's folder. A run in it is resumed.")],
    env: Annotated[
        str, typer.Option(help="Gymnasium id of the environment, or module:EnvironmentSpec.")
    ] = "HGPO/ALFWorld-v0",
    policy: Annotated[
        str, typer.Option(help="random, expert, explorer, mixture:expert=0.7,random=0.3, … (docs/rollouts.md)")
    ] = "random",
    tasks: Annotated[int, typer.Option(help="Number of tasks, each played by one group.")] = 16,
    group_size: Annotated[int, typer.Option(help="Number of rollouts per group.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the task order and of every rollout.")] = 0,
    split: Annotated[str, typer.Option(help="Split of the tasks; 'all' includes every split.")] = "train",
    order: Annotated[str, typer.Option(help="Task order: shuffled, sweep, random or verl-agent.")] = "shuffled",
    data: collection.Data = None,
    history_length: collection.HistoryLength = 2,
    max_steps: collection.MaxSteps = None,
    action_format: collection.ActionFormat = None,
    env_option: collection.EnvOption = None,
    policy_option: collection.PolicyOption = None,
    dynamic: Annotated[
        int | None,
        typer.Option(
            help="Dynamic sampling: count only groups whose returns are not all equal, and play at most this many."
        ),
    ] = None,
    slots: collection.Slots = None,
    workers: collection.Workers = False,
    retry_failed: Annotated[
        bool, typer.Option(help="Retry rollouts that failed in an earlier run of this command.")
    ] = True,
    max_failed: Annotated[
        float, typer.Option(help="Exit with code 1 if more than this share of the rollouts failed.")
    ] = MAX_FAILED,
    without: Annotated[
        str, typer.Option(help="Comma-separated columns or column families to omit, such as prompt,timings,tokens.")
    ] = "",
) -> None:
    """Collect groups of rollouts into a step table."""
    from rich.console import Console

    from hgpo_envs.wording import counted
    from hgpo_train.assignments import read_assignments
    from hgpo_train.cli.output_paths import check_folder
    from hgpo_train.evaluation.summary import summarize, write_summary
    from hgpo_train.policies.registry import PolicyContext, default_action_format, make_policy, option_annotations
    from hgpo_train.rollout.env_handle import open_env
    from hgpo_train.rollout.failures import allowed_in_a_row
    from hgpo_train.rollout.open_run import open_run
    from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, run_config

    collection.check_max_failed(max_failed)
    spec = RolloutSpec(tasks, group_size, seed, order, max_groups=dynamic)
    in_a_row = allowed_in_a_row((dynamic or tasks) * group_size, max_failed)
    slots = collection.default_slots(slots, workers=workers)
    execution = ExecutionOptions(slots, workers, max_consecutive_failures=in_a_row)
    action_format = action_format or default_action_format(policy)
    env_options = collection.environment_options(split, data, history_length, max_steps, action_format, env_option)
    policy_options = read_assignments("--policy-option", policy_option or (), option_annotations(policy))
    handle = open_env(env, **env_options)
    check_folder("--out", out)
    acting = make_policy(policy, PolicyContext(handle.shared.source.name, action_format, policy_options))
    left_out = [name.strip() for name in without.split(",") if name.strip()]
    console = Console(stderr=True, highlight=False)
    config = run_config(handle, env_options, policy, policy_options, spec)
    with (
        closing(acting),
        open_run(
            out,
            config,
            acting,
            handle,
            console,
            execution,
            expected=lambda groups: (tasks - groups) * group_size,
            policy_options=policy_options,
            warn=partial(collection.note, console),
            at_end=lambda: write_summary(out, summarize(out, tasks * group_size if dynamic is None else None)),
            without=left_out,
        ) as run,
    ):
        if before := len(run.writer.committed):
            collection.note(console, f"{out} already contains {counted(before, 'group')}")
        run.collect(spec, retry_failed=retry_failed)
        groups = len(run.writer.committed)
    _report(console, out, run.tally, groups, interrupted=run.should_stop.requested)
    if run.should_stop.requested:
        raise typer.Exit(130)
    collection.check_failures(console, out, run.tally, max_failed)


def _report(console: Console, out: Path, tally: Tally, groups: int, *, interrupted: bool) -> None:
    from rich.table import Table

    whole = tally.trajectories - tally.aborted
    table = Table(show_header=False, box=None)
    for name, value in (
        ("groups in the run", f"{groups}"),
        ("new rollouts", f"{tally.trajectories}" + (f", {tally.aborted} of them failed" if tally.aborted else "")),
        ("steps", f"{tally.steps:,}  ({tally.steps / max(tally.seconds, 1e-9):,.0f}/s)"),
        ("solved", (f"{tally.success:.1%}" if whole > tally.unknown else "unknown") if whole else "–"),
        ("mean score", f"{tally.score / whole:.3f}" if whole else "–"),
    ):
        table.add_row(name, value)
    console.print(table)
    if interrupted:
        console.print("Interrupted. Finished groups are committed; run the same command again to resume.")
    console.print(f"Steps are in {out}. Next: hgpo stats {out}, or hgpo advantages {out}", soft_wrap=True, markup=False)
