"""`hgpo advantages`: group advantages of a saved run, by any estimators, as a table beside it."""

from __future__ import annotations

import shlex
from dataclasses import fields
from glob import has_magic
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hgpo_envs.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from hgpo_train.advantages import EstimatorSpec


def advantages(
    run: Annotated[
        Path,
        typer.Argument(help="A run's folder, a Parquet file of steps, or 'folder/*.parquet'. It is never changed."),
    ],
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator",
            "-e",
            help="An estimator, or yours as module:function; repeatable. Default: hgpo.",
        ),
    ] = None,
    history_length: Annotated[int | None, typer.Option(help="K, the deepest context (HGPO).")] = None,
    gamma: Annotated[float | None, typer.Option(help="Discount of a step.")] = None,
    mode: Annotated[str | None, typer.Option(help="mean_std_norm or mean_norm.")] = None,
    context: Annotated[
        str | None, typer.Option(help="states, or states_actions: what the prompt shows (HGPO).")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="reward, success or score: the column rewards come from.")] = None,
    reward_scale: Annotated[
        float, typer.Option(help="What rewards are multiplied with; 10 as verl-agent trains.")
    ] = 10.0,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another parameter, name=value, or estimator.name=value for one; may be repeated."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Add every level's advantage, group size, weight.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The table; default: <run>.advantages/<estimators>.parquet.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a table that is there.")] = False,
    chunk_rows: Annotated[int, typer.Option(help="About how many rows are in memory at a time.")] = 250_000,
    listing: Annotated[bool, typer.Option("--list", help="List estimators and their parameters, and stop.")] = False,
) -> None:
    """Compute group advantages of a saved run and put them beside it."""
    from rich.console import Console

    from hgpo_train.advantages.advantage_tables import refuse_own_input

    console = Console(stderr=True)
    if listing:
        _list(console)
        return
    named = {"history_length": history_length, "gamma": gamma, "mode": mode, "context": context, "reward": reward}
    given = {name: value for name, value in named.items() if value is not None} | {"reward_scale": reward_scale}
    specs = make_specs(estimator or ["hgpo"], given, setting or [], details=details)
    target = out or default_out(run, specs)
    refuse_own_input(run, target)
    if target.exists() and not overwrite:
        raise InputError(f"{target} is there already; --overwrite replaces it, --out names another")
    _write(console, run, specs, target, chunk_rows)


def make_specs(
    estimators: Sequence[str], given: dict[str, Any], settings: Sequence[str], *, details: bool
) -> list[EstimatorSpec]:
    """The estimators with their parameters: each takes those that it has, and each must be taken by one.

    >>> jobs = make_specs(["hgpo", "grpo"], {"gamma": 0.9}, ["hgpo.alpha=2", "cross_steps=false"], details=False)
    >>> [(job.column, job.parameters.gamma) for job in jobs]
    [('advantage_hgpo', 0.9), ('advantage_grpo', 0.9)]
    """
    from hgpo_train.advantages import EstimatorSpec, get
    from hgpo_train.assignments import read_assignments
    from hgpo_train.settings import types_of

    found = [get(name) for name in estimators]
    known = {each.name: types_of(each.parameters) for each in found}
    annotations = {field: kind for types in known.values() for field, kind in types.items()}
    annotations |= {f"{name}.{field}": kind for name, types in known.items() for field, kind in types.items()}
    parameters: dict[str, dict[str, Any]] = {name: {} for name in known}
    for name, value in [*given.items(), *read_assignments("--set", settings, annotations).items()]:
        owner, _, parameter = name.rpartition(".")
        if owner and owner not in known:
            raise InputError(unknown("estimator of this call", owner, known))
        takers = [each for each in ([owner] if owner else known) if parameter in known[each]]
        if not takers:
            choice = sorted(set().union(*(known[each] for each in ([owner] if owner else known))))
            raise InputError(unknown("parameter", parameter, choice, limit=99))
        for each in takers:
            parameters[each][parameter] = value
    single = len(found) == 1
    return [
        EstimatorSpec(
            each,
            each.parameters.of(parameters[each.name]),
            "advantage" if single else f"advantage_{each.name}",
            details,
        )
        for each in found
    ]


def default_out(run: Path, specs: Sequence[EstimatorSpec]) -> Path:
    """Beside the run, under the estimators' names; for a folder's files (`folder/*.parquet`), beside the folder."""
    run = (run.parent if has_magic(run.name) else run).resolve()
    stem = run.stem if run.suffix == ".parquet" else run.name
    return run.parent / f"{stem}.advantages" / f"{'+'.join(spec.estimator.name for spec in specs)}.parquet"


def _write(console: Console, run: Path, specs: Sequence[EstimatorSpec], target: Path, chunk_rows: int) -> None:
    import time

    import polars as pl
    from rich.progress import Progress

    from hgpo_datasets import scan_steps
    from hgpo_train.advantages.advantage_tables import fingerprint, write_advantages

    steps = scan_steps(run)
    total = int(steps.select(pl.len()).collect().item())
    began = time.perf_counter()
    try:
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("advantages", total=total)
            rows = write_advantages(
                steps,
                specs,
                target,
                fingerprint=fingerprint(run),
                chunk_rows=chunk_rows,
                progress=lambda done: progress.advance(bar, done),
            )
    except KeyboardInterrupt:
        console.print(f"Interrupted: {target} is as it was.", soft_wrap=True)
        raise typer.Exit(130) from None
    _report(console, target, specs, rows, time.perf_counter() - began)
    where = f"hgpo stats {shlex.quote(str(run))}"
    console.print(f"{rows:,} rows in [bold]{target}[/]. Next: [bold]{where}[/]", highlight=False, soft_wrap=True)


def _report(console: Console, target: Path, specs: Sequence[EstimatorSpec], rows: int, seconds: float) -> None:
    import polars as pl
    from rich.table import Table

    table = Table(title=f"{rows:,} rows in {seconds:.2f} s", title_justify="left")
    for head in ("column", "parameters", "mean", "std", "zero", "none"):
        table.add_column(head, overflow="fold")
    written = pl.scan_parquet(target)
    for spec in specs:
        column = pl.col(spec.column)
        mean, std, zero, none = (
            written.select(
                column.mean().alias("m"),
                column.std().alias("s"),
                (column == 0).mean().alias("z"),
                column.is_null().mean().alias("n"),
            )
            .collect()
            .row(0)
        )
        cells = (f"{value:.3f}" if value is not None else "–" for value in (mean, std))
        table.add_row(spec.column, _differences(spec), *cells, f"{zero or 0:.1%}", f"{none:.1%}")
    console.print(table)


def _differences(spec: EstimatorSpec) -> str:
    """The parameters that are not at their default."""
    default = spec.estimator.parameters()
    changed = [
        f"{field.name}={getattr(spec.parameters, field.name)}"
        for field in fields(default)
        if getattr(spec.parameters, field.name) != getattr(default, field.name)
    ]
    return ", ".join(changed) or "as by default"


def _list(console: Console) -> None:
    from rich.table import Table

    from hgpo_train.advantages import get, names

    table = Table("estimator", "what it compares", "parameters and their defaults")
    for name in names():
        each = get(name)
        defaults = each.parameters()
        listed = ", ".join(f"{field.name}={getattr(defaults, field.name)}" for field in fields(defaults))
        table.add_row(name, each.summary, listed)
    console.print(table)
