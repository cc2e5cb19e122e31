"""What `hgpo advise` says of an `Advice`: the verdict in words, the setting to train with, a document and a picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.wording import listed
from hgpo_research.comparison.gain import FEWEST_GROUPS, FEWEST_ROLLOUTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import altair as alt

    from hgpo_research.advice.advice import Advice
    from hgpo_train.advantages.variants import Variant

MANY: Final = 1_000_000
"""The number of groups from which on "a million or more" is said."""


def verdict(advice: Advice) -> str:
    """Return the advice in a sentence."""
    found = advice.gains
    if not advice.known:
        return (
            f"No ranking: {found.informative} of {found.groups} groups have both outcomes, and intervals need "
            f"{FEWEST_GROUPS}. Missing are groups with wins and losses: more tasks, larger groups, or tasks that are "
            "neither always won nor always lost."
        )
    if not advice.separated:
        return f"Nothing separates these estimators: keep the one that you train with. {more_groups(advice)}"
    if len(advice.best) == 1:
        return f"Train with {advice.best[0]}: its gain is above that of every other estimator."
    names = advice.ranks["estimator"].to_list()
    below = listed([name for name in names if name not in advice.best])
    return (
        f"Train with one of these, which nothing separates: {listed(advice.best)}. One of them is above each of the "
        f"others: {below}. {more_groups(advice)}"
    )


def more_groups(advice: Advice) -> str:
    """Return in sentences how many more groups would separate the first two estimators, and the nearest pair."""
    first = advice.first_two
    if first["groups"] is None:
        return ""
    sentences = [_needed(first, advice.gains.groups)]
    nearest = advice.nearest
    if nearest is not None and nearest["groups"] < first["groups"] and not advice.separated:
        sentences.append(_needed(nearest, advice.gains.groups))
    return f"If differences are as seen, {'; '.join(sentences)}."


def _needed(row: dict[str, Any], groups: int) -> str:
    pair = f"{row['first']} and {row['second']}"
    if row["groups"] >= MANY:
        return f"no number of groups that can be played would separate {pair}"
    return f"about {row['groups'] - groups:,} more groups like these {groups:,} would separate {pair}"


def notes(advice: Advice) -> list[str]:
    """Return in sentences where the first two estimators differ, and what limits the advice."""
    lines = []
    row = advice.first_two
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
        lines.append(f"Left out: {advice.left_out:,} groups with too few complete rollouts.")
    if any(low is not None and (low > 0 or high < 0) for low, high in advice.controls.select("low", "high").rows()):
        lines.append("A control differs from 0, which chance does to one of ten runs: do not trust small differences.")
    return lines


def setting(variant: Variant, settings: Sequence[str] = ()) -> list[str]:
    """Return the words after `hgpo train CONFIG` that train with an estimator as it was compared.

    Args:
        variant: The estimator.
        settings: Parameters of all estimators, ``name=value``.
    """
    name = ":".join(part for part in variant.name.split(":") if "=" not in part)
    known = asdict(variant.estimator.parameters)
    given = dict.fromkeys([*(each.partition("=")[0] for each in settings), *variant.assigned])
    words = ["--set", f"advantage.estimator={name}"]
    for parameter in given:
        if parameter in known:
            # JSON's texts, numbers and truth values are those of TOML, too.
            words += ["--set", f"advantage.parameters.{parameter}={json.dumps(known[parameter])}"]
    return words


def document(advice: Advice, command: str | None, about: dict[str, Any]) -> dict[str, Any]:
    """Return all figures as JSON values.

    Args:
        advice: The advice.
        command: The command that trains with the first estimator, where the advice is to do so.
        about: What was compared.
    """
    found = advice.gains
    needed = advice.first_two["groups"]
    return {
        **about,
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
        "more_groups": None if needed is None else needed - found.groups,
        "command": command,
    }


def rows(advice: Advice) -> list[list[str]]:
    """Return the rows of the table that is printed."""
    cells = []
    for row in advice.ranks.iter_rows(named=True):
        ranks = ""
        if row["rank_low"] is not None:
            ends = dict.fromkeys((row["rank_low"], row["rank_high"]))
            ranks = "–".join(map(str, ends))
        below = _ends(row["difference_low"], row["difference_high"])
        cells.append([row["estimator"], ranks, _points(row["gain"]), _ends(row["low"], row["high"]), below])
    titles = {
        "A/A": "A/A: halves of the groups",
        "chance": "chance: permuted",
    }
    for name, gain, low, high in advice.controls.iter_rows():
        cells.append([titles[name], "", _points(gain), _ends(low, high), ""])
    return cells


def _points(value: float) -> str:
    return f"{100 * value:.2f}"


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{_points(low)} to {_points(high)}"


def picture(advice: Advice, title: str) -> alt.TopLevelMixin:
    """Return a chart: one dot and 95% interval for each estimator, below them the controls."""
    import altair as alt

    from hgpo_train.analysis.charts import COLOURS

    best = advice.best
    shown = []
    for name, gain, low, high in [*advice.gains.gains.iter_rows(), *advice.controls.iter_rows()]:
        kind = "best" if name in best else "other"
        kind = "control" if name in ("A/A", "chance") else kind
        shown.append({"name": name, "gain": gain, "low": low, "high": high, "kind": kind})
    kinds = ["best", "other", "control"]
    scale = alt.Scale(domain=kinds, range=[COLOURS[1], COLOURS[0], "#9a9a9a"])
    base = alt.Chart(alt.InlineData(values=shown)).encode(
        y=alt.Y("name:N", sort=[row["name"] for row in shown], title=None, axis=alt.Axis(labelLimit=300)),
        color=alt.Color("kind:N", scale=scale, legend=None),
    )
    axis = alt.Axis(format="%")
    layers = [
        alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(color="#cccccc").encode(x="zero:Q"),
        base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q").transform_filter("datum.low !== null"),
        base.mark_point(filled=True, size=60, opacity=1).encode(
            x=alt.X("gain:Q", title="gain of one update in success (lines: 95% intervals)", axis=axis)
        ),
    ]
    lines = [*wrap(verdict(advice), 90), "orange: no estimator is above it; grey: what chance gives"]
    head = alt.TitleParams(title, subtitle=lines, subtitleColor="#555", anchor="start")
    return alt.layer(*layers).properties(width=420, title=head)
