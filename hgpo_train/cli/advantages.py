"""`hgpo advantages`: compute group advantages of a saved run with one or more estimators."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence


def _list() -> None:
    """Print the estimators, and the parameters and defaults that all of them share."""
    from hgpo_train.advantages import get, names
    from hgpo_train.advantages.parameters import Parameters
    from hgpo_train.cli.display import print_table

    shared = vars(Parameters())
    rows = []
    for name in names(scored=True):
        own = [
            item
            for item in vars(get(name).parameters).items()
            if item not in shared.items()
        ]
        scores = f" (scores: {', '.join(get(name).scores)})" if get(name).scores else ""
        rows.append(
            [
                name,
                get(name).summary + scores,
                ", ".join(f"{parameter}={value}" for parameter, value in own),
            ]
        )
    rows.append(
        [
            "all",
            "",
            ", ".join(f"{parameter}={value}" for parameter, value in shared.items()),
        ]
    )
    print_table(
        ["estimator", "summary", "parameters and their defaults"], rows, texts=3
    )


def advantages(
    run: options.SavedRun | None = None,
    /,
    *,
    estimator: Annotated[list[str] | None, Parameter(alias="-e")] = None,
    contexts: options.ContextOptions = options.ContextOptions(),
    gamma: float | None = None,
    reward: str | None = None,
    setting: Annotated[list[str] | None, Parameter("--set")] = None,
    details: bool = False,
    out: str | None = None,
    overwrite: options.Overwrite = False,
    chunk_rows: int = 250_000,
    processes: options.Processes = 1,
    ray: bool = False,
    listing: Annotated[bool, Parameter("--list")] = False,
) -> None:
    """Compute group advantages of a saved run and write them to a table beside it.

    Args:
        run: The run.
        estimator: A registered estimator, or a custom one as module:function, with its own parameters
            (gigpo:step_weight=0.5), or all; may be repeated. Default: hgpo.
        contexts: The options of contexts.
        gamma: Discount factor per step.
        reward: Column of rewards: reward, success or score.
        setting: Parameters, name=value; may be repeated.
        details: Add every level's advantages and weights.
        out: The table, or its URL. Default: beside the run.
        overwrite: Whether to replace a table.
        chunk_rows: Approximate number of rows in memory of each process.
        processes: Number of processes.
        ray: Compute with Ray, here or on RAY_ADDRESS.
        listing: List estimators and exit.
    """
    if listing:
        _list()
        return
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_envs.wording import counted
    from hgpo_train.advantages.advantage_tables import write_advantages
    from hgpo_train.advantages.variants import read_variants
    from hgpo_train.cli.display import ProgressBars

    if run is None:
        raise InputError(
            "expected a run: its folder, a Parquet file, a quoted pattern, or a URL; see hgpo advantages --help"
        )
    parameters = contexts.given(gamma=gamma, reward=reward)
    variants = read_variants(estimator or ["hgpo"], parameters, setting or [])
    names = [variant.estimator.name for variant in variants]
    names = [
        variant.name if names.count(name) > 1 else name
        for variant, name in zip(variants, names, strict=True)
    ]
    columns = (
        ["advantage"] if len(names) == 1 else [f"advantage_{name}" for name in names]
    )
    estimators = [
        variant.estimator.with_parameters(column=column, details=details)
        for variant, column in zip(variants, columns, strict=True)
    ]
    target = _target(run, out, names, overwrite=overwrite)
    total = int(scan_steps(run, plain=True).select(pl.len()).collect().item())
    with common.resumable(f"{target} is unchanged."), ProgressBars() as bars:
        rows = write_advantages(
            run,
            estimators,
            target,
            processes=processes,
            ray=ray,
            chunk_rows=chunk_rows,
            progress=partial(bars.advance, bars.add_task("advantages", total=total)),
        )
    # not read again from an object store
    for each in estimators if isinstance(target, Path) else ():
        column = pl.col(each.column)
        figures = pl.scan_parquet(target, glob=False).select(
            column.mean(), std=column.std(), zero=(column == 0).mean()
        )
        mean, std, zero = (
            figures.with_columns(pl.col("std").fill_null(0.0)).collect().row(0)
        )
        known = "null: every rollout is aborted"
        if mean is not None:
            known = f"mean {mean:z.3f}, std {std:.3f}, {zero:.1%} zero"
        print(f"{each.column}: {known}")
    common.note_runs(run)
    common.note_memory(common.prompt_length(run), estimators)
    common.note_branches(run, estimators)
    print(f"{counted(rows, 'row')} in {target}. {common.next_commands(('stats', run))}")


def _target(
    run: str, out: str | None, names: Sequence[str], *, overwrite: bool
) -> Path | str:
    """Return the path or the URL of the table.

    Raises:
        InputError: It cannot be written there.
    """
    from hgpo_envs.errors import InputError
    from hgpo_envs.files.atomic import refuse_link
    from hgpo_train.advantages.advantage_tables import refuse_own_input

    is_remote = "://" in run
    if out is None and is_remote:
        raise InputError(
            f"{run}: expected --out with the path or URL of the table; give one"
        )
    target = (
        out
        if out is not None and "://" in out
        else Path(out)
        if out
        else default_out(Path(run), names)
    )
    if Path(target).suffix not in {"", ".parquet"}:
        raise InputError(
            f"--out: expected the path of a table, such as advantages.parquet, received {target}"
        )
    if isinstance(target, Path):
        if out is None:
            refuse_link(target.parent)
        if not is_remote:
            refuse_own_input(Path(run), target)
        if target.exists() and not overwrite:
            raise InputError(
                f"{target} exists already; replace it with --overwrite, or use another --out"
            )
    return target


def default_out(run: Path, names: Sequence[str]) -> Path:
    """Return the default path of the table: beside the run, named after the estimators, without colons (Windows).

    It is never in a run: for a run's `steps/` or a shard it is beside the run, and for a pattern (`folder/*.parquet`)
    beside the folder.
    """
    from hgpo_datasets.sources import is_pattern, run_of_file, run_with_steps

    while is_pattern(str(run)):
        run = run.parent
    run = run.resolve()
    if run.is_file():
        owner = run_of_file(run)
        name = run.stem if owner is None else f"{owner.name}.{run.stem}"
    else:
        owner = run_with_steps(run)
        name = run.name if owner is None else owner.name
    return (
        (owner or run).parent
        / f"{name}.advantages"
        / f"{'+'.join(names).replace(':', '-')}.parquet"
    )
