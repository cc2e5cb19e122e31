"""`hgpo quickstart`: the whole way once through on bundled data, in seconds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hgpo_train.cli.quickstart_run import QuickstartResult


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for what is made.")] = Path("runs/quickstart"),
    seed: Annotated[int, typer.Option(help="Seeds the order of games and every choice.")] = 0,
    tasks: Annotated[int, typer.Option(help="Games, each played by one group of rollouts.")] = 24,
    group_size: Annotated[int, typer.Option(help="Rollouts of each game.")] = 8,
    train: Annotated[
        bool, typer.Option("--train", help="Then train a small model for one iteration (extra train; minutes).")
    ] = False,
) -> None:
    """Roll out bundled games, compute HGPO advantages for several K, and show what histories change."""
    from rich.console import Console

    from hgpo_train.cli import quickstart_run as work
    from hgpo_train.rollout.progress_line import live_progress

    console = Console()
    with live_progress(Console(stderr=True), expected=tasks * group_size) as progress:
        found = work.quickstart(out, seed=seed, tasks=tasks, group_size=group_size, progress=progress)
    show(console, found, out)
    if train:
        _train(console, out / "training", seed)


def _train(console: Console, folder: Path, seed: int) -> None:
    from hgpo_train.training.first_training import first_training

    console.print("\nOne iteration of training, from nothing: a small model, a warm start, rollouts, HGPO, an update.")
    run = first_training(folder, console, seed=seed)
    console.print(f"\nThe run is in [bold]{run}[/]. Next:", highlight=False)
    console.print(
        "  [bold]hgpo train --list[/]\n      the configurations of the papers' runs, each value with its source"
    )


def show(console: Console, found: QuickstartResult, out: Path) -> None:
    """Prints what was found, where it is (under the name `out`), and what to try next."""
    import polars as pl

    from hgpo_datasets import scan_steps

    steps = scan_steps(found.run)
    (rows, rollouts, solved) = (
        steps.group_by("trajectory")
        .agg(pl.len().alias("rows"), pl.col("won").any())
        .select(pl.col("rows").sum(), pl.len(), pl.col("won").mean())
        .collect()
        .row(0)
    )
    print_line = partial(console.print, highlight=False)
    if found.tally.trajectories:
        speed = found.tally.steps / max(found.tally.seconds, 1e-9)
        print_line(f"{rollouts} rollouts of bundled ALFWorld games, {rows:,} steps at {speed:,.0f} a second.")
    else:
        print_line(f"{rollouts} rollouts of bundled ALFWorld games were there already, {rows:,} steps.")
    print_line(f"{solved:.0%} were solved: the policy mixes an expert with random choices.\n")
    console.print(_table(found))
    deepest, first = found.depths.row(-1, named=True), found.depths.row(0, named=True)
    print_line(
        f"\nOf all pairs of steps at the same state, {deepest['inconsistent']:.0%} came there by different last "
        f"{deepest['K']} states: grouping by state alone compares what is not alike. Taking histories in moves the "
        f"advantages of {deepest['moved']:.0%} of the steps, by {deepest['shift']:.2f} on average (their standard "
        f"deviation is {first['spread']:.2f}), and turns the sign of {deepest['flipped']:.0%}.\n"
    )
    run = out / found.run.name
    print_line(f"Steps       [bold]{run}[/]")
    print_line(f"Advantages  [bold]{out / found.advantages.relative_to(found.run.parent)}[/]\n")
    print_line("Next:")
    for command, what in (
        (f"hgpo stats {run}", "what advantages rest on, level by level, in words"),
        (f"hgpo advantages {run} -e hgpo -e gigpo -e grpo", "rival estimators side by side"),
        (f"hgpo data show {run}", "the run at a glance"),
        ("hgpo eval --policy expert --out runs/expert", "every held-out game once a seed"),
    ):
        print_line(f"  [bold]{command}[/]\n      {what}")


def _table(found: QuickstartResult) -> Table:
    from rich.table import Table

    table = Table(title="Steps at the same state: did they come there the same way?", title_justify="left")
    for name in ("K", "different last K states", "advantages that move", "mean shift", "signs that turn"):
        table.add_column(name, justify="right")
    for row in found.depths.iter_rows(named=True):
        moved = (f"{row['moved']:.1%}", f"{row['shift']:.3f}", f"{row['flipped']:.1%}") if row["K"] else ("–", "–", "–")
        table.add_row(str(row["K"]), f"{row['inconsistent']:.1%}" if row["K"] else "–", *moved)
    return table
