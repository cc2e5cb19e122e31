"""The `hgpo` command. One module a command; heavy imports live inside the commands, so that --help is instant."""

from __future__ import annotations

import typer

app = typer.Typer(name="hgpo", no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


@app.callback()
def hgpo() -> None:
    """Roll out LLM agents on ALFWorld and WebShop, keep every step, and compute group advantages from any saved run."""


def main() -> None:
    """Entry point of the console script."""
    app()
