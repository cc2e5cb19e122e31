"""Draw the pictures of README.md.

python docs/pictures.py     quickstart.svg, the output of `hgpo quickstart`; learning.svg, from the kept learning curves
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import altair as alt
import polars as pl
from rich.console import Console

from benchmarks.learning_figures import curves_chart
from benchmarks.readme import figures
from hgpo_train.cli.quickstart import show
from hgpo_train.cli.quickstart_run import quickstart

DOCS: Final = Path(__file__).parent
WORLDS: Final = {"alfworld": "ALFWorld", "webshop": "WebShop"}


def main() -> None:
    """Draw both pictures."""
    draw_quickstart(DOCS / "quickstart.svg")
    draw_learning(DOCS / "learning.svg")


def draw_quickstart(target: Path) -> None:
    """Run the quick start in a temporary folder and store its output as an SVG."""
    with tempfile.TemporaryDirectory() as folder, Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=96, file=nowhere)
        found = quickstart(Path(folder) / "quickstart")
        show(console, found, Path("runs/quickstart"))
        console.save_svg(str(target), title="hgpo quickstart")


def draw_learning(target: Path) -> None:
    """Draw success over environment steps, mean and range of the seeds, from the kept results."""
    charts = [
        curves_chart(pl.DataFrame(figures(f"learning_{name}")["curves"]), title).properties(width=330, height=240)
        for name, title in WORLDS.items()
    ]
    row = alt.hconcat(*charts)
    row.configure(background="white").configure_legend(orient="bottom").save(str(target))


if __name__ == "__main__":
    main()
