"""Draws the README's picture: what `hgpo quickstart` prints, as it printed it.

python docs/pictures.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from hgpo_train.cli.quickstart import show
from hgpo_train.cli.quickstart_run import quickstart

TARGET = Path(__file__).parent / "quickstart.svg"


def main() -> None:
    """Runs the quick start in a folder of its own and keeps its page as an SVG."""
    with tempfile.TemporaryDirectory() as folder, Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=96, file=nowhere)
        found = quickstart(Path(folder) / "quickstart")
        show(console, found, Path("runs/quickstart"))
        console.save_svg(str(TARGET), title="hgpo quickstart")


if __name__ == "__main__":
    main()
