"""`hgpo quickstart`: rollouts, a step table and advantages on bundled data, in seconds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from hgpo_train.cli.quickstart_run import QuickstartResult


def quickstart(
    out: Annotated[Path, typer.Option(help="The folder for the results.")] = Path("runs/quickstart"),
    seed: Annotated[int, typer.Option(help="Seed of the order of games and of every rollout.")] = 0,
    tasks: Annotated[int, typer.Option(help="Number of games, each played by one group of rollouts.")] = 24,
    group_size: Annotated[int, typer.Option(help="Number of rollouts per group.")] = 16,
    train: Annotated[bool, typer.Option("--train", help="Also train a small model: ten minutes, extra train.")] = False,
) -> None:
    """Roll out bundled games, compute HGPO advantages for several K, and show how histories change them."""
    from rich.console import Console

    from hgpo_train.cli import quickstart_run as work

    if train:
        from hgpo_train.training.first_training import first_training  # fails now if the extra is not installed
    console = Console()
    show(console, work.quickstart(out, seed=seed, tasks=tasks, group_size=group_size, progress=True), out)
    if train:
        console.print("\nTraining of a small model, about ten minutes. Ctrl-C and the same command resume.")
        trained = first_training(out / "training", console, seed=seed)
        console.print(f"\n{trained.verdict()}\n\nThe run is in [bold]{trained.run}[/]. Next:", highlight=False)
        console.print("  [bold]hgpo train --list[/]\n      list the configurations of the papers' runs")


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
    columns = ["K", "steps with a group", "last K states differ", "mean change", "signs changed"]
    rows = []
    for row in result.depths.iter_rows(named=True):
        changes = (f"{row['inconsistent']:.1%}", f"{row['shift']:.3f}", f"{row['flipped']:.1%}")
        rows.append([str(row["K"]), f"{row['shared']:.1%}", *(changes if row["K"] else ("–", "–", "–"))])
    print_table(columns, rows, title="What changes with K, the number of past states compared?", console=console)
    deepest = result.depths.row(-1, named=True)
    print_line(
        f"\nWith K = {deepest['K']}, HGPO changes the advantages of {deepest['moved']:.0%} of the steps, because steps "
        "at the same state arrived differently.\n"
    )
    run = out / result.run.name
    print_line(f"Steps       [bold]{run}[/]")
    print_line(f"Advantages  [bold]{out / result.advantages.relative_to(result.run.parent)}[/]\n\nNext:")
    for command, purpose in (
        (f"hgpo view {run}", "look at tasks, groups and steps in the browser (needs the extra view)"),
        (f"hgpo stats {run}", "show group sizes and context inconsistency per level, with an interpretation"),
        (f"hgpo advantages {run} -e hgpo -e gigpo -e grpo", "compute the advantages of several estimators"),
        (f"hgpo data show {run}", "show a summary of the run"),
        ("hgpo eval --policy expert --out runs/expert", "play every held-out game once per seed"),
    ):
        print_line(f"  [bold]{command}[/]\n      {purpose}")
