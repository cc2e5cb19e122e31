"""AppWorld's official data: tasks, base databases and API documentation, downloaded by AppWorld itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from hgpo_appworld.data.commands import run
from hgpo_appworld.data.install import LICENCE, own_folders
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.untrusted_files import writing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STORAGE: Final = "s3.us-west-2.amazonaws.com/appworld.dev"
"""Where AppWorld keeps its data."""


def fetch(into: Path, python: str, tell: Callable[[str], None]) -> dict[str, int]:
    """Run `appworld download data`.

    Args:
        into: The folder to create, which becomes AppWorld's root. A failed call leaves nothing.
        python: AppWorld's interpreter.
        tell: Called with each thing that is done.

    Returns:
        The number of tasks of each split.

    Raises:
        InputError: If the folder exists, or the download fails.
    """
    into = into.absolute()
    with writing(into), new_folder(into) as made:
        variables = {
            **os.environ,
            **own_folders(made),
            "APPWORLD_CACHE": str(made / ".cache"),
        }
        run(
            [python, "-c", "import appworld.download"],
            f"importing appworld in {python}",
            environment=variables,
        )
        tell(LICENCE)
        tell(
            "The official tasks are protected, too: do not publish rollouts of them, which hold their texts."
        )
        tell(f"downloading AppWorld's data from {STORAGE} (appworld download data)")
        command = [python, "-m", "appworld.cli", "download", "data"]
        try:
            printed = run(
                command, "appworld download data", environment=variables, folder=made
            )
        except InputError as error:
            raise InputError(f"{error}. {_without_network()}") from None
        lists = sorted((made / "data" / "datasets").glob("*.txt"))
        if not lists:  # it ends with the exit status 0 when the server refuses
            raise InputError(
                f"appworld download data failed: {one_line(printed, 300)}. {_without_network()}"
            )
        return {path.stem: len(path.read_text("utf-8").split()) for path in lists}


def _without_network() -> str:
    return (
        f"It needs {STORAGE}. Elsewhere, `appworld download data` makes the folder data, which you can copy; or make "
        "tasks with hgpo data synth appworld --out FOLDER"
    )
