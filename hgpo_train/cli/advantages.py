"""`hgpo advantages`: compute group advantages of a saved run with one or more estimators."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hgpo_train.cli.output_paths import url_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from hgpo_train.advantages import EstimatorSpec


def advantages(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run, a folder that contains runs, a Parquet file of steps, also your own, or a quoted pattern of "
            "these; with --parts also a run's URL. It is not modified."
        ),
    ],
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator",
            "-e",
            help="A registered estimator, or a custom one as module:function; may be repeated. Default: hgpo.",
        ),
    ] = None,
    history_length: Annotated[
        int | None, typer.Option(help="K, the number of past steps in the deepest context (HGPO).")
    ] = None,
    gamma: Annotated[float | None, typer.Option(help="Discount factor per step.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="Normalization in a group: mean_std_norm (by mean and std) or mean_norm.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Content of a context: states, or states_actions (HGPO).")] = None,
    reward: Annotated[str | None, typer.Option(help="Column of rewards: reward, success or score.")] = None,
    reward_scale: Annotated[
        float | None, typer.Option(help="Factor of rewards. Default: 10, as in verl-agent.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Another parameter, name=value, or estimator.name=value for one estimator; may be repeated.",
        ),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Add columns with every level's advantage, group size and weight.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The table to write. Default: <run>.advantages/<estimators>.parquet.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing table.")] = False,
    chunk_rows: Annotated[int, typer.Option(help="Approximate number of rows in memory at a time.")] = 250_000,
    processes: Annotated[
        int,
        typer.Option(help="Number of processes, which share the run's shards. The table does not depend on it."),
    ] = 1,
    parts: Annotated[
        bool,
        typer.Option(
            "--parts",
            help="Write a folder with a file per part of the run, of at most --chunk-rows rows. The same command "
            "continues, and adds the parts of a run that has grown. --out can be a URL.",
        ),
    ] = False,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Compute the parts as a Ray Data job, --processes at a time, on the cluster of RAY_ADDRESS or on this "
            "machine. Requires the extra ray.",
        ),
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the estimators with their parameters and exit.")
    ] = False,
) -> None:
    """Compute group advantages of a saved run and write them to a table beside it."""
    from rich.console import Console

    from hgpo_envs.errors import InputError
    from hgpo_train.advantages.advantage_tables import refuse_own_input

    console = Console(stderr=True)
    if listing:
        _list(console)
        return
    named = {"history_length": history_length, "gamma": gamma, "mode": mode, "context": context, "reward": reward}
    named["reward_scale"] = reward_scale
    given = {name: value for name, value in named.items() if value is not None}
    specs = make_specs(estimator or ["hgpo"], given, setting or [], details=details)
    how = {"processes": processes, "chunk_rows": chunk_rows}
    if parts or ray:
        folder = _parts_folder(run, out, specs)
        _write(console, url_of(run) or run, specs, folder, how | {"overwrite": overwrite, "ray": ray})
        return
    if url_of(run) or (out is not None and url_of(out)):
        raise InputError(
            "expected a local run or file, received a URL; --parts reads and writes URLs, and in Python "
            "compute(scan_steps(URL), ...) reads them"
        )
    target = out or default_out(run, specs)
    refuse_own_input(run, target)
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; replace it with --overwrite, or use another --out")
    _write(console, run, specs, target, how)


def _parts_folder(run: Path, out: Path | None, specs: Sequence[EstimatorSpec]) -> str:
    """Return the path or URL of the folder of parts, which is not in the run."""
    from hgpo_envs.errors import InputError
    from hgpo_train.advantages.advantage_tables import refuse_own_input

    source = url_of(run)
    if out is None:
        if source is not None:
            raise InputError(f"{source}: expected --out with the folder or URL of the parts; give one")
        out = default_out(run, specs, folder=True)
    target = url_of(out)
    if source is None and target is None:
        refuse_own_input(run, out, folder=True)
    if source is not None and f"{target}/".startswith(f"{source}/"):
        raise InputError(f"expected a folder outside of the input {source}, received {target}; change --out")
    return target or str(out)


def make_specs(
    estimators: Sequence[str], given: dict[str, Any], settings: Sequence[str], *, details: bool
) -> list[EstimatorSpec]:
    """Return the estimators with their parameters.

    Each estimator receives the parameters that it has. A parameter that no estimator has is an error.

    Args:
        estimators: Names of estimators, or ``module:function``.
        given: Parameters by name.
        settings: Further parameters, ``name=value`` or ``estimator.name=value``.
        details: Whether to add columns with the details of every level.

    Raises:
        InputError: An estimator or a parameter is unknown, or a value is not valid.

    >>> jobs = make_specs(["hgpo", "grpo"], {"gamma": 0.9}, ["hgpo.alpha=2", "cross_steps=false"], details=False)
    >>> [(job.column, job.parameters.gamma) for job in jobs]
    [('advantage_hgpo', 0.9), ('advantage_grpo', 0.9)]
    """
    from hgpo_envs.errors import InputError, unknown
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


def default_out(run: Path, specs: Sequence[EstimatorSpec], *, folder: bool = False) -> Path:
    """Return the default path of the table, or of the folder of its parts: beside the run, named after the estimators.

    It is never in a run: for a run's `steps/` or a shard it is beside the run, and for a pattern (`folder/*.parquet`)
    beside the folder.
    """
    from hgpo_datasets.sources import is_pattern, run_of_file, run_with_steps

    while is_pattern(str(run)):
        run = run.parent
    run = run.resolve()
    name = run.name
    if run.is_file():
        name, owner = run.stem, run_of_file(run)
        if owner is not None:
            run, name = owner, f"{owner.name}.{name}"
    elif (owner := run_with_steps(run)) is not None:
        run, name = owner, owner.name
    suffix = "" if folder else ".parquet"
    return run.parent / f"{name}.advantages" / f"{'+'.join(spec.estimator.name for spec in specs)}{suffix}"


def _write(
    console: Console, run: Path | str, specs: Sequence[EstimatorSpec], target: Path | str, options: dict[str, Any]
) -> None:
    """Write the table, or the folder of its parts if `options` has `overwrite`."""
    import time

    from rich.progress import Progress

    from hgpo_envs.wording import counted
    from hgpo_train.advantages.advantage_tables import fingerprint
    from hgpo_train.advantages.parts import partitions_for, write_folder, write_table

    found = partitions_for(run, specs, options["chunk_rows"])
    began = time.perf_counter()
    computed = ""
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("advantages", total=sum(part.rows() for part in found))
            options["progress"] = lambda done: progress.advance(bar, done)
            if "overwrite" in options:
                reports = write_folder(found, specs, str(target), **options)
                rows = sum(report.rows for report in reports)
                computed = (
                    f" ({sum(report.computed for report in reports)} of {counted(len(reports), 'part')} computed)"
                )
            else:
                rows = write_table(found, specs, Path(target), fingerprint=fingerprint(Path(run)), **options)
    except KeyboardInterrupt:
        unchanged = "" if "overwrite" in options else f" {target} is unchanged."
        kept = " Finished parts are kept; run the same command again to continue." if len(found) > 1 else ""
        console.print(f"Interrupted.{unchanged}{kept}", soft_wrap=True)
        raise typer.Exit(130) from None
    if "://" not in str(target):  # the columns of a large run would be downloaded again
        _report(console, target, specs, rows, time.perf_counter() - began)
    where = f"hgpo stats {shlex.quote(str(run))}"
    console.print(
        f"{counted(rows, 'row')} in [bold]{target}[/]{computed}. Next: [bold]{where}[/]",
        highlight=False,
        soft_wrap=True,
    )


def _report(console: Console, target: Path | str, specs: Sequence[EstimatorSpec], rows: int, seconds: float) -> None:
    import polars as pl
    from rich.table import Table

    from hgpo_envs.wording import counted

    table = Table(title=f"{counted(rows, 'row')} in {seconds:.2f} s", title_justify="left")
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
    """Return the parameters that differ from their defaults, as text."""
    default = spec.estimator.parameters()
    changed = [
        f"{field.name}={getattr(spec.parameters, field.name)}"
        for field in fields(default)
        if getattr(spec.parameters, field.name) != getattr(default, field.name)
    ]
    return ", ".join(changed) or "defaults"


def _list(console: Console) -> None:
    from rich.table import Table

    from hgpo_train.advantages import get, names

    table = Table("estimator", "summary", "parameters and their defaults")
    for name in names():
        each = get(name)
        defaults = each.parameters()
        listed = ", ".join(f"{field.name}={getattr(defaults, field.name)}" for field in fields(defaults))
        table.add_row(name, each.summary, listed)
    console.print(table)
