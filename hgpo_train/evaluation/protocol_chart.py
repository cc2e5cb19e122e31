"""The picture of `hgpo protocols`: a dot and a bar for each protocol. Requires the extra `notebooks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import altair as alt

from hgpo_train.analysis.charts import COLOURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_train.evaluation.protocols import Effect

KINDS: Final = {
    "shift": "counted or played in another way: 95% interval over tasks",
    "spread": "drawn by chance: where 95% of numbers lie",
    "none": "cannot move it",
}


def protocols_chart(effects: Mapping[str, Sequence[Effect]]) -> alt.FacetChart:
    """Return a chart of effects in points of success, a column for each policy.

    Args:
        effects: The effects of every policy, by its title. Those that are not known are left out.
    """
    rows = []
    order: dict[str, None] = {}
    for policy, found in effects.items():
        order |= dict.fromkeys(each.protocol for each in found)
        for each in found:
            ends = (each.effect, each.low, each.high)
            effect, low, high = (None if end is None else 100 * end for end in ends)
            row = {"policy": policy, "protocol": each.protocol, "kind": KINDS[each.kind]}
            rows.append(row | {"effect": effect, "low": low, "high": high, "what": each.sentence, "note": each.note})
    colours = alt.Scale(domain=list(KINDS.values()), range=[COLOURS[1], COLOURS[0], "#b0b0b0"])
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("protocol:N", sort=list(order), title=None, axis=alt.Axis(grid=True, labelLimit=200)),
        color=alt.Color("kind:N", scale=colours, title=None, legend=alt.Legend(orient="bottom", labelLimit=500)),
        tooltip=["protocol:N", "what:N", "effect:Q", "low:Q", "high:Q", "note:N"],
    )
    points = alt.X("effect:Q", title="points of success")
    bars = base.mark_rule(strokeWidth=3).encode(x="low:Q", x2="high:Q")
    dots = base.mark_point(filled=True, size=50, opacity=1).encode(x=points)
    chart = alt.layer(bars, dots).properties(width=190, height=alt.Step(19)).transform_filter("datum.effect !== null")
    head = alt.Header(title=None, labelFontWeight="bold")
    return chart.facet(alt.Column("policy:N", sort=list(effects), header=head))
