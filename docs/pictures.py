"""Draw the pictures of README.md.

python docs/pictures.py     quickstart.svg, the output of `hgpo quickstart`; from kept results learning.svg and
                            what_moves_numbers.svg
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
from hgpo_train.analysis.charts import protocols_chart, save_chart
from hgpo_train.cli.quickstart import show
from hgpo_train.cli.quickstart_run import quickstart

DOCS: Final = Path(__file__).parent
SHOWN: Final = ("random, ALFWorld", "tiny-alfworld, ALFWorld", "explorer, WebShop")
"""The policies in the picture of protocols."""
WORLDS: Final = {"alfworld": "ALFWorld", "webshop": "WebShop"}


def main() -> None:
    """Draw the pictures."""
    draw_quickstart(DOCS / "quickstart.svg")
    draw_learning(DOCS / "learning.svg")
    draw_protocols(DOCS / "what_moves_numbers.svg")


def draw_quickstart(target: Path) -> None:
    """Run the quick start in a temporary folder and store its output as an SVG."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Path("/dev/null").open("w") as nowhere,
    ):
        console = Console(record=True, width=96, file=nowhere)
        found = quickstart(Path(folder) / "quickstart")
        show(console, found, Path("runs/quickstart"))
        console.save_svg(str(target), title="hgpo quickstart")


def draw_learning(target: Path) -> None:
    """Draw success over environment steps, mean and range of the seeds, from the kept results."""
    charts = [
        curves_chart(
            pl.DataFrame(figures(f"learning_{name}")["curves"]), title
        ).properties(width=330, height=240)
        for name, title in WORLDS.items()
    ]
    row = alt.hconcat(*charts)
    row.configure(background="white").configure_legend(orient="bottom").save(
        str(target)
    )


def draw_protocols(target: Path) -> None:
    """Draw what each protocol adds to the numbers of three policies, from the kept results."""
    rows = []
    for title in SHOWN:
        found = figures("protocols")["policies"][title]
        rows += [
            each | {"policy": f"{title}, {found['success']:.0%}"}
            for each in found["effects"]
        ]
    save_chart(protocols_chart(pl.DataFrame(rows, infer_schema_length=None)), target)


if __name__ == "__main__":
    main()
