"""The `hgpo` command. One module a command; heavy imports live inside the commands, so that --help is instant."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Final, NoReturn

import typer

from hgpo_envs.errors import InputError
from hgpo_envs.secrets import RedactedStream, redact, redact_logging
from hgpo_train.cli import data
from hgpo_train.cli.advantages import advantages
from hgpo_train.cli.command_types import WorkersCommand
from hgpo_train.cli.eval import evaluate
from hgpo_train.cli.quickstart import quickstart
from hgpo_train.cli.rollout import rollout
from hgpo_train.cli.sft import sft
from hgpo_train.cli.stats import stats
from hgpo_train.cli.train import train
from hgpo_train.cli.verify import verify
from hgpo_train.rollout.failures import RolloutError

TRAINING: Final = frozenset({"torch", "transformers", "peft", "safetensors", "tokenizers"})
"""The packages of the extra `train`."""

app = typer.Typer(
    name="hgpo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def hgpo() -> None:
    """Roll out LLM agents on ALFWorld and WebShop, keep every step, and compute group advantages from any saved run."""


app.command()(quickstart)
app.add_typer(data.app)
app.command(cls=WorkersCommand)(rollout)
app.command("eval", cls=WorkersCommand)(evaluate)
app.command()(advantages)
app.command()(stats)
app.command()(verify)
app.command()(sft)
app.command()(train)


def main() -> None:
    """Entry point of the console script.

    Bad input, or an extra that is missing, is one line and exit code 2. A run that failed, a file that turns out to be
    damaged, or a disk that refused, is one line and exit code 1. Anything else is a fault of the program: a traceback
    and exit code 1. Whatever is printed has secrets removed (`hgpo_envs.secrets`).
    """
    sys.stdout, sys.stderr = RedactedStream(sys.stdout), RedactedStream(sys.stderr)
    redact_logging()
    try:
        app()
    except InputError as error:
        _fail(error, str(error), 2)
    except RolloutError as error:
        _fail(error, str(error), 1)
    except ModuleNotFoundError as error:
        if error.name not in TRAINING:
            _crash(error)
        _fail(error, f"this needs {error.name}: pip install 'hgpo[train]'", 2)
    except _unreadable() as error:
        _fail(error, f"a step table cannot be read: {error}; `hgpo verify` finds the damaged file", 1)
    except OSError as error:
        line = _disk_line(error)
        if line is None:
            _crash(error)
        _fail(error, line, 1)
    except Exception as error:  # noqa: BLE001 - printed whole, without secrets
        _crash(error)


def _fail(error: BaseException, line: str, code: int) -> NoReturn:
    """Prints an error in one line, and what was noted of it: for example, how many groups could not be committed."""
    for text in (f"error: {line}", *getattr(error, "__notes__", ())):
        print(" ".join(redact(text).split()), file=sys.stderr)
    sys.exit(code)


def _unreadable() -> tuple[type[BaseException], ...]:
    """What Polars raises for damaged files, if it is loaded: asked only once something was raised."""
    polars = sys.modules.get("polars")
    return (polars.exceptions.ComputeError, polars.exceptions.PanicException) if polars else ()


def _crash(error: BaseException) -> NoReturn:
    """Prints a traceback, without the values of local variables and without secrets."""
    print(redact("".join(traceback.format_exception(error))), file=sys.stderr, end="")
    sys.exit(1)


_DISK: Final = {
    errno.ENOSPC: "free some space; the same command continues from what is committed",
    errno.EDQUOT: "free some of your quota; the same command continues from what is committed",
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`), or use another file system",
    errno.EROFS: "write to another place",
    errno.EACCES: "write to another place, or change who may write there",
    errno.EPERM: "write to another place, or change who may write there",
    errno.ENOTDIR: "a part of this path is a file; name another",
    errno.EISDIR: "this is a folder; name a file",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EMFILE: "too many files are open; use fewer --slots, or raise `ulimit -n`",
    errno.ENFILE: "too many files are open; use fewer --slots",
    errno.EIO: "the disk failed; look at its health, and run `hgpo verify`",
    errno.ESTALE: "the network file system lost this file; the same command continues from what is committed",
}
"""What a user can do about an error of the operating system."""


def _disk_line(error: OSError) -> str | None:
    """One line about a disk that refused; None for an error that is no disk's."""
    if error.errno is None or error.errno not in _DISK:
        return None
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return f"{where}{os.strerror(error.errno)}; {_DISK[error.errno]}"
