"""`hgpo score`: score the steps of a saved run with a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from hgpo_train.cli import common  # typer reads the annotations


def _list(wanted: bool) -> None:
    """List the scores and their columns, if wanted."""
    if not wanted:
        return
    from hgpo_train.cli.display import print_table
    from hgpo_train.scores import get, names

    rows = [[name, ", ".join(get(name).columns), get(name).summary] for name in names()]
    print_table(["score", "columns", "summary"], rows, texts=3)
    raise typer.Exit


def score(
    run: Annotated[Path, typer.Argument(help="The folder of a run with token ids.")],
    model: Annotated[str, typer.Option(help="A folder, a run of hgpo train, or a Hugging Face name.")],
    scores: Annotated[
        list[str] | None,
        typer.Option("--score", "-s", help="A score (--list), or module:object; may be repeated. Default: logprobs."),
    ] = None,
    reference: Annotated[str | None, typer.Option(help="The model of reference_logprobs.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Default: that of the run's rollouts.")] = None,
    overrides: common.Overrides = None,
    overwrite: common.Overwrite = False,
    _listing: Annotated[bool, typer.Option("--list", is_eager=True, callback=_list, help="List scores.")] = False,
) -> None:
    """Score the steps of a saved run with a model, for estimators that read scores."""
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import ProgressBars
    from hgpo_train.training.config import load_config
    from hgpo_train.training.scoring import score_run

    config = load_config(None, [f"model.path={model}", *(overrides or ())])
    total = int(scan_steps(run).select(pl.len()).collect().item())
    advice = "Finished iterations are stored; run the same command again for the rest."
    with common.resumable(advice), ProgressBars() as bars:
        rows = score_run(
            run,
            scores or ["logprobs"],
            config,
            temperature=temperature,
            reference=reference,
            overwrite=overwrite,
            progress=partial(bars.advance, bars.add_task("score", total=total)),
        )
    following = common.next_commands(("advantages", run, "-e", "module:function"))
    typer.echo(f"{counted(rows, 'scored step')} in {run / 'scores'}. {following}")
