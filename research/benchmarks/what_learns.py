"""The study's earlier results: python -m research.benchmarks.what_learns FOLDER.

FOLDER has outputs of `hgpo learn-tabular` with the commands of research/docs/learning_tabular.md, one folder per
command. Their curves are kept in research/results, and `research.benchmarks.tables` writes the tables.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import polars as pl

from hgpo_research.tabular.learning import AGAIN
from hgpo_research.tabular.report import markdown_table, summary

RESULTS: Final = Path(__file__).parents[1] / "results"
FIGURES: Final = Path(__file__).parents[1] / "docs/figures"
CURVES: Final = RESULTS / "curves.parquet"
GRPO: Final = "grpo:cross_steps=false"
TWO: Final = "adaptive:discounted_grpo+shrinkage_gae"
"""What `adaptive` was in all runs but those with a third partner."""

RUNS: Final = {
    "textworld": ("TextWorld", "area"),
    "alfworld": ("ALFWorld", "area"),
    "webshop": ("WebShop", "area"),
    "text-rich": ("text_rich", "area"),
    "third-two-ways": ("two ways", "area"),
    "adam-1": ("TextWorld, Adam", "area"),
    "held-out-alfworld": ("ALFWorld, held out", "held_out"),
    "held-out-textworld": ("TextWorld, held out", "held_out"),
}
"""The runs of the table: title, and what is compared."""

DEPTHS: Final = range(5)


def keep(folder: Path) -> None:
    """Keep the curves of runs, beside those of other runs that are kept."""
    found = sorted(folder.glob("*/curves.parquet"))
    parts = [
        pl.read_parquet(path, glob=False).select(
            pl.lit(path.parent.name).alias("run"), pl.all()
        )
        for path in found
    ]
    new = [path.parent.name for path in found]
    others = pl.read_parquet(CURVES, glob=False).filter(~pl.col("run").is_in(new))
    pl.concat([others, *parts], how="diagonal").write_parquet(
        CURVES, compression_level=19
    )


def kept(run: str) -> pl.DataFrame:
    """Return the kept summary of a run, one row per estimator; its differences are from GRPO."""
    rows = pl.read_parquet(CURVES, glob=False).filter(run=run)
    rows = rows.select(
        column.name for column in rows if column.null_count() < rows.height
    )
    return summary(rows)


def earlier() -> str:
    """Return the differences from GRPO of the earlier comparisons as Markdown, in points."""
    columns = {}
    for run, (title, measure) in RUNS.items():
        name = f"{measure}_difference"
        found = {}
        for row in kept(run).iter_rows(named=True):
            estimator = row["estimator"].replace(":mode=mean_norm", "")
            if estimator == "adaptive" and not run.startswith("third"):
                estimator = TWO
            found[estimator] = _points(row[name], row[f"{name}_half"])
        columns[title] = found
    names = dict.fromkeys(
        name for found in columns.values() for name in found if name != GRPO
    )
    rows = [
        [name, *(found.get(name, "") for found in columns.values())] for name in names
    ]
    return markdown_table(["estimator", *columns], rows)


def history() -> str:
    """Return the area that deeper contexts win over K = 0, by what the policy reads, as Markdown."""
    first = f"{_hgpo(0)}{AGAIN}"
    others = [first, *(_hgpo(depth) for depth in DEPTHS if depth), GRPO, "oracle"]
    rows = []
    for reads in DEPTHS:
        found = {
            row["estimator"]: row
            for row in kept(f"levers-{reads}").iter_rows(named=True)
        }
        cells = [
            _points(found[name]["area_difference"], found[name]["area_difference_half"])
            for name in others
        ]
        rows.append([str(reads), f"{100 * found[_hgpo(0)]['area']:.1f}", *cells])
    depths = [f"K = {depth}" for depth in DEPTHS if depth]
    return markdown_table(
        ["m", "K = 0", "K = 0 again", *depths, "GRPO", "oracle"], rows
    )


def _points(value: float, half: float) -> str:
    return f"{100 * value:+.1f} ± {100 * half:.1f}"


def _hgpo(depth: int) -> str:
    return f"hgpo:history_length={depth}:mode=mean_norm"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Keep outputs of hgpo learn-tabular in research/results."
    )
    parser.add_argument(
        "folder", type=Path, help="folder of outputs of hgpo learn-tabular"
    )
    keep(parser.parse_args().folder)
