"""`hgpo rollout`: collect groups of rollouts into a step table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from hgpo_train.cli import common  # typer reads the annotations
from hgpo_train.rollout.failures import MAX_FAILED

if TYPE_CHECKING:
    from hgpo_train.rollout.collection import CollectedRun


def rollout(
    out: common.RunFolder,
    env: common.Env = "HGPO/ALFWorld-v0",
    policy: Annotated[
        str, typer.Option(help="random, expert, explorer, mixture:expert=0.7,random=0.3, … (docs/rollouts.md)")
    ] = "random",
    tasks: Annotated[int, typer.Option(help="Number of tasks, each played by one group.")] = 16,
    group_size: Annotated[int, typer.Option(help="Number of rollouts per group.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the task order and of every rollout.")] = 0,
    split: common.Split = "train",
    order: Annotated[str, typer.Option(help="Task order: shuffled, sweep, random or verl-agent.")] = "shuffled",
    data: common.Data = None,
    history_length: common.HistoryLength = 2,
    max_steps: common.MaxSteps = None,
    action_format: common.ActionFormat = None,
    env_option: common.EnvOption = None,
    policy_option: common.PolicyOption = None,
    dynamic: Annotated[int | None, typer.Option(help="Dynamic sampling: play at most this many groups.")] = None,
    slots: common.Slots = None,
    workers: common.Workers = None,
    retry_failed: common.RetryFailed = True,
    max_failed: common.MaxFailed = MAX_FAILED,
    without: Annotated[str, typer.Option(help="Columns or families to omit, such as prompt,timings,tokens.")] = "",
) -> None:
    """Collect groups of rollouts into a step table."""
    from hgpo_train.policies.registry import policy_spec
    from hgpo_train.rollout.collection import collect
    from hgpo_train.settings import read_assignments

    if group_size == 1:
        typer.echo("warning: --group-size 1: group advantages need at least 2 rollouts of a task", err=True)
    play = partial(
        collect,
        env,
        policy,
        out,
        tasks=tasks,
        group_size=group_size,
        seed=seed,
        order=order,
        dynamic=dynamic,
        policy_options=read_assignments("--policy-option", policy_option or (), policy_spec(policy).option_types),
        slots=slots if workers is None else workers,
        workers=workers is not None,
        retry_failed=retry_failed,
        max_failed=max_failed,
        without=[name.strip() for name in without.split(",") if name.strip()],
        **common.environment_options(
            env_option,
            split=split,
            data=data,
            history_length=history_length,
            max_steps=max_steps,
            action_format=action_format,
        ),
    )
    common.play_and_report(play, _report)


def _report(run: CollectedRun) -> None:
    from hgpo_train.cli.display import print_table, terminal  # slow to import: rollouts begin before

    console = terminal(stderr=True, highlight=False)
    summary, tally = run.summary, run.tally
    rate = tally.steps / max(tally.seconds, 1e-9)
    rows = [
        ("groups", f"{summary['groups']}"),
        ("rollouts", f"{summary['rollouts']:,}, {tally.trajectories:,} of them new"),
        ("steps", f"{summary['steps']:,}, {tally.steps:,} of them new ({rate:,.0f}/s)"),
        ("solved", run.success.describe()),
        ("mean return", "–" if summary["mean_return"] is None else f"{summary['mean_return']:.3f}"),
        ("well-formed actions", "–" if summary["valid"] is None else f"{summary['valid']:.1%}"),
        ("admissible actions", "unknown" if summary["admissible"] is None else f"{summary['admissible']:.1%}"),
    ]
    print_table(["", ""], rows, texts=2, console=console)
    following = common.next_commands(("stats", run.path), ("advantages", run.path))
    hint = f"Steps are in {run.path}. {following}"
    console.print(hint, soft_wrap=True, markup=False)
