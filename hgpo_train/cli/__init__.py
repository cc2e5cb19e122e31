"""The `hgpo` command.

Each command is one module, whose heavy imports are inside its functions: `hgpo --help` imports no NumPy, Polars,
Gymnasium or torch, and so nothing of `hgpo_envs` (tests/cli/test_imports.py).
"""

from __future__ import annotations

import platform
import sys
from typing import Annotated, Final

import typer

from hgpo_train.cli import check, data
from hgpo_train.cli.advantages import advantages
from hgpo_train.cli.command_types import RedactedApp
from hgpo_train.cli.envs import envs
from hgpo_train.cli.eval import evaluate
from hgpo_train.cli.new import new
from hgpo_train.cli.play import play
from hgpo_train.cli.push import push
from hgpo_train.cli.quickstart import quickstart
from hgpo_train.cli.redaction import RedactedStream, flush_streams, open_streams
from hgpo_train.cli.rollout import rollout
from hgpo_train.cli.score import score
from hgpo_train.cli.sft import sft
from hgpo_train.cli.stats import stats
from hgpo_train.cli.train import train
from hgpo_train.cli.verify import verify
from hgpo_train.cli.view import view

LIBRARIES: Final = (
    "gymnasium", "numpy", "polars", "pyarrow", "torch", "transformers", "tokenizers", "peft", "vllm", "aiohttp"
)  # fmt: skip
"""The libraries that results depend on, whose versions `hgpo --version` prints."""

app = RedactedApp(
    name="hgpo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    """Print the versions of the distributions, without importing them, and exit."""
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and help needs none of it

    typer.echo(f"hgpo {version('hgpo')}")
    typer.echo(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name in LIBRARIES:
        try:
            typer.echo(f"{name} {version(name)}")
        except PackageNotFoundError:
            typer.echo(f"{name} (not installed)")
    raise typer.Exit


@app.callback()
def hgpo(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print versions, and exit.")
    ] = False,
) -> None:
    """Roll out LLM agents on ALFWorld and WebShop, keep every step, and compute group advantages from any saved run."""


for command in (quickstart, envs, score, advantages, stats, verify, view, play, sft, train, push, rollout, new):
    app.command()(command)
app.command("eval")(evaluate)
for group in (data.app, check.app):
    app.add_typer(group)


def main() -> None:
    """Run the command line; the entry point of the console script. Errors end it as in `hgpo_train.cli.exit_status`.

    All output has secrets removed: standard error from the start, because errors may repeat what the user typed, and
    standard output from the start of a command (`RedactedCommand`).
    """
    open_streams()
    sys.stderr = RedactedStream(sys.stderr)
    is_reported = False
    try:
        app(prog_name="hgpo")
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        from hgpo_train.cli.exit_status import exit_with_error

        is_reported = True
        exit_with_error(error)
    finally:
        if (failed := flush_streams()) is not None:
            if not isinstance(failed, BrokenPipeError) and not is_reported:  # the first as of `| head`
                print(f"error: standard output: {failed.strerror}", file=sys.stderr)
            sys.exit(1)
