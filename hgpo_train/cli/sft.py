"""`hgpo sft`: supervised training on the steps of a saved run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer


def sft(
    steps: Annotated[Path, typer.Argument(help="A step table: a run's folder or a Parquet file.")],
    out: Annotated[Path, typer.Option(help="The run's folder. An interrupted run in it is resumed.")],
    config: Annotated[Path | None, typer.Option(help="A TOML file. Default: the default settings.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's folder or Hugging Face name; short for --set model.path=…")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting: section.field=value; may be repeated.", metavar="A.B=C"),
    ] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print all settings and exit.")] = False,
) -> None:
    """Fine-tune a model on the steps of a saved run, as a warm start before reinforcement learning."""
    from rich.console import Console

    from hgpo_train.cli.display import resumable
    from hgpo_train.settings import to_toml
    from hgpo_train.training.config import SftConfig, load_config
    from hgpo_train.training.display import Display
    from hgpo_train.training.sft import run_sft

    assignments = [*([f"model.path={model}"] if model is not None else []), *(overrides or ())]
    settings = load_config(config, assignments, SftConfig)
    if print_config:
        typer.echo(to_toml(settings, docs=True), nl=False)
        return
    console = Console()
    display = Display(console, settings.update.epochs)
    with (
        resumable(f"The last saved epoch is in {out}; run the same command again to resume."),
        display.live(),
    ):
        checkpoint = run_sft(settings, steps, out, display)
    console.print(
        f"The policy is in [bold]{checkpoint}[/]. Next: [bold]hgpo train CONFIG --set model.path={out}[/]",
        soft_wrap=True,
    )
