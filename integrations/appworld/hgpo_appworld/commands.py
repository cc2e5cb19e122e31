"""The commands `hgpo data install|fetch|synth appworld`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def install_appworld(
    *,
    into: Annotated[Path | None, Parameter(("--into", "--out"))] = None,
    python: str = sys.executable,
) -> None:
    """Install AppWorld into a virtual environment of its own. By using it you accept its licence, which is printed.

    Args:
        into: A new folder for the environment. Default: ~/.local/share/hgpo/appworld.
        python: The interpreter to make it with: Python 3.11 to 3.13.
    """
    from hgpo_appworld.data.install import VARIABLE, install

    made = install(into, python, _tell)
    name = f"export {VARIABLE}={made} && " if into else ""
    print(
        f"AppWorld is installed for {made}. Next: {name}hgpo data synth appworld --out appworld"
    )


def fetch_appworld(
    *,
    into: Annotated[Path, Parameter(("--into", "--out"))] = Path("appworld"),
    python: str | None = None,
) -> None:
    """Download AppWorld's official tasks with AppWorld itself. You accept its licence, which is printed.

    Args:
        into: A new folder, AppWorld's root.
        python: AppWorld's interpreter. Default: that of `hgpo data install appworld`.
    """
    from hgpo_appworld.data.install import default_python
    from hgpo_appworld.data.official import fetch

    counts = fetch(into, python or str(default_python()), _tell)
    tasks = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    print(f'{tasks} tasks in {into}. Next: gym.make("HGPO/AppWorld-v0", data="{into}")')


def synth_appworld(
    *,
    out: Annotated[Path, Parameter(("--out", "--into"))],
    python: str | None = None,
    seed: int = 0,
    tasks: int = 48,
) -> None:
    """Generate a small AppWorld: people, their data in seven apps, and tasks with evaluations and solutions.

    The files are derived from AppWorld's encrypted apps. Do not publish them.

    Args:
        out: A new folder, AppWorld's root.
        python: AppWorld's interpreter. Default: that of `hgpo data install appworld`.
        seed: Seed of the world and its tasks.
        tasks: Number of tasks, three a scenario; five eighths train, the rest dev and test_normal.
    """
    from hgpo_appworld.data.install import default_python
    from hgpo_appworld.generation.root import write_root
    from hgpo_train.cli.display import ProgressBars

    interpreter = python or str(default_python())
    with ProgressBars() as bars:
        counts = write_root(out, interpreter, seed, tasks, bars.show)
    made = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    print(f'{made} tasks in {out}. Next: gym.make("HGPO/AppWorld-v0", data="{out}")')


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
