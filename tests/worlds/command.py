"""The `hgpo` command: all its commands, one in this process, and one as a separate process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

import hgpo_envs
from hgpo_train.cli import app

ROOT = Path(hgpo_envs.__file__).parent.parent
DOORS = ["rollout", "--env", "doors_env:HGPO-Test/Doors-v0", "--env-option", "count=400", "--max-steps", "20"]


def every_command() -> dict[tuple[str, ...], Any]:
    """Return every command and group of the command line, by the words that name it."""
    return dict(_commands(get_command(app)))


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from _commands(command.load() if hasattr(command, "load") else command, (*path, name))


def invoke(*arguments: object) -> str:
    """Run a command in this process, raise what it raises, and return its output."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
    if done.exception:
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def hgpo(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    paths = [str(ROOT), str(ROOT / "datasets"), str(Path(__file__).parent)]
    return subprocess.Popen(
        [sys.executable, "-c", "from hgpo_train.cli import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
