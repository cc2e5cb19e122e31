"""Writes generated worlds: plans them here, and has AppWorld's interpreter write what was planned."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hgpo_appworld.data.commands import run
from hgpo_appworld.engine.process import variables
from hgpo_appworld.generation.plan import DEFAULT_TASKS, make_plan
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.untrusted_files import writing

if TYPE_CHECKING:
    from collections.abc import Callable

_SCRIPT: Final = Path(__file__).with_name("build_root.py")


def write_root(
    root: Path,
    python: str,
    seed: int = 0,
    tasks: int = DEFAULT_TASKS,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, int]:
    """Generate a world with tasks, in the form that AppWorld reads: its APPWORLD_ROOT.

    The same arguments give the same files, but for the bytes of SQLite's databases, whose content is the same.
    The files are derived from AppWorld's encrypted apps (their API documentation): do not publish them.

    Args:
        root: The folder to create. A failed call leaves nothing.
        python: AppWorld's interpreter.
        seed: Seed of the world and its tasks.
        tasks: The number of tasks; see `make_plan`.
        progress: Called with a stage, how much of it is done, and how much there is.

    Returns:
        The number of tasks of each split.

    Raises:
        InputError: If an argument is wrong, the folder exists, or AppWorld cannot write it.
    """
    plan = make_plan(seed, tasks).to_dict()
    tell = (lambda line: progress(*line)) if progress else None
    with (
        writing(root),
        new_folder(root) as made,
        tempfile.TemporaryDirectory(prefix="hgpo-appworld-") as scratch,
    ):
        # AppWorld takes paths with the word "memory" for databases in memory, so it gets a path of our own
        place = Path(scratch) / "root"
        place.symlink_to(made, target_is_directory=True)
        planned = Path(scratch) / "plan.json"
        planned.write_text(json.dumps(plan), "utf-8")
        command = [python, "-s", str(_SCRIPT), str(planned), str(place)]
        run(
            command,
            "writing the world",
            environment=variables(scratch),
            folder=Path(scratch),
            told=tell,
        )
    return {split: len(ids) for split, ids in plan["splits"].items()}
