"""The `hgpo` command. One module a command; heavy imports live inside the commands, so that --help is instant."""

from __future__ import annotations

import sys
from typing import Final

import typer

from hgpo_envs.errors import InputError
from hgpo_train.cli import data
from hgpo_train.cli.advantages import advantages
from hgpo_train.cli.eval import evaluate
from hgpo_train.cli.quickstart import quickstart
from hgpo_train.cli.rollout import rollout
from hgpo_train.cli.sft import sft
from hgpo_train.cli.stats import stats
from hgpo_train.cli.train import train
from hgpo_train.cli.verify import verify

TRAINING: Final = frozenset({"torch", "transformers", "accelerate", "peft", "safetensors", "tokenizers"})
"""The packages of the extra `train`."""

app = typer.Typer(name="hgpo", no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


@app.callback()
def hgpo() -> None:
    """Roll out LLM agents on ALFWorld and WebShop, keep every step, and compute group advantages from any saved run."""


app.command()(quickstart)
app.add_typer(data.app)
app.command()(rollout)
app.command("eval")(evaluate)
app.command()(advantages)
app.command()(stats)
app.command()(verify)
app.command()(sft)
app.command()(train)


def main() -> None:
    """Entry point of the console script: an error that is no bug is one line.

    Exit code 2 for bad input or an extra that is not installed, 1 when the system refuses (a full disk, a read-only
    folder) or a file turns out to be damaged while it is read.
    """
    try:
        app()
    except InputError as error:
        _print_error(error, str(error))
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _print_error(error, f"{where}{error.strerror or error}")
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name not in TRAINING:
            raise
        print(f"error: this needs {error.name}: pip install 'hgpo[train]'", file=sys.stderr)
        sys.exit(2)


def _print_error(error: BaseException, line: str) -> None:
    """Prints an error, and what was noted of it: for example, how many groups could not be committed."""
    print(f"error: {line}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
