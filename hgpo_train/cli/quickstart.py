"""`hgpo quickstart`: rollouts, a step table and advantages on bundled data, in seconds."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hgpo_train.cli import common

if TYPE_CHECKING:
    from rich.console import Console

    from hgpo_train.cli.quickstart_run import QuickstartResult


def quickstart(
    *,
    out: Path = Path("runs/quickstart"),
    seed: int = 0,
    tasks: int = 24,
    group_size: int = 16,
    train: bool = False,
) -> None:
    """Roll out bundled games, compute HGPO advantages for several K, and show how histories change them.

    Args:
        out: The folder for the results.
        seed: Seed of the order of games and of every rollout.
        tasks: Number of games, each played by one group of rollouts.
        group_size: Number of rollouts per group.
        train: Also train a small model, in minutes (extra train).
    """
    from hgpo_train.cli import quickstart_run as work
    from hgpo_train.cli.display import terminal

    console = terminal()
    if train:
        console.print("Loading torch, which trains a small model after the rollouts.")
        # fails now if the extra is not installed
        from hgpo_train.training.first_training import first_training
    show(
        console,
        work.quickstart(
            out, seed=seed, tasks=tasks, group_size=group_size, progress=True
        ),
        out,
    )
    if train:
        console.print(
            "\nTraining of a small model, about four minutes. Ctrl-C and the same command resume."
        )
        with common.resumable("Run the same command again to resume the training."):
            trained = first_training(out / "training", console, seed=seed)
        console.print(f"\n{trained.curve()}\n", highlight=False, soft_wrap=True)
        console.print(trained.verdict(), highlight=False)
        print_paths(
            console, {"Picture": trained.run.parent / "curve.svg", "Run": trained.run}
        )
        run, page = (
            shlex.quote(str(path))
            for path in (trained.run, trained.run.parent / "page.html")
        )
        show_commands(
            console,
            {
                f"view {run} -o {page}": "write the curves, tasks, groups and steps of the run as a page",
                "train --list": "list the configurations of the papers' runs",
            },
        )


def show(console: Console, result: QuickstartResult, out: Path) -> None:
    """Print the results, their paths in the folder `out`, and the next commands."""
    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import print_table

    print_line = partial(console.print, highlight=False)
    speed = f"{result.tally.steps / max(result.tally.seconds, 1e-9):,.0f} steps/s"
    print_line(
        f"{counted(result.summary['trajectories'], 'rollout')} of bundled ALFWorld games, "
        f"{counted(result.summary['steps'], 'step')} ({speed if result.tally.trajectories else 'already collected'}); "
        f"{result.summary['success']:.0%} won.\n"
        "The policy acts on what it sees, makes mistakes, and loses track of the task in many rollouts."
    )
    columns = [
        "K",
        "steps with a group",
        "last K states differ",
        "mean change",
        "signs changed",
    ]
    rows = []
    for row in result.depths.iter_rows(named=True):
        changes = (
            f"{row['inconsistent']:.1%}",
            f"{row['shift']:.3f}",
            f"{row['flipped']:.1%}",
        )
        rows.append(
            [
                str(row["K"]),
                f"{row['shared']:.1%}",
                *(changes if row["K"] else ("–", "–", "–")),
            ]
        )
    print_table(
        columns,
        rows,
        title="What changes with K, the number of past states compared?",
        console=console,
    )
    deepest = result.depths.row(-1, named=True)
    print_line(
        f"\nWith K = {deepest['K']}, HGPO changes the advantages of {deepest['moved']:.0%} of the steps, because steps "
        "at the same state arrived differently.\n"
    )
    run = out / result.run.name
    advantages = out / result.advantages.relative_to(result.run.parent)
    print_paths(console, {"Steps": run, "Advantages": advantages})
    quoted = shlex.quote(str(run))
    show_commands(
        console,
        {
            f"view {quoted} -o {shlex.quote(str(out / 'page.html'))}": "write tasks, groups and steps as a page",
            f"stats {quoted}": "show group sizes and context inconsistency per level, with an interpretation",
            f"advantages {quoted} -e hgpo -e gigpo -e grpo": "compute the advantages of several estimators",
            f"data show {quoted}": "show a summary of the run",
            f"eval --policy expert --out {shlex.quote(str(out / 'expert'))}": "play every held-out game once per seed",
        },
    )


def print_paths(console: Console, paths: dict[str, Path]) -> None:
    """Print what was written where."""
    for title, path in paths.items():
        console.print(
            f"{title:<11} {path}", highlight=False, markup=False, soft_wrap=True
        )


def show_commands(console: Console, commands: dict[str, str]) -> None:
    """Print commands, given without the program, each as a line that works as it is copied, and what each does."""
    from rich.padding import Padding

    console.print("\nNext:")
    for command, purpose in commands.items():
        console.print(
            f"  {common.program()} {command}",
            style="bold",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        console.print(Padding(purpose, (0, 0, 0, 6), expand=False))
