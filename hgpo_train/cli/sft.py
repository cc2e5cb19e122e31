"""`hgpo sft`: supervised training on the steps of a saved run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from hgpo_train.cli import common  # typer reads the annotations


def sft(
    steps: Annotated[Path, typer.Argument(help="A step table: a run's folder or a Parquet file.")],
    out: common.RunFolder,
    config: Annotated[Path | None, typer.Option(help="A TOML file. Default: the default settings.")] = None,
    model: Annotated[str | None, typer.Option(help="A folder or Hugging Face name, for --set model.path=…")] = None,
    overrides: common.Overrides = None,
    print_config: common.PrintConfig = False,
) -> None:
    """Fine-tune a model on the steps of a saved run, as a warm start before reinforcement learning."""
    from hgpo_train.cli.display import terminal
    from hgpo_train.settings import to_toml
    from hgpo_train.training.config import SftConfig, load_config
    from hgpo_train.training.display import Display
    from hgpo_train.training.run_folder import without_secrets
    from hgpo_train.training.sft import run_sft

    assignments = [*([f"model.path={model}"] if model is not None else []), *(overrides or ())]
    settings = load_config(config, assignments, SftConfig)
    if print_config:
        typer.echo(to_toml(without_secrets(settings), docs=True), nl=False)
        return
    console = terminal()
    display = Display(console, settings.update.epochs)
    advice = f"The last saved epoch is in {out}; run the same command again to resume."
    with common.resumable(advice), display.live():
        checkpoint = run_sft(settings, steps, out, display)
    following = ("train", "CONFIG", "--set", f"model.path={out}")
    console.print(f"The policy is in [bold]{checkpoint}[/]. {common.next_commands(following)}", soft_wrap=True)
