"""`hgpo stats`: group sizes, context inconsistency and bias of a run per level of context, with an interpretation."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hgpo_train.cli.output_paths import check_folder

if TYPE_CHECKING:
    import polars as pl

    from hgpo_train.analysis.statistics import Statistics

LEVELS: Final = {
    "eligible": "steps with k previous states",
    "shared": "steps that share a context",
    "cross": "… with another rollout",
    "mean_size": "mean group size",
    "step_size": "mean group size per step",
    "differing": "same state, different history",
    "inconsistency": "same state, another group",
    "variance": "variance of returns in a group",
    "flat": "groups of equal returns",
    "explained": "variance at a state explained",
    "weight": "weight in HGPO's sum",
    "bias": "mean |A_k − A_K|",
    "sign_disagreement": "signs of A_k and A_K differ",
    "in_pairs": "… in a group of two",
    "compared": "steps that have both",
}
"""Row labels of the table of levels; hgpo_train/analysis/statistics.py defines the statistics."""

SUMMARY: Final = {
    "trajectories": "rollouts",
    "aborted": "aborted",
    "steps": "steps",
    "mean_length": "mean length",
    "mean_return": "mean return",
    "success": "success",
    "success_low": "at least",
    "success_high": "at most",
    "flat_groups": "equal returns",
    "valid": "valid form",
    "admissible": "admissible",
    "unchanged": "nothing changed",
}
"""Column labels of the summary."""

NUMBERS: Final = ("mean_size", "step_size", "variance", "weight", "bias", "mean_length", "mean_return")
"""The statistics that are no shares."""
CHANGED: Final = ("levels", "intervals", "sizes")
"""The tables of --out that are also written without replies to actions that changed nothing."""
_STATES: Final = 3
"""The number of states that are printed."""


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
    state_key: Annotated[
        str | None,
        typer.Option(
            help="What of a state is compared: mask-numbers, sort-lines, alfworld-nodes (G2PO's), or module:function, "
            "a function from text to text. Default: the whole state."
        ),
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
        typer.Option(help="A folder for the tables as CSV files, with intervals: levels.csv, intervals.csv, …"),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="A picture of the levels: .html, .svg, .png or .json. Requires the extra notebooks."),
    ] = None,
) -> None:
    """Report how often steps share a context at each depth of history, and how this affects advantages."""
    import polars as pl
    from rich.console import Console

    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_train.analysis.describe import describe
    from hgpo_train.analysis.statistics import default_permutations, with_and_without_unchanged
    from hgpo_train.cli.display import ProgressBars

    if out is not None:
        check_folder("--out", out)
    if plot is not None:
        from hgpo_train.analysis.charts import check_chart_file

        check_chart_file("--plot", plot)
        if by and len(by) > 1:
            raise InputError(f"--plot: expected at most one --by, received {len(by)}")
    steps = scan_steps(run, plain=True)
    total = int(steps.select(pl.len()).collect().item())
    options = {"history_length": history_length, "context": context, "mode": mode, "reward_scale": reward_scale}
    with ProgressBars() as bars:
        result, changed = with_and_without_unchanged(
            run,
            by=by or (),
            state_key=state_key,
            permutations=default_permutations(total) if permutations is None else permutations,
            seed=seed,
            processes=processes,
            progress=lambda title: bars.adding(title, total),
            **{name: value for name, value in options.items() if value is not None},
        )
    _print(result, changed, by or [])
    console = Console()
    if not by:
        console.print()
        for sentence in describe(result, changed):
            console.print(f"• {sentence}", highlight=False, markup=False)
    if plot is not None:
        from hgpo_train.analysis.charts import save_chart, statistics_chart

        save_chart(statistics_chart(result.intervals, by=by[0] if by else None), plot)
        typer.echo(f"The picture is {plot}.")
    if out is not None:
        _write(result, changed, out)
    files = "" if out is None else f"The tables are in {out}. "
    split = not by and "task_type" in steps.collect_schema()
    more = f"hgpo stats {run} --by task_type, " if split else ""
    typer.echo(f"{files}Next: {more}hgpo advantages {run}")


def _write(result: Statistics, changed: Statistics | None, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tables = result._asdict()
    if changed is not None:
        tables |= {f"{name}_without_unchanged": getattr(changed, name) for name in CHANGED}
    for name, frame in tables.items():
        frame.write_csv(out / f"{name}.csv")


def _print(result: Statistics, changed: Statistics | None, by: list[str]) -> None:
    """Print the summary, the levels with and without replies to actions that changed nothing, and the states."""
    import polars as pl

    from hgpo_train.analysis.describe import beginning
    from hgpo_train.cli.display import print_table

    groups = {name: name for name in by}
    hidden = () if result.summary["aborted"].sum() else ("aborted", "success_low", "success_high")
    columns = {name: title for name, title in SUMMARY.items() if name not in hidden}
    if by:
        _print_frame("Rollouts", groups | columns, result.summary, len(by))
    else:
        run = result.summary.row(0, named=True)
        print_table(["", ""], [[title, _cell(name, run[name])] for name, title in columns.items()])
    if not hidden:
        lengths = {name: name for name in result.lengths.columns}
        _print_frame("Rollouts by their number of steps", lengths, result.lengths, len(by) + 1)
    if not result.summary["trajectories"].sum():
        return
    _print_levels("Levels of context", result.levels, by)
    if changed is not None:
        _print_levels("Levels of context, without replies to actions that changed nothing", changed.levels, by)
    states = result.states.group_by(by, maintain_order=True).head(_STATES) if by else result.states.head(_STATES)
    states = states.with_columns(state=pl.Series([beginning(text) for text in states["state"]]))
    columns = groups | {"state": "state", "pairs": "of pairs", "steps": "of steps"}
    _print_frame("States with most pairs of steps at the same state", columns, states, len(by) + 1)


def _print_levels(title: str, levels: pl.DataFrame, by: list[str]) -> None:
    """Print one table per value of `by`, with statistics as rows and levels as columns."""
    from hgpo_train.cli.display import print_table

    for part in levels.partition_by(by, maintain_order=True) if by else [levels]:
        rows = [[words, *(_cell(name, value) for value in part[name])] for name, words in LEVELS.items()]
        value = ", ".join([title, *(f"{name} {part[name][0]}" for name in by)])
        print_table(["k", *part["level"]], rows, title=value)


def _print_frame(title: str, columns: dict[str, str], frame: pl.DataFrame, texts: int) -> None:
    """Print some columns of a frame with their titles; the first `texts` columns are no numbers."""
    from hgpo_train.cli.display import print_table

    rows = [[_cell(name, row[name]) for name in columns] for row in frame.iter_rows(named=True)]
    print_table([name.replace("_", " ") for name in columns.values()], rows, title=title, texts=texts)


def _cell(name: str, value: object) -> str:
    from hgpo_train.analysis.describe import percent

    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}" if name in NUMBERS else percent(value, 1)
    return f"{value:,}" if isinstance(value, int) and name != "iteration" else str(value)
