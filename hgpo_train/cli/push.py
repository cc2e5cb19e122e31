"""`hgpo push`: a trained policy as a model of Hugging Face."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer


def push(
    run: Annotated[Path, typer.Argument(help="The folder of a run of hgpo train.")],
    out: Annotated[Path | None, typer.Option(file_okay=False, help="The folder to create.")] = None,
    repo: Annotated[str | None, typer.Option(help="A repository of the hub to upload to, such as me/alfworld.")] = None,
    iteration: Annotated[
        int | None, typer.Option(help="The iteration to take. Default: the best on held-out tasks, or the newest.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With --repo: create a public repository.")] = False,
) -> None:
    """Write a checkpoint as a model with a model card, to a folder or to the Hugging Face hub (private by default)."""
    from hgpo_train.training import push as implementation

    typer.echo(f"The model is in {implementation.push(run, out, repo, iteration=iteration, public=public)}")
