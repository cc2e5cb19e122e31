"""The study's tables and figures: python -m research.benchmarks.what_learns [FOLDER].

FOLDER has the outputs of `hgpo learn-tabular` with the commands of research/docs/learning_tabular.md, one folder per
command. Their curves, gains and weights are kept in research/results, from which the figures in research/docs/figures
are drawn; `research.benchmarks.tables` writes the tables.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_research.tabular.gain import gains_chart
from hgpo_research.tabular.learning import AGAIN
from hgpo_research.tabular.report import (
    curves_chart,
    half_width,
    markdown,
    markdown_table,
    summary,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import altair as alt

RESULTS: Final = Path(__file__).parents[1] / "results"
FIGURES: Final = Path(__file__).parents[1] / "docs/figures"
GRPO: Final = "grpo:cross_steps=false"
BENCHMARKS: Final = {
    "textworld": "TextWorld",
    "alfworld": "ALFWorld",
    "webshop": "WebShop",
    "text-rich": "WebShop, text_rich",
}
"""The titles of the runs of the comparison."""

FURTHER: Final = {
    "adam-1": "TextWorld, Adam",
    "held-out-alfworld": "ALFWorld, shared logits",
    "held-out-textworld": "TextWorld, shared logits",
}
"""The titles of the runs with other updates and policies."""

THIRD: Final = {
    "third-two-ways": "two ways",
    "third-alfworld": "ALFWorld",
    "third-webshop": "WebShop",
    "third-text-rich": "WebShop, text_rich",
}
"""The titles of the runs with undiscounted GRPO as a third partner of `adaptive`."""

TWO: Final = "adaptive:discounted_grpo+shrinkage_gae"

DEPTHS: Final = range(5)


def keep(folder: Path) -> None:
    """Keep the tables of runs, beside those of other runs that are kept."""
    for name in ("curves", "gains", "metrics"):
        found = sorted(folder.glob(f"*/{name}.parquet"))
        parts = [
            pl.read_parquet(path, glob=False).select(pl.lit(path.parent.name).alias("run"), pl.all()) for path in found
        ]
        if parts:
            target = RESULTS / f"{name}.parquet"
            new = [path.parent.name for path in found]
            others = pl.read_parquet(target, glob=False).filter(~pl.col("run").is_in(new))
            pl.concat([others, *parts], how="diagonal").write_parquet(target, compression_level=19)


def kept(name: str, run: str) -> pl.DataFrame:
    """Return the kept curves, gains or metrics of a run; empty if there are none."""
    rows = pl.read_parquet(RESULTS / f"{name}.parquet", glob=False).filter(run=run)
    return rows.select(column.name for column in rows if column.null_count() < rows.height)


def runs() -> list[str]:
    """Return the runs of the comparison that are kept."""
    found = set(pl.read_parquet(RESULTS / "curves.parquet", glob=False)["run"])
    return [name for name in BENCHMARKS if name in found]


def comparison() -> str:
    """Return the differences from GRPO on all benchmarks as Markdown, in points of success."""
    return _differences(
        {run: BENCHMARKS[run] for run in runs()},
        ["final", "final_difference", "area_difference"],
    )


def further() -> str:
    """Return the same of runs with Adam, and with held-out tasks."""
    names = [
        "final_difference",
        "area_difference",
        "held_out",
        "held_out_difference",
    ]
    return _differences(FURTHER, names)


def third() -> str:
    """Return the same of `adaptive` with two and three partners, and the differences of three from two."""
    names = ["final_difference", "area_difference"]
    against_two = _differences(THIRD, names, TWO, ["adaptive"]).replace("adaptive", "three partners − two")
    return _differences(THIRD, names) + "\n" + "\n".join(against_two.splitlines()[2:])


def _differences(
    titles: Mapping[str, str],
    names: Sequence[str],
    first: str = GRPO,
    shown: Sequence[str] | None = None,
) -> str:
    parts = []
    for run, title in titles.items():
        curves = kept("curves", run).sort(pl.col("estimator") != first, maintain_order=True)
        rows = summary(curves).filter(pl.col("estimator") != first)
        rows = rows if shown is None else rows.filter(pl.col("estimator").is_in(shown))
        parts.append(rows.select(pl.lit(title).alias("benchmark"), pl.all()))
    table = pl.concat(parts, how="diagonal")
    table = table.with_columns(pl.col("estimator").str.replace(":mode=mean_norm", "", literal=True))
    return markdown(table, ["benchmark", "estimator"], names)


def weights() -> str:
    """Return the weight of bootstrapping in the last quarter of the updates, as Markdown."""
    cells = []
    for run in runs():
        rows = kept("metrics", run)
        late = rows.filter(pl.col("iteration") * 4 >= 3 * (pl.col("iteration").max() + 1))
        by_seed = late.group_by("seed").agg(pl.col("weight").mean())["weight"]
        mean, half = (float(str(each)) for each in (by_seed.mean(), by_seed.std()))
        cells.append(
            [
                BENCHMARKS[run],
                f"{mean:.2f} ± {half * half_width(len(by_seed)):.2f}",
            ]
        )
    return markdown_table(
        [
            "benchmark",
            "weight of bootstrapping, last quarter of the updates",
        ],
        cells,
    )


def history() -> str:
    """Return the area that deeper contexts win over K = 0, by what the policy reads, as Markdown."""
    rows = []
    for reads in DEPTHS:
        curves = kept("curves", f"levers-{reads}")
        if curves.height:
            found = {row["estimator"]: row for row in summary(curves).iter_rows(named=True)}
            cells = [f"{100 * found[_hgpo(0)]['area']:.1f}"]
            for other in [
                _hgpo(0) + AGAIN,
                *(_hgpo(depth) for depth in DEPTHS if depth),
                GRPO,
                "oracle",
            ]:
                row = found[other]
                cells.append(f"{100 * row['area_difference']:+.1f} ± {100 * row['area_difference_half']:.1f}")
            rows.append([str(reads), *cells])
    head = [
        "m",
        "K = 0",
        "K = 0 again",
        *(f"K = {depth}" for depth in DEPTHS if depth),
        "GRPO",
        "oracle",
    ]
    return markdown_table(head, rows)


def _hgpo(depth: int) -> str:
    return f"hgpo:history_length={depth}:mode=mean_norm"


def history_chart() -> alt.TopLevelMixin:
    """Return a chart of the gain of one batch over m and K, relative to the true advantages' own."""
    import altair as alt

    rows = []
    for reads in DEPTHS:
        gains = kept("gains", f"levers-{reads}")
        for (iteration, name), part in gains.group_by("iteration", "estimator", maintain_order=True):
            depth = [each for each in DEPTHS if _hgpo(each) == name]
            mean = part["relative"].mean()
            rows += [{"updates": iteration, "m": reads, "K": each, "gain": mean} for each in depth]
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=alt.X("K:O"), y=alt.Y("m:O"))
    shade = alt.Color(
        "gain:Q",
        title="gain",
        scale=alt.Scale(scheme="blues", domain=[0.2, 0.8]),
        legend=None,
    )
    layers = alt.layer(
        base.mark_rect().encode(color=shade),
        base.mark_text().encode(text=alt.Text("gain:Q", format=".2f")),
    )
    chart: alt.TopLevelMixin = layers.properties(width=180, height=180).facet(column=alt.Column("updates:O"))
    return chart


def draw() -> None:
    """Draw the figures of the kept results."""
    from hgpo_train.analysis.charts import save_chart

    FIGURES.mkdir(exist_ok=True)
    for run in runs():
        save_chart(curves_chart(kept("curves", run)), FIGURES / f"curves-{run}.svg")
        gains = kept("gains", run)
        if gains.height:
            save_chart(
                gains_chart(gains, summary(kept("curves", run))),
                FIGURES / f"gains-{run}.svg",
            )
    if kept("gains", "levers-0").height:
        save_chart(history_chart(), FIGURES / "history.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the figures of research/docs/figures from research/results.")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="outputs of hgpo learn-tabular, kept first",
    )
    chosen = parser.parse_args().folder
    if chosen is not None:
        keep(chosen)
    draw()
