"""`hgpo stats`: group sizes, context inconsistency and bias of a run per level of context, with an interpretation."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hgpo_train.cli.output_paths import check_folder

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

ROWS = {
    "eligible": ("steps with k previous states", "%"),
    "shared": ("steps that share a context", "%"),
    "cross": ("… with another rollout", "%"),
    "mean_size": ("mean group size", ""),
    "step_size": ("mean group size per step", ""),
    "differing": ("same state, different history", "%"),
    "inconsistency": ("same state, another group", "%"),
    "variance": ("variance of returns in a group", ""),
    "flat": ("groups of equal returns", "%"),
    "explained": ("variance at a state explained", "%"),
    "weight": ("weight in HGPO's sum", ""),
    "bias": ("mean |A_k − A_K|", ""),
    "sign_disagreement": ("signs of A_k and A_K differ", "%"),
    "in_pairs": ("… in a group of two", "%"),
    "compared": ("steps that have both", ""),
}
"""Row label and unit in the table of levels, by statistic; hgpo_train/analysis/statistics.py defines the statistics."""

SUMMARY = {
    "trajectories": ("rollouts", ""),
    "steps": ("steps", ""),
    "mean_length": ("length", ""),
    "success": ("success", "%"),
    "flat_groups": ("equal returns", "%"),
    "invalid": ("invalid", "%"),
}
"""Column label and unit in the summary that is printed, by statistic; the files of --out contain all statistics."""

_UNITS = {name: unit for name, (_, unit) in (ROWS | SUMMARY).items()}


def stats(
    run: Annotated[
        str,
        typer.Argument(
            help="A run, a folder that contains runs, a Parquet file (also your own), a quoted pattern of these, or a "
            "URL."
        ),
    ],
    history_length: Annotated[
        int | None, typer.Option(help="K, the number of past steps in the deepest context. Default: 4.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Content of a context: states, or states_actions.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="Normalization in a group: mean_std_norm (by mean and std) or mean_norm.")
    ] = None,
    reward_scale: Annotated[
        float | None, typer.Option(help="Factor of rewards. Default: 10, as in verl-agent.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Report statistics per value of a column such as task_type or iteration; may be repeated."),
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(
            help="Number of permutations of the returns that show what chance alone gives. Default: 20, for more than "
            "50,000 steps fewer.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of intervals and permutations.")] = 0,
    processes: Annotated[
        int, typer.Option(help="Number of processes, which share the run's shards. The numbers do not depend on it.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for levels.csv, sizes.csv, summary.csv and uncertainty.csv. With it, an interrupted command "
            "continues."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="A picture of the levels: .html, .svg, .png or .json. Requires the extra notebooks."),
    ] = None,
) -> None:
    """Report how often steps share a context at each depth of history, and how this affects advantages."""
    import polars as pl
    from rich.console import Console
    from rich.progress import Progress

    from hgpo_datasets import scan_steps
    from hgpo_train.analysis.describe import describe
    from hgpo_train.analysis.part_sums import sums_folder
    from hgpo_train.analysis.statistics import statistics
    from hgpo_train.analysis.uncertainty import default_permutations, uncertainty

    if out is not None:
        check_folder("--out", out)
    if plot is not None:
        from hgpo_envs.errors import InputError
        from hgpo_train.analysis.charts import check_chart_file

        check_chart_file("--plot", plot)
        if by and len(by) > 1:
            raise InputError(f"--plot: expected at most one --by, received {len(by)}")
    console = Console()
    steps = scan_steps(run, plain=True)
    total = int(steps.select(pl.len()).collect().item())
    kinds = by or []
    named: dict[str, Any] = {
        "history_length": history_length,
        "context": context,
        "mode": mode,
        "reward_scale": reward_scale,
    }
    parameters = {name: value for name, value in named.items() if value is not None}
    errors = Console(stderr=True)
    try:
        with (
            Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress,
            nullcontext() if out is None else sums_folder(out) as kept,
        ):
            first = progress.add_task("intervals and chance", total=total)  # first: it checks permutations and seed
            intervals = uncertainty(
                run,
                by=kinds,
                permutations=default_permutations(total) if permutations is None else permutations,
                seed=seed,
                processes=processes,
                sums_folder=kept,
                progress=lambda done: progress.advance(first, done),
                **parameters,
            )
            second = progress.add_task("statistics", total=total)
            found = statistics(
                run,
                by=kinds,
                processes=processes,
                sums_folder=kept,
                progress=lambda done: progress.advance(second, done),
                **parameters,
            )
    except KeyboardInterrupt:
        again = "starts again; with --out it would continue" if out is None else "continues"
        errors.print(f"Interrupted. The same command {again}.", highlight=False)
        raise typer.Exit(130) from None
    if kinds:
        _print_summary(console, found.summary, kinds)
    _print_levels(console, found.levels, kinds)
    if not kinds:
        for sentence in describe(found, intervals):
            console.print(f"• {sentence}", highlight=False)
    if plot is not None:
        from hgpo_train.analysis.charts import save_chart, statistics_chart

        save_chart(statistics_chart(intervals, by=kinds[0] if kinds else None), plot)
        console.print(f"The picture is [bold]{plot}[/].", highlight=False, soft_wrap=True)
    if out is not None:
        _write(found._asdict() | {"uncertainty": intervals}, out)
    files = f"The tables are in [bold]{out}[/]. " if out is not None else ""
    split = not kinds and "task_type" in steps.collect_schema()
    more = f"[bold]hgpo stats {run} --by task_type[/], " if split else ""
    console.print(f"{files}Next: {more}[bold]hgpo advantages {run}[/]", highlight=False, soft_wrap=True)


def _print_summary(console: Console, frame: pl.DataFrame, kinds: list[str]) -> None:
    from rich.table import Table

    table = Table(title="Rollouts", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = {kind: kind.replace("_", " ") for kind in kinds} | {name: words for name, (words, _) in SUMMARY.items()}
    for name, words in columns.items():
        table.add_column(words, justify="right" if frame.schema[name].is_numeric() else "left", no_wrap=True)
    for row in frame.select(list(columns)).iter_rows(named=True):
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    console.print(table)


def _print_levels(console: Console, levels: pl.DataFrame, kinds: list[str]) -> None:
    """Print one table per value of `kinds`, with statistics as rows and levels as columns."""
    from rich.table import Table

    parts = levels.partition_by(kinds, maintain_order=True, include_key=True) if kinds else [levels]
    for part in parts:
        listed = ", ".join(f"{kind} {part[kind][0]}" for kind in kinds)
        title = f"\nLevels of context{': ' if listed else ''}{listed}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("k", no_wrap=True)
        for level in part["level"]:
            table.add_column(level, justify="right", no_wrap=True)
        for name, (words, _) in ROWS.items():
            table.add_row(words, *(_cell(name, value) for value in part[name]))
        console.print(table)


def _cell(name: str, value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.1%}" if _UNITS.get(name) else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) and name != "iteration" else str(value)


def _write(found: dict[str, pl.DataFrame], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, frame in found.items():
        frame.write_csv(out / f"{name}.csv")
