"""`hgpo advantages`: compute group advantages of a saved run with one or more estimators."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hgpo_train.cli.output_paths import url_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.advantages import Estimator


def _list(wanted: bool) -> None:
    """List the estimators, and the parameters and defaults that all of them share, if wanted."""
    if not wanted:
        return
    from hgpo_train.advantages import get, names
    from hgpo_train.advantages.parameters import Parameters
    from hgpo_train.cli.display import print_table

    shared = vars(Parameters())
    rows = []
    for name in names():
        own = [item for item in vars(get(name).parameters).items() if item not in shared.items()]
        rows.append([name, get(name).summary, ", ".join(f"{parameter}={value}" for parameter, value in own)])
    rows.append(["all", "", ", ".join(f"{parameter}={value}" for parameter, value in shared.items())])
    print_table(["estimator", "summary", "parameters and their defaults"], rows, texts=3)
    raise typer.Exit


def advantages(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run, a folder that contains runs, a Parquet file of steps, a quoted pattern of these, "
            "or a URL. It is not modified."
        ),
    ],
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator",
            "-e",
            help="A registered estimator, or a custom one as module:function, with its own parameters "
            "(gigpo:step_weight=0.5), or all; may be repeated. Default: hgpo.",
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
    state_key: Annotated[
        str | None,
        typer.Option(
            help="What is compared instead of the states' texts: mask-numbers, sort-lines, alfworld-nodes or "
            "module:function. Stored hashes are ignored."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another parameter, name=value, of every estimator that has it; may be repeated."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Add columns with every level's advantage, group size and weight.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The table to write, or its URL. Default: <run>.advantages/<estimators>.parquet."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing table.")] = False,
    chunk_rows: Annotated[int, typer.Option(help="Approximate number of rows in memory of each process.")] = 250_000,
    processes: Annotated[int, typer.Option(help="Number of processes, which share the run's shards.")] = 1,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Compute with Ray, --processes tasks at a time, on the cluster of RAY_ADDRESS or on this machine. "
            "Requires the extra ray.",
        ),
    ] = False,
    _listing: Annotated[
        bool,
        typer.Option(
            "--list", callback=_list, is_eager=True, help="List the estimators with their parameters and exit."
        ),
    ] = False,
) -> None:
    """Compute group advantages of a saved run and write them to a table beside it."""
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_envs.wording import counted
    from hgpo_train.advantages.advantage_tables import fingerprint, refuse_own_input, write_advantages
    from hgpo_train.advantages.variants import read_variants
    from hgpo_train.cli.display import ProgressBars, resumable

    options = {"history_length": history_length, "gamma": gamma, "mode": mode, "context": context, "reward": reward}
    options |= {"reward_scale": reward_scale, "state_key": state_key}
    parameters = {name: value for name, value in options.items() if value is not None}
    variants = read_variants(estimator or ["hgpo"], parameters, setting or [])
    names = [variant.estimator.name for variant in variants]
    names = [variant.name if names.count(name) > 1 else name for variant, name in zip(variants, names, strict=True)]
    columns = ["advantage"] if len(names) == 1 else [f"advantage_{name}" for name in names]
    estimators = [
        variant.estimator.with_parameters(column=column, details=details)
        for variant, column in zip(variants, columns, strict=True)
    ]
    source, url = url_of(run) or str(run), out and url_of(out)
    if out is None and "://" in source:
        raise InputError(f"{source}: expected --out with the path or URL of the table; give one")
    target = Path(url) if url else out or default_out(run, names)
    if not url:
        if "://" not in source:
            refuse_own_input(run, target)
        if target.exists() and not overwrite:
            raise InputError(f"{target} exists already; replace it with --overwrite, or use another --out")
    total = int(scan_steps(source, plain=True).select(pl.len()).collect().item())
    with resumable(f"{url or target} is unchanged."), ProgressBars() as bars:
        rows = write_advantages(
            source,
            estimators,
            url or target,
            fingerprint="" if "://" in source else fingerprint(run),
            processes=processes,
            ray=ray,
            chunk_rows=chunk_rows,
            progress=bars.adding("advantages", total),
        )
    if not url:  # the columns of a large table would be downloaded again
        _report(target, estimators)
    typer.echo(f"{counted(rows, 'row')} in {url or target}. Next: hgpo stats {shlex.quote(source)}")


def default_out(run: Path, names: Sequence[str]) -> Path:
    """Return the default path of the table: beside the run, named after the estimators.

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
    return run.parent / f"{name}.advantages" / f"{'+'.join(names)}.parquet"


def _report(path: Path, estimators: Sequence[Estimator]) -> None:
    """Print the parameters and the distribution of each column of advantages."""
    import polars as pl

    from hgpo_train.cli.display import print_table

    written, rows = pl.scan_parquet(path), []
    for estimator in estimators:
        column = pl.col(estimator.column)
        shares = {"zero": (column == 0).mean(), "none": column.is_null().mean()}
        table = written.select(mean=column.mean(), std=column.std(), **shares).fill_null(0.0).collect()
        mean, std, zero, none = table.row(0)
        defaults = vars(type(estimator.parameters)())
        values = vars(estimator.parameters).items()
        changed = [f"{name}={value}" for name, value in values if value != defaults[name]]
        numbers = (f"{round(mean, 3) + 0.0:.3f}", f"{std:.3f}", f"{zero:.1%}", f"{none:.1%}")
        rows.append([estimator.column, ", ".join(changed) or "defaults", *numbers])
    print_table(["column", "parameters", "mean", "std", "zero", "none"], rows, texts=2)
