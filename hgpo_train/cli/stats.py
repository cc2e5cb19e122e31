"""`hgpo stats`: group sizes, context inconsistency and bias of a run per level of context, with an interpretation."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Final

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    import polars as pl

    from hgpo_train.analysis.statistics import Statistics

CHANGED: Final = ("levels", "intervals", "sizes")
"""The tables of --out that are also written without replies to actions that changed nothing."""
_STATES: Final = 3
"""The number of states that are printed."""


def stats(
    run: options.SavedRun,
    /,
    *,
    contexts: options.ContextOptions = options.ContextOptions(),
    by: list[str] | None = None,
    permutations: int | None = None,
    seed: int = 0,
    processes: options.Processes = 1,
    out: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Report how often steps share a context at each depth of history, and how this affects advantages.

    Args:
        run: The run.
        contexts: The options of contexts.
        by: A column to split by: task_type; may be repeated.
        permutations: Permutations for chance alone. Default: up to 20.
        seed: The seed of intervals and permutations.
        processes: Number of processes.
        out: A folder for the tables as CSV files.
        plot: A picture: .html, .svg, .png or .json (extra notebooks).
    """
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_datasets.branches import has_branches
    from hgpo_envs.errors import InputError
    from hgpo_train.analysis.describe import describe
    from hgpo_train.analysis.statistics import (
        default_permutations,
        with_and_without_unchanged,
    )
    from hgpo_train.cli.display import ProgressBars, terminal

    by = by or []
    if plot is not None:
        from hgpo_train.analysis.charts import (
            check_chart_file,
            save_chart,
            statistics_chart,
        )

        check_chart_file("--plot", plot)
        if len(by) > 1:
            raise InputError(f"--plot: expected at most one --by, received {len(by)}")
    steps = scan_steps(run, plain=True)
    total = int(steps.select(pl.len()).collect().item())
    with ProgressBars() as bars:
        result, changed = with_and_without_unchanged(
            run,
            by=by,
            permutations=default_permutations(total)
            if permutations is None
            else permutations,
            seed=seed,
            processes=processes,
            progress=partial(bars.advance, bars.add_task("statistics", total=total)),
            **contexts.given(),
        )
    common.note_runs(run)
    estimate = ["advantages", run]
    if has_branches(steps):
        estimate += ["-e", "tree_loo"]  # the default estimator refuses branches
        print(
            "Branches are left out: the statistics are of rollouts that began at the start of their task."
        )
    _print(result, changed, by)
    if not by:
        console = terminal(highlight=False, markup=False)
        for sentence in (
            "",
            *(f"• {sentence}" for sentence in describe(result, changed)),
        ):
            console.print(sentence)
    if plot is not None:
        save_chart(statistics_chart(result.intervals, by=by[0] if by else None), plot)
        print(f"The picture is {plot}.")
    if out is not None:
        _write(result, changed, out)
        print(f"The tables are in {out}.")
    further = []
    if not by and "task_type" in steps.collect_schema():
        types = steps.select(pl.col("task_type").n_unique()).collect().item()
        further = [("stats", run, "--by", "task_type")] if types > 1 else []
    print(common.next_commands(*further, estimate))


def _write(result: Statistics, changed: Statistics | None, out: Path) -> None:
    from hgpo_envs.files.atomic import make_folder, write_file

    make_folder(out)
    tables = result._asdict()
    if changed is not None:
        tables |= {
            f"{name}_without_unchanged": getattr(changed, name) for name in CHANGED
        }
    for name, frame in tables.items():
        write_file(out / f"{name}.csv", frame.write_csv().encode())


def _print(result: Statistics, changed: Statistics | None, by: list[str]) -> None:
    """Print the summary, the levels with and without replies to actions that changed nothing, and the states."""
    import polars as pl

    from hgpo_train.analysis.definitions import DEFINITIONS
    from hgpo_train.analysis.describe import beginning, cell
    from hgpo_train.cli.display import print_table

    labels = {
        table: {name: one.label for name, one in known.items()}
        for table, known in DEFINITIONS.items()
    }
    keys = {name: name for name in by}
    hidden = (
        ()
        if result.summary["aborted"].sum()
        else ("aborted", "success_if_aborted_lost", "success_if_aborted_won")
    )
    columns = {
        name: title for name, title in labels["summary"].items() if name not in hidden
    }
    if by:
        _print_frame("Rollouts", keys | columns, result.summary, len(by))
    else:
        run = result.summary.row(0, named=True)
        print_table(
            ["", ""],
            [[title, cell(name, run[name])] for name, title in columns.items()],
        )
    if not hidden:
        _print_frame(
            "Rollouts by their number of steps",
            keys | labels["lengths"],
            result.lengths,
            len(by) + 1,
        )
    if not result.summary["trajectories"].sum():
        return
    parts = {"Levels of context": result.levels}
    if changed is not None:
        parts["Levels of context, without replies to actions that changed nothing"] = (
            changed.levels
        )
    for title, levels in parts.items():
        for part in levels.partition_by(by, maintain_order=True) if by else [levels]:
            rows = [
                [words, *(cell(name, value) for value in part[name])]
                for name, words in labels["levels"].items()
            ]
            values = [f"{name} {part[name][0]}" for name in by]
            print_table(["k", *part["level"]], rows, title=", ".join([title, *values]))
    states = (
        result.states.group_by(by, maintain_order=True).head(_STATES)
        if by
        else result.states.head(_STATES)
    )
    states = states.with_columns(
        state=pl.Series([beginning(text) for text in states["state"]])
    )
    columns = keys | {"state": "state"} | labels["states"]
    _print_frame(
        "States with most pairs of steps at the same state",
        columns,
        states,
        len(by) + 1,
    )


def _print_frame(
    title: str, columns: dict[str, str], frame: pl.DataFrame, texts: int
) -> None:
    """Print some columns of a frame with their titles; the first `texts` columns are no numbers."""
    from hgpo_train.analysis.describe import cell
    from hgpo_train.cli.display import print_table

    rows = [
        [cell(name, row[name]) for name in columns]
        for row in frame.iter_rows(named=True)
    ]
    print_table(
        [name.replace("_", " ") for name in columns.values()],
        rows,
        title=title,
        texts=texts,
    )
