"""The study's tables of the arena: python -m research.benchmarks.arena FOLDER keeps the results of `hgpo arena`."""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import Final

import polars as pl

from hgpo_research.arena.arena import read
from hgpo_research.arena.page import gaps_of, prediction_rows, table, titles
from hgpo_research.arena.prediction import predictions
from hgpo_research.arena.questions import answers
from hgpo_research.arena.ranking import SETTINGS
from hgpo_research.tabular.report import markdown_table

RESULTS: Final = Path(__file__).parents[1] / "results"


@cache
def kept(kind: str = "results") -> pl.DataFrame:
    """Return the kept `results` or `costs`."""
    return pl.read_parquet(RESULTS / f"arena_{kind}.parquet", glob=False)


def ranking() -> str:
    """Return the arena's ranking as Markdown."""
    gaps = gaps_of(kept())
    rows = []
    for row in table(kept(), kept("costs"), gaps):
        name = (
            f"{row['estimator']} ({row['mark']})" if row["mark"] else row["estimator"]
        )
        # Intervals over worlds are on the arena's page.
        rows.append([name, *(_text(cell | {"note": ""}) for cell in row["cells"])])
    return markdown_table(titles(kept(), gaps), rows)


def prediction() -> str:
    """Return what predicts learning as Markdown."""
    found = predictions(kept())
    settings = [
        f"area, {SETTINGS[name]}"
        for name in found["setting"].unique(maintain_order=True)
    ]
    rows = [row for row in prediction_rows(found) if row["stage"] is None]
    cells = [[row["measure"], *map(_text, row["cells"])] for row in rows]
    return markdown_table(["measure", *settings], cells)


def questions() -> str:
    """Return the planned questions with their verdicts as Markdown."""
    return markdown_table(
        ["question", "verdict", "numbers"], [list(each) for each in answers(kept())]
    )


def _text(cell: dict[str, object]) -> str:
    """Return a cell; what is significant is bold."""
    text = str(cell.get("text", "–"))
    note = f" ({cell['note']})" if cell.get("note") else ""
    return f"**{text}**{note}" if cell.get("sign") else f"{text}{note}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Keep the results of hgpo arena in research/results."
    )
    parser.add_argument("folder", type=Path, help="the arena's folder")
    folder = parser.parse_args().folder
    for kind in ("results", "costs"):
        read(folder, kind).write_parquet(
            RESULTS / f"arena_{kind}.parquet", compression_level=19
        )
