"""Tables and pictures of learning curves, with intervals over seeds.

Seeds are independent: the 95% intervals are mean ± t · s / √n of the seeds' numbers. Differences are those of equal
seeds, which begin with the same policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_train.resampling import LEVEL, student_quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import altair as alt

NUMBERS: Final = (
    "final",
    "area",
    "final_difference",
    "area_difference",
    "held_out",
    "held_out_difference",
)
"""The numbers of `summary` that are shown, if they are known."""

_WIDTH: Final = 420


def half_width(count: int) -> float:
    """Return the factor of a standard deviation of some numbers that gives half of the interval of their mean."""
    return (
        float("nan")
        if count < 2
        else student_quantile((1 + LEVEL) / 2, count - 1) / count**0.5
    )


def with_halves(names: Iterable[str], width: float) -> list[pl.Expr]:
    """Return the means of columns, then half of their intervals, `<name>_half`; `width` is of `half_width`."""
    columns = pl.col(list(names))
    return [
        columns.mean(),
        (columns.std() * width).name.suffix("_half"),
    ]


def summary(curves: pl.DataFrame) -> pl.DataFrame:
    """Return final success and the mean over iterations, and how these differ from the first estimator's.

    Args:
        curves: Rows of `estimator`, `seed`, `iteration`, `success` and maybe `held_out`.

    Returns:
        One row per estimator: `start`; `final`, `area`, `held_out` if it is known, and their differences from the
        first estimator, `<name>_difference`; with half of their intervals, `<name>_half`. Shares of 1.
    """
    success = pl.col("success")
    measured = {"final": success.last(), "area": success.mean()}
    if "held_out" in curves.columns:
        measured["held_out"] = pl.col("held_out").last()
    by_seed = (
        curves.sort("iteration", maintain_order=True)
        .group_by("estimator", "seed", maintain_order=True)
        .agg(start=success.first(), **measured)
    )
    # Differences are those of equal seeds, which begin with the same policy.
    first = by_seed.filter(estimator=by_seed["estimator"][0]).select(
        "seed", pl.col(measured).name.prefix("first_")
    )
    differences = {
        f"{name}_difference": pl.col(name) - pl.col(f"first_{name}")
        for name in measured
    }
    return (
        by_seed.join(first, on="seed", how="left", maintain_order="left")
        .with_columns(**differences)
        .group_by("estimator", maintain_order=True)
        .agg(
            pl.len().alias("seeds"),
            pl.col("start").mean(),
            *with_halves(
                [*measured, *differences],
                half_width(first.height),
            ),
        )
    )


def metrics_of(table: pl.DataFrame) -> list[str]:
    """Return the metrics of adaptive methods that are shown: the weights."""
    return [name for name in table.columns if name.startswith("weight")]


def metrics_summary(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return the mean metrics of adaptive methods in four parts of their updates, with half of their intervals.

    Args:
        metrics: Rows of `estimator`, `tasks`, `seed`, `iteration` and weights.
    """
    names = metrics_of(metrics)
    iteration = pl.col("iteration")
    count = int(str(metrics["iteration"].max())) + 1
    # Means of each quarter of the updates by seed, and then their intervals over seeds.
    by_seed = metrics.group_by(
        "estimator",
        (iteration * 4 // count).alias("part"),
        "seed",
        maintain_order=True,
    ).agg(
        pl.col(names).mean(),
        low=iteration.min(),
        high=iteration.max(),
    )
    updates = pl.format("{}–{}", pl.col("low").first(), pl.col("high").first())
    return by_seed.group_by("estimator", "part", maintain_order=True).agg(
        updates.alias("updates"),
        *with_halves(names, half_width(metrics["seed"].n_unique())),
    )


def curves_chart(curves: pl.DataFrame) -> alt.TopLevelMixin:
    """Return a chart of mean success by iteration, with bands of 95% over seeds."""
    import altair as alt

    width = half_width(curves["seed"].n_unique())
    rows = curves.group_by("estimator", "iteration", maintain_order=True).agg(
        pl.col("success").mean(),
        (pl.col("success").std().fill_nan(None) * width).alias("half"),
    )
    rows = rows.with_columns(
        low=pl.col("success") - pl.col("half"),
        high=pl.col("success") + pl.col("half"),
    )
    names = rows["estimator"].unique(maintain_order=True).to_list()
    scale = alt.Scale(domain=names, scheme="tableau20")
    base = alt.Chart(alt.InlineData(values=rows.to_dicts())).encode(
        x=alt.X(
            "iteration:Q",
            title="updates",
            axis=alt.Axis(tickMinStep=1),
        ),
        color=alt.Color(
            "estimator:N",
            scale=scale,
            legend=alt.Legend(title=None, symbolOpacity=1),
        ),
    )
    percent = alt.Axis(format="%")
    # Bands below the lines, clipped at 100%.
    bands = base.mark_area(opacity=0.15).encode(
        y=alt.Y(
            "low:Q",
            title="success",
            axis=percent,
            scale=alt.Scale(domainMax=1.0, clamp=True),
        ),
        y2="high:Q",
    )
    lines = base.mark_line().encode(
        y="success:Q",
        tooltip=["estimator:N", "iteration:Q", "success:Q"],
    )
    return alt.layer(bands, lines).properties(width=_WIDTH, height=_WIDTH * 3 // 4)


def shown(
    table: pl.DataFrame, keys: Sequence[str], names: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Return the titles and rows of a summary: keys, then numbers in percent with half of their 95% intervals.

    Args:
        table: Numbers, and half of their intervals as `<name>_half`.
        keys: The columns that name a row.
        names: The numbers; those that the table does not have are left out.
    """
    names = [name for name in names if name in table.columns]
    rows = []
    for row in table.iter_rows(named=True):
        cells = [str(row[key]) for key in keys]
        for name in names:
            value = row[name]
            half = row[f"{name}_half"]
            # Differences have a sign, which says who is better.
            sign = "+" if name.endswith("difference") else ""
            text = "-" if value is None else f"{100 * value:{sign}.2f}"
            cells.append(
                text
                if half is None or not np.isfinite(half)
                else f"{text} ± {100 * half:.2f}"
            )
        rows.append(cells)
    return [name.replace("_", " ") for name in (*keys, *names)], rows


def markdown(table: pl.DataFrame, keys: Sequence[str], names: Sequence[str]) -> str:
    """Return a summary as a table of Markdown. The arguments are those of `shown`."""
    return markdown_table(*shown(table, keys, names))


def markdown_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    rule: str | None = None,
) -> str:
    """Return a table of Markdown; `rule` is the line below the titles, which aligns columns."""
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (titles, *rows))
    return "\n".join([head, rule or "|---" * len(titles) + "|", *lines])
