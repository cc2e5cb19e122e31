"""GAGPO on WebShop: python -m research.benchmarks.gagpo [FOLDER].

FOLDER has the outputs of the commands of research/docs/gagpo.md, one folder per command. The areas of their curves are
kept in research/results/gagpo.parquet, from which the picture is drawn; `research.benchmarks.tables` writes the tables.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_research.tabular.report import half_width, markdown_table
from hgpo_train.advantages import estimator
from hgpo_train.advantages.estimators.gagpo import gagpo
from hgpo_train.advantages.estimators.grpo import with_episode
from hgpo_train.resampling import student_quantile
from research.benchmarks.what_learns import FIGURES, GRPO, RESULTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import altair as alt

    from hgpo_research.arrays import Floats

KEPT: Final = RESULTS / "gagpo.parquet"
RUNS: Final = ("text", "reads", "rich", "text-score", "reads-score", "alfworld")
ZERO: Final = "gagpo:gae_lambda=0"
DEFAULT: Final = "gagpo:gae_lambda=0.95"
VARIANT: Final = "research.benchmarks.gagpo:variant"
CHANGED: Final = (
    f"{ZERO}:normalize=batch",
    f"{VARIANT}:gae_lambda=0:past=2",
    f"{VARIANT}:gae_lambda=0:past=14",
    f"{VARIANT}:gae_lambda=0:episode_weight=1",
    f"{ZERO}:gamma=1",
)


def contexts(parameters: Any) -> Sequence[str]:  # noqa: ANN401 - of a class that is made of the signature below
    """Return the hashes of a state with the last states and actions before it."""
    return [f"context_hash_{depth}" for depth in range(parameters.past + 1)]


@estimator("gagpo_variant", reads=contexts, scope="batch")
def variant(
    steps: pl.LazyFrame,
    *,
    past: int = 0,
    episode_weight: float = 0.0,
    gamma: float = 0.95,
    gae_lambda: float = 0.95,
) -> pl.LazyFrame:
    """GAGPO whose states are states with `past` steps before them, plus the advantage of GRPO."""
    deepest = pl.coalesce(
        f"context_hash_{depth}" for depth in reversed(range(past + 1))
    )
    steps = with_episode(steps.with_columns(state_hash=deepest), cross_steps=False)
    steps = gagpo.function(steps, gamma=gamma, gae_lambda=gae_lambda)
    return steps.with_columns(
        advantage=pl.col("advantage") + episode_weight * pl.col("episode")
    )


def keep(folder: Path) -> None:
    """Keep the differences of areas from GRPO's, in percent."""
    parts = []
    for path in sorted(folder.glob("*/curves.parquet")):
        curves = pl.read_parquet(path, glob=False)
        rows = curves.group_by("estimator", "seed", maintain_order=True).agg(
            area=100 * pl.col("success").mean()
        )
        grpo = rows.filter(estimator=GRPO).select("seed", grpo="area")
        rows = rows.join(grpo, on="seed", maintain_order="left")
        run = path.parent.name.removesuffix("-parts")
        parts.append(
            rows.select(
                pl.lit(run).alias("run"),
                "estimator",
                "seed",
                pl.col("area") - pl.col("grpo"),
            )
        )
    # GRPO learns in every command, with the same random numbers.
    every = pl.concat(parts).unique(
        ["run", "estimator", "seed"], keep="first", maintain_order=True
    )
    every.write_parquet(KEPT, compression_level=19)


def kept() -> dict[tuple[str, ...], Floats]:
    """Return the differences of areas from GRPO's by run and estimator, of shape (seeds,)."""
    groups = pl.read_parquet(KEPT, glob=False).group_by(
        "run", "estimator", maintain_order=True
    )
    return {key: rows.sort("seed")["area"].to_numpy() for key, rows in groups}


def interval(differences: Floats) -> tuple[float, float]:
    """Return the mean and half of its 95% interval."""
    return float(differences.mean()), float(
        half_width(len(differences)) * differences.std(ddof=1)
    )


def shown(differences: Floats) -> str:
    """Return `interval` as text."""
    return "{:+.1f} ± {:.1f}".format(*interval(differences))


def areas() -> str:
    """Return the differences of areas from GRPO's as Markdown."""
    found = kept()
    rows = []
    for name in dict.fromkeys(name for _, name in found if name != GRPO):
        cells = [
            shown(found[run, name]) if (run, name) in found else "" for run in RUNS
        ]
        rows.append([name.removeprefix(f"{VARIANT}:"), *cells])
    return markdown_table(["estimator", *RUNS], rows)


def questions() -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Return the planned pairs of runs and estimators."""
    asked = []
    for run in ("text", "reads"):
        asked += [((run, name), (run, GRPO)) for name in (ZERO, DEFAULT)]
        asked += [((run, name), (run, ZERO)) for name in CHANGED]
        asked.append(((f"{run}-score", ZERO), (run, ZERO)))
    asked += [(("rich", name), ("rich", GRPO)) for name in (ZERO, DEFAULT)]
    asked += [((run, ZERO), ("text", ZERO)) for run in ("reads", "rich")]
    return asked


def verdicts() -> str:
    """Return the planned differences as Markdown, and which are significant."""
    found = kept()
    asked = questions()
    differences = [found[first] - found[second] for first, second in asked]
    rows = []
    for number, (pair, each, told) in enumerate(
        zip(asked, differences, holm(differences), strict=True), 1
    ):
        ends = [f"{run} {name.removeprefix(f'{VARIANT}:')}" for run, name in pair]
        rows.append(
            [f"{number}", " − ".join(ends), shown(each), "yes" if told else "no"]
        )
    return markdown_table(
        ["", "first − second, each from GRPO", "area", "significant"], rows
    )


def holm(differences: Sequence[Floats]) -> list[bool]:
    """Return which means differ from 0 by t tests with Holm's correction, at 5% for all."""
    ratios = [
        abs(each.mean()) / each.std(ddof=1) * len(each) ** 0.5 for each in differences
    ]
    significant = [False] * len(ratios)
    for rank, index in enumerate(np.argsort(ratios)[::-1].tolist()):
        level = 1.0 - 0.025 / (len(ratios) - rank)
        if ratios[index] <= student_quantile(level, len(differences[index]) - 1):
            break
        significant[index] = True
    return significant


def chart() -> alt.TopLevelMixin:
    """Return a chart of the differences from GRPO over λ, with 95% intervals."""
    import altair as alt

    rows = []
    for (run, name), differences in kept().items():
        value = name.removeprefix("gagpo:gae_lambda=")
        if run in RUNS[:3] and (
            name == "shrinkage_gae" or value.replace(".", "").isdecimal()
        ):
            mean, half = interval(differences)
            rows.append(
                {
                    "pages": run,
                    "λ": value,
                    "mean": mean,
                    "low": mean - half,
                    "high": mean + half,
                }
            )
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("λ:N", title="λ of gagpo", axis=alt.Axis(labelAngle=0)),
        xOffset="pages:N",
        color="pages:N",
    )
    bars = base.mark_rule(strokeWidth=2).encode(
        y=alt.Y("low:Q", title="area − GRPO, points"), y2="high:Q"
    )
    dots = base.mark_point(filled=True, size=50, opacity=1).encode(y="mean:Q")
    layers: alt.TopLevelMixin = alt.layer(bars, dots).properties(width=560, height=260)
    return layers


if __name__ == "__main__":
    from hgpo_train.analysis.charts import save_chart

    if sys.argv[1:]:
        keep(Path(sys.argv[1]))
    save_chart(chart(), FIGURES / "gagpo.svg")
