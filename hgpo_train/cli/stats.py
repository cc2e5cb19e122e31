"""`hgpo stats`: group sizes, context inconsistency and bias of a run per level of context, with an interpretation."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Final

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from hgpo_train.analysis.statistics import Statistics

CHANGED: Final = ("levels", "intervals", "sizes")
"""The tables of --out that are also written without replies to actions that changed nothing."""


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
    from hgpo_train.analysis.describe import describe, tables
    from hgpo_train.analysis.statistics import (
        default_permutations,
        with_and_without_unchanged,
    )
    from hgpo_train.cli.display import ProgressBars, print_table, terminal

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
    for table in tables(result, changed):
        head, *rows = [
            [part if isinstance(part, str) else part.label for part in row]
            for row in (table.head, *table.rows)
        ]
        print_table(head, rows, title=table.title, texts=table.texts)
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
