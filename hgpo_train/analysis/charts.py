"""Charts of the statistics of a run and of protocols, for `--plot` and notebooks. Requires the extra `notebooks`.

Charts of levels are of `Statistics.intervals` (one row per level and statistic): dots are values, hollow ones are
decided by too few tasks for an interval, lines are 95% intervals, and grey ticks are what chance alone gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import altair as alt
import polars as pl
import vl_convert  # noqa: F401 - Altair needs it to write files

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_path
from hgpo_train.analysis.chunk_sums import ORACLE
from hgpo_train.analysis.definitions import DEFINITIONS

if TYPE_CHECKING:
    from pathlib import Path

FORMATS: Final = (".html", ".svg", ".png", ".json")
"""The endings of files that charts can be written to; .json is Vega-Lite."""

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

PROTOCOL_KINDS: Final = {
    "shift": "counted or played in another way: 95% interval over tasks",
    "spread": "drawn by chance: where 95% of numbers lie",
    "none": "cannot move it",
}
"""What the kinds of effects of protocols mean (`hgpo_train.evaluation.protocols.Effect`)."""

_WIDTH: Final = 420
_HEIGHT: Final = 220


def levels_chart(
    intervals: pl.DataFrame, statistic: str, *, by: str | None = None
) -> alt.LayerChart | alt.FacetChart:
    """Return a chart of one statistic by level.

    Args:
        intervals: `Statistics.intervals`.
        statistic: The statistic, such as ``shared``.
        by: The column that it was split by, which colours show, in the order of the table; the legend is above.
    """
    rows = intervals.filter(
        pl.col("statistic") == statistic, pl.col("value").is_not_null()
    )
    order = [
        *(
            level
            for level in rows["level"].unique(maintain_order=True)
            if level != ORACLE
        ),
        ORACLE,
    ]
    # Layers from the back: what chance gives, intervals, and values; the last are hollow, without an interval.
    base = alt.Chart(alt.InlineData(values=rows.to_dicts())).encode(
        x=alt.X(
            "level:N",
            sort=order,
            title="k, past states in the context",
            axis=alt.Axis(labelAngle=0),
        ),
        **(
            {}
            if by is None
            else _split(by, rows[by].unique(maintain_order=True).to_list())
        ),
    )
    shares = (
        alt.Tooltip(f"{name}:Q", format=".1%")
        for name in ("value", "low", "high", "chance")
    )
    tooltip: list[Any] = ["level:N", *([f"{by}:N"] if by else []), *shares]
    colour: dict[str, Any] = {} if by else {"color": COLOURS[0]}
    points = base.encode(
        y=alt.Y("value:Q", title=None, axis=alt.Axis(format="%")), tooltip=tooltip
    )
    point: dict[str, Any] = {"size": 60, "opacity": 1, "strokeWidth": 1.5, **colour}
    layers = [
        base.mark_tick(color="#9a9a9a", thickness=3, width=18).encode(
            y="chance:Q", color=alt.value("#9a9a9a")
        ),
        base.mark_rule(strokeWidth=2, **colour).encode(y="low:Q", y2="high:Q"),
        points.mark_point(filled=True, **point).transform_filter("datum.low !== null"),
        points.mark_point(**point).transform_filter("datum.low === null"),
    ]
    parts = {
        "lines: 95% intervals": True,
        "hollow: too few tasks decide for one": rows["low"].null_count() > 0,
    }
    parts |= {"grey: chance alone": rows["chance"].count() > 0}
    about = "; ".join(part for part, shown in parts.items() if shown)
    label = DEFINITIONS["levels"][statistic].label
    head = alt.TitleParams(
        label[:1].upper() + label[1:], subtitle=about, subtitleColor="#555"
    )
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=head)


def _split(by: str, values: list[Any]) -> dict[str, Any]:
    """Return the encodings of a column in its own order: colours with a legend, side by side."""
    scale = alt.Scale(
        domain=values,
        range=[COLOURS[number % len(COLOURS)] for number in range(len(values))],
    )
    legend = alt.Legend(title=by.replace("_", " "), orient="top", symbolType="circle")
    return {
        "color": alt.Color(f"{by}:N", scale=scale, legend=legend),
        "xOffset": alt.XOffset(f"{by}:N", scale=alt.Scale(domain=values)),
    }


def statistics_chart(
    intervals: pl.DataFrame, *, by: str | None = None
) -> alt.VConcatChart:
    """Return the page of `hgpo stats --plot`: shared contexts, differing histories, and what these explain."""
    charts = [
        levels_chart(intervals, name, by=by)
        for name in ("shared", "differing", "explained", "sign_disagreement")
    ]
    return alt.vconcat(charts[0] | charts[1], charts[2] | charts[3])


def protocols_chart(effects: pl.DataFrame) -> alt.FacetChart:
    """Return a chart of what protocols add to a policy's success, a dot and a bar each, and a column for each policy.

    Args:
        effects: One row per policy and protocol, with the column `policy` (a new line after each comma) and those of
            `hgpo_train.evaluation.protocols.Effect`. Effects that are not known are left out.
    """
    known = effects.filter(pl.col("effect").is_not_null())
    rows = known.with_columns(
        pl.col("effect", "low", "high") * 100, pl.col("kind").replace(PROTOCOL_KINDS)
    )
    names = rows["protocol"].unique(maintain_order=True).to_list()
    scale = alt.Scale(
        domain=list(PROTOCOL_KINDS.values()), range=[COLOURS[1], COLOURS[0], "#b0b0b0"]
    )
    legend = alt.Legend(orient="bottom", labelLimit=0, columns=1, symbolType="circle")
    base = alt.Chart(alt.InlineData(values=rows.to_dicts())).encode(
        y=alt.Y(
            "protocol:N", sort=names, title=None, axis=alt.Axis(grid=True, labelLimit=0)
        ),
        color=alt.Color("kind:N", scale=scale, title=None, legend=legend),
        tooltip=[
            "protocol:N",
            "sentence:N",
            "effect:Q",
            "low:Q",
            "high:Q",
            "note:N",
            "source:N",
        ],
    )
    # Layers from the back: the number that is moved, intervals, and effects.
    middle = {
        "x": alt.datum(0),
        "y": alt.value(0),
        "y2": alt.value("height"),
        "color": alt.value("#9a9a9a"),
    }
    zero = base.mark_rule().encode(**middle)
    bars = base.mark_rule(strokeWidth=3).encode(x="low:Q", x2="high:Q")
    # Most effects are small and a few are not: beyond 10 points the axis is logarithmic.
    near = alt.Scale(type="symlog", constant=10)
    axis = alt.Axis(values=[-30, -10, 0, 10, 30, 100])
    points = alt.X("effect:Q", title="points of success", scale=near, axis=axis)
    dots = base.mark_point(filled=True, size=50, opacity=1).encode(x=points)
    order = rows["policy"].unique(maintain_order=True).to_list()
    head = alt.Header(
        title=None, labelExpr="split(datum.value, ', ')", labelFontWeight="bold"
    )
    layers = alt.layer(zero, bars, dots).properties(
        width=_WIDTH // 2, height=alt.Step(18)
    )
    return layers.facet(column=alt.Column("policy:N", sort=order, header=head))


def check_chart_file(option: str, path: Path) -> None:
    """Raise an InputError that names the option if a chart cannot be written to a file of this name and folder."""
    if path.suffix not in FORMATS:
        raise InputError(
            f"{option} {path}: expected a file that ends in {', '.join(FORMATS)}"
        )
    if not path.parent.is_dir():
        raise InputError(
            f"{option} {path}: expected an existing folder, {path.parent} does not exist"
        )


def save_chart(chart: alt.TopLevelMixin, path: Path) -> None:
    """Write a chart as a file that needs no network and ends in one of `FORMATS`; an existing file is replaced."""
    options: dict[str, Any] = {"format": path.suffix.removeprefix(".")}
    if path.suffix == ".html":
        options["inline"] = True
    if path.suffix == ".png":
        options["scale_factor"] = 2
    with new_path(path) as scratch:
        chart.save(str(scratch), **options)
