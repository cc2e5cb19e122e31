"""`hgpo rollout`: collect groups of rollouts into a step table."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from hgpo_train.rollout.collection import CollectedRun


def rollout(
    *,
    out: options.RunFolder,
    env: options.Env = "HGPO/ALFWorld-v0",
    policy: str = "random",
    tasks: int = 16,
    group_size: int = 8,
    seed: int = 0,
    order: str = "shuffled",
    environment: options.EpisodeOptions = options.EpisodeOptions(),
    dynamic: int | None = None,
    branch: str | None = None,
    width: int = 1,
    execution: options.RolloutOptions = options.RolloutOptions(),
    without: str = "",
) -> None:
    """Collect groups of rollouts into a step table.

    Args:
        out: The run's folder.
        env: The environment.
        policy: random, expert, explorer, mixture:expert=0.7,random=0.3, … (docs/rollouts.md)
        tasks: Number of tasks, each played by one group.
        group_size: Number of rollouts per group.
        seed: Seed of the task order and of every rollout.
        order: Task order: shuffled, sweep, random or verl-agent.
        environment: The options of the environment.
        dynamic: Dynamic sampling: play at most this many groups.
        branch: Play half of a group, and branches of it for the steps of the rest, at steps of this rule
            (hgpo branch --list).
        width: Number of branches at each of these steps.
        execution: The options of the policy and of the execution.
        without: Columns or families to omit, such as prompt,timings,tokens.
    """
    from hgpo_train.rollout.collection import collect

    if group_size == 1:
        print(
            "warning: --group-size 1: group advantages need at least 2 rollouts of a task",
            file=sys.stderr,
        )
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
        branch=branch,
        width=width,
        without=[name.strip() for name in without.split(",") if name.strip()],
        **execution.arguments(policy),
        **environment.arguments(),
    )
    common.play_and_report(play, _report)


def _report(run: CollectedRun) -> None:
    # slow to import: rollouts begin before
    from hgpo_train.cli.display import print_table, shown, terminal
    from hgpo_train.rollout.outcomes import success

    console = terminal(stderr=True, highlight=False)
    summary = run.summary
    tally = run.tally
    every = run.trajectories
    steps = every["length"].sum()
    branches = every.filter("branch")
    rate = tally.steps / max(tally.seconds, 1e-9)
    rows = [
        ("groups", f"{summary['groups']}"),
        ("rollouts", f"{run.rollouts.height:,}, {tally.trajectories:,} of them new"),
        ("steps", f"{steps:,}, {tally.steps:,} of them new ({rate:,.0f}/s)"),
        ("solved", success(run.rollouts).describe()),
        ("mean return", shown(summary["mean_return"], ".3f")),
        ("well-formed actions", shown(summary["valid"], ".1%")),
        ("admissible actions", shown(summary["admissible"], ".1%", "unknown")),
    ]
    estimator = []
    if branches.height:
        taken = f"{branches.height:,}, with {branches['length'].sum():,} of the steps"
        rows[1:2] = [
            ("rollouts", f"{run.rollouts.height:,}"),
            ("branches", taken),
            ("new", f"{tally.trajectories:,} rollouts and branches"),
        ]
        estimator = ["-e", "tree_loo"]
    print_table(["", ""], rows, texts=2, console=console)
    following = common.next_commands(
        ("stats", run.path), ("advantages", run.path, *estimator)
    )
    hint = f"Steps are in {run.path}. {following}"
    console.print(hint, soft_wrap=True, markup=False)
