"""`hgpo stats`: what group advantages of a run would rest on, level by level, with a reading in words."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from hgpo_train.statistics import Statistics

HEADS = {
    "level": "level",
    "eligible": "eligible",
    "shared": "shared",
    "cross": "cross",
    "mean_size": "mean size",
    "step_size": "step size",
    "inconsistency": "inconsistent",
    "variance": "variance",
    "flat": "flat",
    "weight": "weight",
    "bias": "bias",
    "sign_disagreement": "sign",
    "compared": "compared",
}
SHARES = {
    "eligible",
    "shared",
    "cross",
    "inconsistency",
    "flat",
    "sign_disagreement",
    "success",
    "flat_groups",
    "invalid",
}


def stats(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a Parquet file of steps.")],
    history_length: Annotated[int, typer.Option(help="K, the deepest level.")] = 4,
    context: Annotated[str, typer.Option(help="states, or states_actions: what the prompt shows.")] = "states",
    mode: Annotated[str, typer.Option(help="mean_std_norm or mean_norm.")] = "mean_std_norm",
    reward_scale: Annotated[
        float, typer.Option(help="What rewards are multiplied with; 10 as verl-agent trains.")
    ] = 10.0,
    by: Annotated[
        list[str] | None, typer.Option(help="Tell rows apart by task_type, iteration …; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder to write levels.csv, sizes.csv and summary.csv to.")
    ] = None,
) -> None:
    """Say how many steps find company at each depth of history, and what that is worth."""
    import polars as pl
    from rich.console import Console
    from rich.progress import Progress

    from hgpo_datasets import scan_steps
    from hgpo_train.findings import sentences
    from hgpo_train.statistics import statistics

    console = Console()
    steps = scan_steps(run)
    total = int(steps.select(pl.len()).collect().item())
    kinds = by or []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("reading steps", total=total)
        found = statistics(
            steps,
            by=kinds,
            progress=lambda done: progress.advance(bar, done),
            history_length=history_length,
            context=context,
            mode=mode,
            reward_scale=reward_scale,
        )
    if kinds:
        _print(console, found.summary, "Rollouts", [*kinds, *_rest(found.summary, kinds)])
    _print(console, found.levels, "Levels of context", [*kinds, *HEADS])
    if not kinds:
        for sentence in sentences(found):
            console.print(f"• {sentence}", highlight=False)
    if out is not None:
        _write(found, out)
    files = f"[bold]{out}[/] holds the tables. " if out is not None else ""
    more = "" if kinds else f"[bold]hgpo stats {run} --by task_type[/], "
    console.print(f"{files}Next: {more}[bold]hgpo advantages {run}[/]", highlight=False, soft_wrap=True)


def _rest(table: pl.DataFrame, kinds: list[str]) -> list[str]:
    return [name for name in table.columns if name not in kinds]


def _print(console: Console, frame: pl.DataFrame, title: str, columns: list[str]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in columns:
        kind = frame.schema[name]
        table.add_column(HEADS.get(name, name.replace("_", " ")), justify="right" if kind.is_numeric() else "left")
    for row in frame.select(columns).iter_rows(named=True):
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    console.print(table)


def _cell(name: str, value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.1%}" if name in SHARES else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) and name != "iteration" else str(value)


def _write(found: Statistics, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, frame in found._asdict().items():
        frame.write_csv(out / f"{name}.csv")
