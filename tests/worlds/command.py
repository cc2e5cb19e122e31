"""The `hgpo` command: all its commands, one in this process, and one as a separate process; and other programs."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App, Argument

import hgpo_envs
from hgpo_train.cli import app, main

ROOT = Path(hgpo_envs.__file__).parent.parent
DOORS = [
    "rollout",
    "--env",
    "doors_env:HGPO-Test/Doors-v0",
    "--env-option",
    "count=400",
    "--max-steps",
    "20",
]


def every_command() -> dict[tuple[str, ...], App]:
    """Return every command and group of the command line, by the words that name it."""
    whole = app.application()
    return {(): whole, **dict(app.every_command(whole))}


def arguments_of(command: App) -> list[Argument]:
    """Return the arguments and options of a command, those in dataclasses among them; none of a group."""
    if command.default_command is None:
        return []
    return [
        argument
        for argument in command.assemble_argument_collection()
        if argument.name != "*"
    ]


def invoke(*arguments: object) -> str:
    """Run a command in this process, raise what it raises, and return its output and errors."""
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as printed,
        redirect_stderr(printed),
    ):
        patch.setenv("COLUMNS", "160")
        app.run([str(argument) for argument in arguments])
    return printed.getvalue()


def outcome(*arguments: object, typed: str = "", **variables: str) -> tuple[int, str]:
    """Run a command in this process with a text as standard input: its exit status and all that it printed."""
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as printed,
        redirect_stderr(printed),
    ):
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["hgpo", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as end:
            main()
    return end.value.code or 0, printed.getvalue()


def environment(*folders: Path, **more: str) -> dict[str, str]:
    """Return environment variables with which a process finds this checkout, `tests/worlds` and further folders."""
    paths = map(str, (ROOT, ROOT / "datasets", Path(__file__).parent, *folders))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "COLUMNS": "200",
        **more,
    }


def python(
    code: str, *arguments: object, env: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess:
    """Run code in a separate process, to its end."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command,
        env=env or environment(),
        capture_output=True,
        text=True,
        check=False,
        **more,
    )


MAIN = "from hgpo_train.cli import main; main()"


def hgpo(*arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Start the command."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        env=environment(**variables),
        **pipes,
    )


def finished(*arguments: object, **variables: str) -> tuple[int, str, str]:
    """Run the command in a separate process and return its exit status, output and errors."""
    process = hgpo(*arguments, **variables)
    out, errors = process.communicate(timeout=120)
    return process.returncode, out, errors
