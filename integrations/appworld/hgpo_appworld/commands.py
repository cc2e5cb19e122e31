"""The commands `hgpo data install|fetch|synth appworld`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def install_appworld(
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", "--out", help="A new folder for the environment. Default: ~/.local/share/hgpo/appworld."
        ),
    ] = None,
    python: Annotated[str, typer.Option(help="The interpreter to make it with: Python 3.11 to 3.13.")] = sys.executable,
) -> None:
    """Install AppWorld into a virtual environment of its own. By using it you accept its licence, which is printed."""
    from hgpo_appworld.data.install import VARIABLE, install

    made = install(into, python, _tell)
    name = f"export {VARIABLE}={made} && " if into else ""
    typer.echo(f"AppWorld is installed for {made}. Next: {name}hgpo data synth appworld --out appworld")


def fetch_appworld(
    into: Annotated[Path, typer.Option("--into", "--out", help="A new folder, AppWorld's root.")] = Path("appworld"),
    python: Annotated[
        str | None, typer.Option(help="AppWorld's interpreter. Default: that of `hgpo data install appworld`.")
    ] = None,
) -> None:
    """Download AppWorld's official tasks with AppWorld itself. You accept its licence, which is printed."""
    from hgpo_appworld.data.install import default_python
    from hgpo_appworld.data.official import fetch

    counts = fetch(into, python or str(default_python()), _tell)
    tasks = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    typer.echo(f'{tasks} tasks in {into}. Next: gym.make("HGPO/AppWorld-v0", data="{into}")')


def synth_appworld(
    out: Annotated[Path, typer.Option("--out", "--into", help="A new folder, AppWorld's root.")],
    python: Annotated[
        str | None, typer.Option(help="AppWorld's interpreter. Default: that of `hgpo data install appworld`.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the world and its tasks.")] = 0,
    tasks: Annotated[
        int, typer.Option(help="Number of tasks, three a scenario; five eighths train, the rest dev and test_normal.")
    ] = 48,
) -> None:
    """Generate a small AppWorld: people, their data in seven apps, and tasks with evaluations and solutions.

    The files are derived from AppWorld's encrypted apps. Do not publish them.
    """
    from hgpo_appworld.data.install import default_python
    from hgpo_appworld.generation.root import write_root
    from hgpo_train.cli.display import ProgressBars

    interpreter = python or str(default_python())
    with ProgressBars() as bars:
        counts = write_root(out, interpreter, seed, tasks, bars.show)
    made = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    typer.echo(f'{made} tasks in {out}. Next: gym.make("HGPO/AppWorld-v0", data="{out}")')


def _tell(line: str) -> None:
    typer.echo(line, err=True)
