"""Errors and warnings of `hgpo train` and `hgpo sft`, each printed as one line."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def exit_on_training_errors(again: str) -> Iterator[None]:
    """Print errors that end a run early and warnings as one line each.

    The exit code is 130 after Ctrl-C, and 1 after too many failures or an error of the disk.

    Args:
        again: The command that resumes the run.

    Raises:
        typer.Exit: An error ended the run.
    """
    from hgpo_train.rollout.failures import RolloutError

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show
            yield
    except KeyboardInterrupt:
        _print(f"Interrupted. Nothing committed is lost; resume with: {again}")
        raise typer.Exit(130) from None
    except RolloutError as error:
        _print(f"stopped: {error}. Nothing committed is lost; resume with: {again}")
        raise typer.Exit(1) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _print(f"stopped: {where}{error.strerror or error}. Nothing committed is lost; resume with: {again}")
        raise typer.Exit(1) from None


def _show(message: Warning | str, *_: object, **__: object) -> None:
    """Replace `warnings.showwarning`, which also prints a line of source code."""
    _print(f"warning: {message}")


def _print(line: str) -> None:
    print(" ".join(line.split()), file=sys.stderr)
