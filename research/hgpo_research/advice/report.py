"""What `hgpo advise` says of an `Advice`: the verdict in words, the setting to train with, and a picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.wording import listed
from hgpo_research.advice.advice import MANY
from hgpo_research.comparison.gain import FEWEST_GROUPS, FEWEST_ROLLOUTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import altair as alt

    from hgpo_research.advice.advice import Advice
    from hgpo_train.advantages.variants import Variant

CONTROLS: Final = {
    "A/A": "A/A: halves of groups",
    "chance": "chance: permuted",
}
"""The titles of controls, of at most 24 characters, which a narrow terminal shows in a line."""


def verdict(advice: Advice) -> str:
    """Return the advice in a sentence or two."""
    found = advice.gains
    best = advice.best
    if not advice.known:
        return (
            f"No ranking: {found.informative} of {found.groups} groups have both outcomes, and intervals need "
            f"{FEWEST_GROUPS}. Missing are groups with wins and losses: more tasks, larger groups, or tasks that are "
            "neither always won nor always lost."
        )
    if not best:
        return f"Nothing separates these estimators: keep the one that you train with. {_more_groups(advice)}"
    if len(best) == 1:
        return f"Train with {best[0]}: its gain is above that of every other estimator."
    names = advice.ranks["estimator"].to_list()
    below = listed([name for name in names if name not in best])
    return (
        f"Nothing separates {listed(best)}: keep the one that you train with if it is one of these. "
        f"Each of the others has an estimator above it: {below}. {_more_groups(advice)}"
    )


def _more_groups(advice: Advice) -> str:
    """Return how many more groups would separate the first two estimators and, where nothing is, the nearest pair."""
    first = advice.differences.row(0, named=True)
    pairs = [first]
    if not advice.best:
        pairs.append(advice.differences.sort("groups").row(0, named=True))
    sentences = []
    for row in pairs[: 1 + (pairs[-1] != first)]:
        pair = f"{row['first']} and {row['second']}"
        if row["groups"] == MANY:
            sentences.append(
                f"no number of groups that can be played would separate {pair}"
            )
        elif row["groups"] is not None:
            more = row["groups"] - advice.gains.groups
            like = f"groups like these {advice.gains.groups:,}"
            sentences.append(f"about {more:,} more {like} would separate {pair}")
    return f"If differences are as seen, {'; '.join(sentences)}." if sentences else ""


def notes(advice: Advice) -> list[str]:
    """Return in sentences where the first two estimators differ, and what limits the advice."""
    lines = []
    row = advice.differences.row(0, named=True)
    if row["sign"] is not None:
        lines.append(
            f"{row['first']} and {row['second']} differ in sign on {row['sign']:.0%} of the steps, and in size (more "
            f"than twice the other) on another {row['size']:.0%}."
        )
    rollouts = advice.gains.rollouts
    if rollouts < FEWEST_ROLLOUTS:
        lines.append(
            f"Batches of {rollouts:.0f} rollouts: below about {FEWEST_ROLLOUTS}, gains can be biased by up to 45% "
            "(near 0% and 100% success)."
        )
    if advice.left_out:
        lines.append(
            f"Left out: {advice.left_out:,} groups with too few complete rollouts."
        )
    if advice.known and not (advice.ranks["low"] > 0).any():
        lines.append(
            "No gain is above 0: to this run, every estimator may be worth nothing."
        )
    controls = advice.controls.drop_nulls()
    if ((controls["low"] > 0) | (controls["high"] < 0)).any():
        lines.append(
            "A control differs from 0, which chance does to one run of ten: do not trust small differences."
        )
    return lines


def setting(variant: Variant, settings: Sequence[str] = ()) -> list[str]:
    """Return the words after `hgpo train CONFIG` that train with an estimator as it was compared.

    Args:
        variant: The estimator.
        settings: Parameters of all estimators, ``name=value``.
    """
    name = ":".join(part for part in variant.name.split(":") if "=" not in part)
    words = ["--set", f"advantage.estimator={name}"]
    known = asdict(variant.estimator.parameters)
    shared = [each.partition("=")[0] for each in settings]
    for parameter in dict.fromkeys([*shared, *variant.assigned]):
        if parameter in known:
            # JSON's texts, numbers and truth values are those of TOML, too.
            value = json.dumps(known[parameter])
            words += ["--set", f"advantage.parameters.{parameter}={value}"]
    return words


def document(advice: Advice) -> dict[str, Any]:
    """Return all figures and sentences as JSON values."""
    found = advice.gains
    return {
        "groups": found.groups,
        "informative_groups": found.informative,
        "batches": found.batches,
        "rollouts_per_batch": found.rollouts,
        "kl": found.kl,
        "estimators": advice.ranks.to_dicts(),
        "controls": advice.controls.to_dicts(),
        "differences": advice.differences.to_dicts(),
        "verdict": verdict(advice),
        "notes": notes(advice),
        "best": advice.best,
    }


def rows(advice: Advice) -> list[list[str]]:
    """Return the rows of the table that is printed."""
    cells = []
    for row in advice.ranks.iter_rows(named=True):
        ranks = dict.fromkeys([row["rank_low"], row["rank_high"]])
        cells.append(
            [
                row["estimator"],
                "–".join(map(str, ranks)) if advice.known else "",
                f"{100 * row['gain']:.2f}",
                _ends(row["low"], row["high"]),
                _ends(row["difference_low"], row["difference_high"]),
            ]
        )
    for name, gain, low, high in advice.controls.iter_rows():
        shown = "" if gain is None else f"{100 * gain:.2f}"
        cells.append([CONTROLS[name], "", shown, _ends(low, high), ""])
    return cells


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{100 * low:.2f} to {100 * high:.2f}"


def picture(advice: Advice, title: str) -> alt.TopLevelMixin:
    """Return a chart: one dot and 95% interval for each estimator, below them the controls."""
    import altair as alt

    from hgpo_train.analysis.charts import COLOURS

    # 1. The rows in their order, and their colours.
    shown = []
    for name, gain, low, high in [
        *advice.gains.gains.iter_rows(),
        *advice.controls.iter_rows(),
    ]:
        colour = COLOURS[1] if name in advice.best else COLOURS[0]
        colour = "#9a9a9a" if name in CONTROLS else colour
        shown.append(
            {
                "name": name,
                "gain": gain,
                "low": low,
                "high": high,
                "colour": colour,
            }
        )
    base = alt.Chart(alt.InlineData(values=shown)).encode(
        y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=300)),
        color=alt.Color("colour:N", scale=None),
    )

    # 2. Layers from the back: zero, intervals, and gains.
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(color="#cccccc")
    about = "gain of one update in success (lines: 95% intervals)"
    gain = alt.X("gain:Q", title=about, axis=alt.Axis(format="%"))
    layers = [
        zero.encode(x="zero:Q"),
        base.mark_rule(strokeWidth=2)
        .encode(x="low:Q", x2="high:Q")
        .transform_filter("datum.low !== null"),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=gain),
    ]
    legend = "orange: no estimator is above it; grey: what chance gives"
    lines = [
        *wrap(verdict(advice), 90),
        legend if advice.best else legend.partition("; ")[2],
    ]
    head = alt.TitleParams(title, subtitle=lines, subtitleColor="#555", anchor="start")
    return alt.layer(*layers).properties(width=420, title=head)
