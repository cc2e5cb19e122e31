"""The `hgpo` command: all its commands, one in this process, and one as a separate process; and other programs."""

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


def environment(*folders: Path, **more: str) -> dict[str, str]:
    """Return environment variables with which a process finds this checkout, `tests/worlds` and further folders."""
    paths = map(str, (ROOT, ROOT / "datasets", Path(__file__).parent, *folders))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", **more}


def python(
    code: str, *arguments: object, env: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess:
    """Run code in a separate process, to its end."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=env or environment(), capture_output=True, text=True, check=False, **more)


MAIN = "from hgpo_train.cli import main; main()"


def hgpo(*arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Start the command."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", MAIN, *map(str, arguments)], env=environment(**variables), **pipes)


def finished(*arguments: object, **variables: str) -> tuple[int, str, str]:
    """Run the command in a separate process and return its exit status, output and errors."""
    process = hgpo(*arguments, **variables)
    out, errors = process.communicate(timeout=120)
    return process.returncode, out, errors
